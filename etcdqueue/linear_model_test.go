package etcdqueue

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

// The sequential models that recorded histories are checked against. There are
// two kinds of object: a chunk of a pass, and `state`. A history of the whole
// queue is legal only if that of each object is (linearizability is local), and
// each is short, so checking is quick. What calls do to several chunks at once is
// held together by the test that reads every revision, TestWalk.

// effect is what became of a call.
type effect string

const (
	ok      effect = "ok"
	refused effect = "stale"
	barred  effect = "guarded"
	// unknown: no answer, or an error that may hide a success. It may have
	// happened, at any time after the call.
	unknown effect = "?"
)

// place is where a chunk is.
type place string

const (
	todo     place = "todo"
	pending  place = "pending"
	complete place = "complete"
	failedAt place = "failed"
)

// chunkState is the model of one chunk of one pass.
type chunkState struct {
	place  place
	holder Holder // while pending
	last   int64  // the largest token so far
	tries  int
	guard  int64 // the revision of the key that guards Complete
}

// chunkCall is one call as one chunk sees it.
type chunkCall struct {
	verb   string
	holder Holder
	// unsure: an attempt of the same report went without an answer before.
	unsure bool
	guard  int64
	limit  int
	// lost tells which takers a requeue may take from.
	lost func(Holder) bool
	// finished, unbegun: what a value of `state` says of the chunk.
	finished, unbegun bool
	// over: the taker may take over what others have.
	over bool
}

// chunkAnswer is what the caller was told.
type chunkAnswer struct {
	effect effect
	// moved is, for a reopen, how many of how many positions it moved; 0, all, or
	// some of them.
	none, all bool
	// place and holder are what a read has shown.
	place  place
	holder Holder
}

func (c chunkCall) String() string {
	s := c.verb
	if c.holder.Incarnation != "" {
		s += fmt.Sprintf(" by %s token %d", c.holder.Incarnation, c.holder.Token)
	}
	if c.unsure {
		s += " (again)"
	}
	if c.guard != 0 {
		s += fmt.Sprintf(" guard %d", c.guard)
	}
	if c.finished {
		s += " says: its pass is over"
	}
	if c.unbegun {
		s += " says: its pass has not begun"
	}
	return s
}

func (a chunkAnswer) String() string {
	if a.place != "" {
		return fmt.Sprintf("%s %v", a.place, a.holder)
	}
	return string(a.effect)
}

func modelOfChunk() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{chunkState{place: todo}} },
		Step: func(s, in, out any) []any {
			var next []any
			for _, n := range s.(chunkState).step(in.(chunkCall), out.(chunkAnswer)) {
				next = append(next, n)
			}
			return next
		},
	}
	return m.ToModel()
}

// when is s as the only possible state if cond holds, else no state.
func (s chunkState) when(cond bool) []chunkState {
	if cond {
		return []chunkState{s}
	}
	return nil
}

func (s chunkState) to(p place) chunkState {
	s.place, s.holder = p, Holder{}
	return s
}

func (s chunkState) holds(h Holder) bool { return s.place == pending && s.holder == h }

func (s chunkState) dealtWith() bool { return s.place == complete || s.place == failedAt }

// step lists the states in which the call may leave the chunk, given its answer.
func (s chunkState) step(c chunkCall, a chunkAnswer) []chunkState {
	switch c.verb {
	case "take":
		taken := s
		taken.place, taken.holder, taken.last = pending, c.holder, c.holder.Token
		free := s.place == todo || c.over && s.place == pending && s.holder.Incarnation != c.holder.Incarnation
		return s.might(taken, free && c.holder.Token > s.last, a.effect)
	case "touch":
		return s.when(s.holds(c.holder) == (a.effect == ok))
	case "complete":
		return s.report(c, a, s.to(complete), s.dealtWith())
	case "release":
		return s.report(c, a, s.to(todo), true)
	case "fail":
		failed := s.to(todo)
		if failed.tries++; failed.tries >= c.limit {
			failed.place = failedAt
		}
		return s.report(c, a, failed, true)
	case "requeue":
		return s.might(s.to(todo), s.place == pending && c.lost(s.holder), unknown)
	case "reopen":
		switch {
		case a.effect == unknown:
			return s.might(s.to(todo), s.place == complete, unknown)
		case s.place == complete:
			return s.to(todo).when(!a.none)
		}
		return s.when(!a.all)
	case "quarantine": // a taker of another pass has heard that the chunk is bad
		return s.might(s.to(failedAt), s.place == todo, unknown)
	case "guard":
		s.guard = c.guard
		return []chunkState{s}
	case "state":
		return s.when((!c.finished || s.dealtWith()) && (!c.unbegun || s.place == todo && s.last == 0))
	case "read":
		return s.when(s.place == a.place && s.holder == a.holder)
	}
	panic("no such verb: " + c.verb)
}

