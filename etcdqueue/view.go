package etcdqueue

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"starfish/internal/permute"
	"starfish/internal/store"
)

// laneID names a lane of a pass.
type laneID struct{ pass, lane int }

func (id laneID) key() string { return laneKey(id.pass, id.lane) }

// slot is a lane as it was at some revision.
type slot struct {
	lane Lane
	// rev is the record's mod revision; 0: there was none.
	rev int64
	// seen is a revision at which the lane was known to be so. It is the token
	// of a take from it: the take's transaction compares rev and happens later
	// than seen, so whoever takes the same chunk after it sees a larger one.
	seen int64
	// theirs: somebody else works in the lane, or did so just now.
	theirs bool
}

// passView is a copy of one pass.
type passView struct {
	number   int
	manifest Manifest
	// created is the create revision of the pass's key.
	created int64
	shuffle bool
	order   permute.P
	// turn is the order in which this process goes through the lanes of a
	// shuffled pass.
	turn  []int
	lanes []slot
	// home is the lane that this process, incarnation, took from last; -1: none.
	home        int
	incarnation string
	// todo is the number of Todo chunks, open the number of unfinished lanes.
	todo int64
	open int
}

// newPassView is a pass of which nothing was taken at revision seen.
func newPassView(c *Config, number int, m Manifest, created, seen int64, lanes int) *passView {
	p := &passView{
		number: number, manifest: m, created: created, shuffle: c.Shuffle,
		order: permute.New(m.Chunks, c.Seed, uint64(number)),
		lanes: make([]slot, lanes), turn: make([]int, lanes), home: -1, incarnation: c.Incarnation,
	}
	turn := permute.New(int64(lanes), c.Seed, uint64(number), xxhash.Sum64String(c.Name))
	for i := range p.lanes {
		p.turn[i] = int(turn.At(int64(i)))
		l := NewLane(p.size(i))
		p.lanes[i] = slot{lane: l, seen: seen}
		p.count(l, 1)
	}
	return p
}

func (p *passView) size(lane int) int64 { return LaneSize(p.manifest.Chunks, len(p.lanes), lane) }

func (p *passView) count(l Lane, sign int64) {
	p.todo += sign * l.Todo.Len()
	if !l.Finished() {
		p.open += int(sign)
	}
}

// set puts in what is newer than the copy; false if it is not.
func (p *passView) set(lane int, s slot) bool {
	old := &p.lanes[lane]
	if s.rev < old.rev {
		return false
	}
	if s.rev == old.rev {
		old.seen = max(old.seen, s.seen)
		old.theirs = old.theirs && s.theirs
		return false
	}
	p.count(old.lane, -1)
	*old = s
	p.count(old.lane, 1)
	return true
}

// learn is set for a lane as it was read, whoever has written it.
func (p *passView) learn(lane int, s slot) bool {
	old := p.lanes[lane]
	s.theirs = old.theirs
	if s.rev != old.rev {
		s.theirs = othersIn(old.lane, p.incarnation) || othersIn(s.lane, p.incarnation)
	}
	return p.set(lane, s)
}

// busy tells whether others work in a lane.
func (p *passView) busy(lane int) bool {
	s := p.lanes[lane]
	return s.theirs || othersIn(s.lane, p.incarnation)
}

// decode reads one lane's record, read at revision at.
func (p *passView) decode(lane int, kv store.KV, at int64) (slot, error) {
	l, err := decodeLane(kv, p.size(lane))
	if err != nil {
		return slot{}, err
	}
	return slot{lane: l, rev: kv.ModRev, seen: max(at, kv.ModRev)}, nil
}

// task is the chunk at a position of a lane.
func (p *passView) task(lane int, position, token int64) Task {
	rank := position*int64(len(p.lanes)) + int64(lane)
	return Task{Pass: p.number, Rank: rank, Chunk: p.chunk(rank), Lane: lane, Position: position, Token: token}
}

func (p *passView) chunk(rank int64) int64 {
	if p.shuffle {
		return p.order.At(rank)
	}
	return rank
}

// view is a copy of what takes look at: `state`, the passes that may be taken
// from and the quarantined chunks. It may be behind the store; what it leads to
// is compared with the store in the transaction.
type view struct {
	state  State
	passes map[int]*passView
	failed quarantine
}

// missing lists the passes that may be taken from and are not in the view.
func (v *view) missing() []int {
	if v.state.Phase == "" {
		return nil
	}
	return slices.DeleteFunc(v.state.Takeable(), func(p int) bool { return v.passes[p] != nil })
}

// setFailed notes a chunk's record of quarantine, which may be absent.
func (v *view) setFailed(chunk int64, kv store.KV) {
	if kv.Exists() {
		v.failed[chunk] = kv.ModRev
	} else {
		delete(v.failed, chunk)
	}
}

// setState puts in a newer `state` and forgets passes that are not taken from.
func (v *view) setState(s State) bool {
	if s.Revision <= v.state.Revision {
		return false
	}
	v.state = s
	keep := s.Takeable()
	for p := range v.passes {
		if s.Phase == "" || !slices.Contains(keep, p) {
			delete(v.passes, p)
		}
	}
	return true
}

// ripe tells whether the lanes allow a turn, as far as the view knows.
func (v *view) ripe() bool {
	if v.state.Phase != PhaseTraining {
		return false
	}
	for _, p := range v.state.Takeable() {
		if w := v.passes[p]; w != nil && w.open == 0 {
			return true
		}
	}
	return false
}
