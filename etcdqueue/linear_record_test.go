package etcdqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"starfish/internal/permute"
	"starfish/internal/store"
)

// chunkID is one chunk of one pass, by rank.
type chunkID struct {
	pass int
	rank int64
}

// span is the time of a call, counted in calls and returns. A call without an
// answer ends never.
type span struct{ call, ret int64 }

// recording is what the callers of a queue saw: each call with its answer.
type recording struct {
	chunks int64
	lanes  int
	passes int
	config Config

	mu    sync.Mutex
	clock int64
	// of has the calls on single chunks, all those that concern many: each gives
	// a chunk its part, if it has one.
	of  map[chunkID][]porcupine.Operation
	all []shared
	// takes are kept apart until the end: the answer to one that was lost may
	// come with a later one.
	takes map[grantOf]takeSpan
	state []porcupine.Operation
	seen  map[int64]bool // revisions of `state`
	calls map[string]int // by verb and effect
}

type shared struct {
	span
	part func(chunkID) (chunkCall, chunkAnswer, bool)
}

// grantOf is one chunk of one take.
type grantOf struct {
	chunkID
	holder Holder
}

type takeSpan struct {
	span
	certain bool
}

func newRecording(chunks int64, c Config) *recording {
	return &recording{
		chunks: chunks, lanes: c.Lanes, passes: c.Passes, config: c,
		of: map[chunkID][]porcupine.Operation{}, takes: map[grantOf]takeSpan{}, seen: map[int64]bool{}, calls: map[string]int{},
	}
}

// tick is a moment of its own.
func (r *recording) tick() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	return r.clock
}

func operation(s span, in, out any) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: s.call, Output: out, Return: s.ret}
}

func (r *recording) note(verb string, e effect) { r.calls[verb+" "+string(e)]++ }

// chunk records a call on one chunk.
func (r *recording) chunk(s span, id chunkID, c chunkCall, a chunkAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(c.verb, a.effect)
	if a.effect == unknown {
		s.ret = math.MaxInt64
	}
	r.of[id] = append(r.of[id], operation(s, c, a))
}

// many records a call that concerns more than one chunk.
func (r *recording) many(s span, e effect, part func(chunkID) (chunkCall, chunkAnswer, bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e == unknown {
		s.ret = math.MaxInt64
	}
	r.all = append(r.all, shared{s, part})
}

// asked records that a take without an answer has asked for a chunk.
func (r *recording) asked(call int64, g grantOf) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("take", unknown)
	if old, known := r.takes[g]; known && old.call <= call {
		return
	}
	r.takes[g] = takeSpan{span{call, math.MaxInt64}, r.takes[g].certain}
}

// granted records that a take has returned a chunk, at once or after its answer
// had been lost.
func (r *recording) granted(s span, g grantOf) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("take", ok)
	old, known := r.takes[g]
	if old.certain {
		return fmt.Errorf("%v was handed out twice", g)
	}
	if known {
		s.call = min(s.call, old.call)
	}
	r.takes[g] = takeSpan{s, true}
	return nil
}

// onState records a call on `state`. The first time that a value is seen, what it
// says of chunks is recorded too.
func (r *recording) onState(s span, c stateCall, a stateAnswer) {
	r.mu.Lock()
	if c.verb == "turn" || c.verb == "remove" {
		r.note(c.verb, a.effect)
	}
	c.count = r.passes
	first := a.effect == ok && a.state.Revision > 0 && !r.seen[a.state.Revision]
	if first {
		r.seen[a.state.Revision] = true
	}
	if c.verb != "state" || first {
		t := s
		if a.effect == unknown {
			t.ret = math.MaxInt64
		}
		r.state = append(r.state, operation(t, c, a))
	}
	r.mu.Unlock()
	if !first {
		return
	}
	seen := a.state
	r.many(s, ok, func(id chunkID) (chunkCall, chunkAnswer, bool) {
		over := id.pass < seen.Pass || seen.Phase == PhaseDraining
		call := chunkCall{verb: "state", unbegun: id.pass > seen.Pass, finished: over && !slices.Contains(seen.Reopened, id.pass)}
		return call, chunkAnswer{effect: ok}, call.unbegun || call.finished
	})
}

// lanesRead records what a read of a pass has shown.
func (r *recording) lanesRead(s span, pass int, lanes []Lane) {
	r.mu.Lock()
	r.note("read", ok)
	r.mu.Unlock()
	r.many(s, ok, func(id chunkID) (chunkCall, chunkAnswer, bool) {
		a := chunkAnswer{effect: ok}
		l, position := lanes[id.rank%int64(r.lanes)], id.rank/int64(r.lanes)
		switch {
		case l.Todo.Contains(position):
			a.place = todo
		case l.Complete.Contains(position):
			a.place = complete
		case l.Failed.Contains(position):
			a.place = failedAt
		}
		for _, e := range l.Pending {
			if e.At.Contains(position) {
				a.place, a.holder = pending, Holder{e.Incarnation, e.Token}
			}
		}
		return chunkCall{verb: "read"}, a, id.pass == pass
	})
}