// might is the step of a call that leads to after where can holds.
func (s chunkState) might(after chunkState, can bool, e effect) []chunkState {
	next := after.when(can)
	if e == unknown {
		next = append(next, s)
	}
	return next
}

// report is the step of complete, release and fail. A report of which an earlier
// attempt had no answer may find that it is done; repeated says where that is
// believed.
func (s chunkState) report(c chunkCall, a chunkAnswer, after chunkState, repeated bool) []chunkState {
	guarded := c.guard != 0 && c.guard != s.guard
	can := s.holds(c.holder) && !guarded
	switch {
	case a.effect == unknown, a.effect == barred && c.unsure:
		return s.might(after, can, unknown)
	case a.effect == barred:
		return s.when(guarded)
	case a.effect == ok && can:
		return []chunkState{after}
	case a.effect == ok:
		return s.when(c.unsure && repeated && !s.holds(c.holder))
	}
	next := s.when(!s.holds(c.holder))
	if c.unsure { // it was written, and reopened or taken back since
		next = append(next, after.when(can)...)
	}
	return next
}

// queueState is the model of `state`.
type queueState struct {
	phase    Phase
	pass     int
	floor    int
	reopened uint64 // bit p: pass p is listed
	revision int64  // the newest that was seen
}

// stateCall is a call as `state` sees it.
type stateCall struct {
	verb  string
	pass  int // of a reopen; the limit of a removal
	count int // of passes
}

type stateAnswer struct {
	effect effect
	none   bool  // a reopen that moved nothing
	state  State // what a turn or a read has returned
}

func (c stateCall) String() string   { return fmt.Sprintf("%s %d", c.verb, c.pass) }
func (a stateAnswer) String() string { return fmt.Sprintf("%s %s", a.effect, a.state.encode()) }

func modelOf(s State) queueState {
	q := queueState{phase: s.Phase, pass: s.Pass, floor: s.Floor, revision: s.Revision}
	for _, p := range s.Reopened {
		q.reopened |= 1 << p
	}
	return q
}

func modelOfState() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{queueState{phase: PhaseTraining}} },
		Step: func(s, in, out any) []any {
			var next []any
			for _, n := range s.(queueState).step(in.(stateCall), out.(stateAnswer)) {
				next = append(next, n)
			}
			return next
		},
	}
	return m.ToModel()
}

func (s queueState) step(c stateCall, a stateAnswer) []queueState {
	var next []queueState
	switch c.verb {
	case "turn":
		next = append(s.turns(c.count), s)
		if a.effect == unknown {
			return next
		}
		return known(next, a.state)
	case "state":
		return known([]queueState{s}, a.state)
	case "reopen":
		after := s
		after.reopened |= 1 << c.pass
		if s.phase == PhaseDraining {
			after.phase = PhaseTraining
		}
		if a.effect == unknown || a.none {
			next = append(next, s)
		}
		if !a.none && !s.phase.Ended() && c.pass >= s.floor && c.pass <= s.pass {
			next = append(next, after)
		}
		return next
	case "remove":
		next = []queueState{s}
		for s.floor < c.pass && s.floor < s.pass && s.reopened&(1<<(s.floor+1)-1) == 0 {
			s.floor++
			next = append(next, s)
		}
		return next
	}
	panic("no such verb: " + c.verb)
}

// turns are the states to which a turn may lead, whatever the lanes hold: that
// they allow it is the business of the model of a chunk.
func (s queueState) turns(passes int) []queueState {
	if s.phase != PhaseTraining {
		return nil
	}
	var next []queueState
	for left := s.reopened; ; left = (left - 1) & s.reopened {
		after := s
		after.reopened = left
		next = append(next, after)
		failed := after
		failed.phase = PhaseFailed
		next = append(next, failed)
		switch {
		case s.pass+1 < passes:
			after.pass++
			next = append(next, after)
		case left == 0:
			after.phase = PhaseDraining
			next = append(next, after)
		}
		if left == 0 {
			return next
		}
	}
}

// known keeps those of states that are what was seen, at no earlier revision.
func known(states []queueState, seen State) []queueState {
	want := modelOf(seen)
	states = slices.DeleteFunc(states, func(s queueState) bool {
		old := s.revision
		s.revision = want.revision
		return s != want || old > want.revision
	})
	for i := range states {
		states[i].revision = want.revision
	}
	return slices.Compact(states)
}