// quarantined records that a chunk may have been found bad in one pass, which
// takers of all others may heed: of later ones, and of an earlier one in which it
// is reopened.
func (r *recording) quarantined(call int64, t Task) {
	r.many(span{call, 0}, unknown, func(id chunkID) (chunkCall, chunkAnswer, bool) {
		at := id.rank
		if r.config.Shuffle {
			order := permute.New(r.chunks, r.config.Seed, uint64(id.pass))
			at = order.At(id.rank)
		}
		return chunkCall{verb: "quarantine"}, chunkAnswer{effect: unknown}, id.pass != t.Pass && at == t.Chunk
	})
}

// history is all that happened to one chunk.
func (r *recording) history(id chunkID) []porcupine.Operation {
	h := slices.Clone(r.of[id])
	for g, s := range r.takes {
		if g.chunkID != id {
			continue
		}
		a := chunkAnswer{effect: ok}
		if !s.certain {
			a.effect = unknown
		}
		h = append(h, operation(s.span, chunkCall{verb: "take", holder: g.holder, over: r.config.Speculate > 0}, a))
	}
	for _, s := range r.all {
		if c, a, has := s.part(id); has {
			h = append(h, operation(s.span, c, a))
		}
	}
	return h
}

// patience bounds the check of one object; what takes longer counts as wrong.
const patience = 20 * time.Second

// check is an error unless the calls and answers can be put into one order, each
// between its call and its return, in which a queue with one caller would have
// answered so. It returns the number of operations checked.
func (r *recording) check() (operations int, err error) {
	model := modelOfChunk()
	for pass := range r.passes {
		for rank := range r.chunks {
			id := chunkID{pass, rank}
			h := r.history(id)
			operations += len(h)
			if res := porcupine.CheckOperationsTimeout(model, h, patience); res != porcupine.Ok {
				return operations, fmt.Errorf("%w: chunk of rank %d of pass %d (%s):\n%s", errIllegal, rank, pass, res, describeHistory(h))
			}
		}
	}
	operations += len(r.state)
	if res := porcupine.CheckOperationsTimeout(modelOfState(), r.state, patience); res != porcupine.Ok {
		return operations, fmt.Errorf("%w: state (%s):\n%s", errIllegal, res, describeHistory(r.state))
	}
	return operations, nil
}

var errIllegal = errors.New("no order of the calls explains the answers")

func describeHistory(h []porcupine.Operation) string {
	slices.SortFunc(h, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range h {
		ret := fmt.Sprint(o.Return)
		if o.Return == math.MaxInt64 {
			ret = "never"
		}
		fmt.Fprintf(&b, "  %5d … %-6s %v = %v\n", o.Call, ret, o.Input, o.Output)
	}
	return b.String()
}

// tap is a handle of a store that loses requests and answers, and tells what was
// asked in the writes that went without an answer.
type tap struct {
	store.Store
	// fault says what becomes of a write.
	fault func() fault
	late  *sync.WaitGroup // requests that are still on their way
	delay func()          // how long those take

	mu   sync.Mutex
	lost []store.Txn
}

// fault is what a tap does to one write.
type fault int

const (
	none fault = iota
	// before: the request is lost.
	before
	// after: the answer is lost.
	after
	// late: the answer is an error, and then the request arrives.
	late
)

func (t *tap) Txn(ctx context.Context, x store.Txn) (store.Result, error) {
	if !slices.ContainsFunc(x.Then, func(o store.Op) bool { return o.Kind != store.KindRange }) {
		return t.Store.Txn(ctx, x)
	}
	f := t.fault()
	var r store.Result
	err := errLost
	switch f {
	case late:
		t.late.Go(func() {
			t.delay()
			_, _ = t.Store.Txn(context.WithoutCancel(ctx), x)
		})
	case before:
	case none, after:
		r, err = t.Store.Txn(ctx, x)
		if f == after {
			err = errLost
		}
	}
	if err == nil {
		return r, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = append(t.lost, x)
	return store.Result{}, err
}

// taken empties the list of writes without an answer.
func (t *tap) taken() []store.Txn {
	t.mu.Lock()
	defer t.mu.Unlock()
	lost := t.lost
	t.lost = nil
	return lost
}

// asks lists what an unanswered transaction would have given to a taker.
func (r *recording) asks(x store.Txn, incarnation string) []grantOf {
	var gs []grantOf
	for _, o := range x.Then {
		id, isLane := parseLaneKey(o.Key)
		var l Lane
		if !isLane || o.Kind != store.KindPut || json.Unmarshal(o.Value, &l) != nil {
			continue
		}
		for _, e := range l.Pending {
			if e.Incarnation != incarnation {
				continue
			}
			for position := range e.At.All() {
				rank := position*int64(r.lanes) + int64(id.lane)
				gs = append(gs, grantOf{chunkID{id.pass, rank}, Holder{incarnation, e.Token}})
			}
		}
	}
	return gs
}
