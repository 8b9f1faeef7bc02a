package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"starfish/internal/ranges"
	"starfish/pserver/staleness"
)

// SnapshotVersion is the version of Snapshot's form. Version 1 had no sums of
// weights; it is still read.
const SnapshotVersion = 2

// ErrSnapshot is wrapped by the errors of snapshots that no ledger has made.
var ErrSnapshot = errors.New("bad ledger snapshot")

// Snapshot is a ledger's content as plain values, in a fixed order: equal
// ledgers have equal snapshots. It is what a checkpoint keeps.
type Snapshot struct {
	V     int
	Lanes int
	// Through is the number of leading passes that are finished without
	// exception, and Past their sums; Passes are the others, by number.
	Through int
	Past    Sums
	Passes  []PassSnapshot
	Flight  []FlightSnapshot
	// Recent is empty but under policy skip.
	Recent   []RecentSnapshot
	Counters Counters
}

// PassSnapshot is one pass.
type PassSnapshot struct {
	Pass      int
	Collapsed bool
	Sums      Sums
	Lanes     []LaneSnapshot // by number, only those that have something
}

// LaneSnapshot holds a lane's ranges in their text form.
type LaneSnapshot struct {
	Lane     int
	Finished string
	Failed   string
	Reopened string
	// Reckoned is 0 but under policy skip.
	Reckoned int64
}

// FlightSnapshot is one chunk in flight.
type FlightSnapshot struct {
	Pass   int
	Rank   int64
	Token  int64
	Next   int64
	Replay int64
}

// RecentSnapshot is one chunk that is finished here, and was not Complete in the
// queue at the last look.
type RecentSnapshot struct {
	Pass    int
	Rank    int64
	Batches int64
}

// Snapshot copies the ledger's content.
func (l *Ledger) Snapshot() Snapshot {
	s := Snapshot{V: SnapshotVersion, Lanes: int(l.lanes), Through: l.through, Past: l.past.sums, Counters: l.counters}
	for _, n := range slices.Sorted(maps.Keys(l.passes)) {
		s.Passes = append(s.Passes, l.passes[n].snapshot(n))
	}
	for c, f := range l.flight {
		s.Flight = append(s.Flight, FlightSnapshot{Pass: c.pass, Rank: c.rank, Token: f.token, Next: f.next, Replay: f.replay})
	}
	slices.SortFunc(s.Flight, func(a, b FlightSnapshot) int {
		return cmp.Or(cmp.Compare(a.Pass, b.Pass), cmp.Compare(a.Rank, b.Rank))
	})
	for c, n := range l.recent {
		s.Recent = append(s.Recent, RecentSnapshot{Pass: c.pass, Rank: c.rank, Batches: n})
	}
	slices.SortFunc(s.Recent, func(a, b RecentSnapshot) int {
		return cmp.Or(cmp.Compare(a.Pass, b.Pass), cmp.Compare(a.Rank, b.Rank))
	})
	return s
}

func (p *pass) snapshot(n int) PassSnapshot {
	s := PassSnapshot{Pass: n, Collapsed: p.collapsed, Sums: p.sums}
	for i := range p.lanes {
		at := LaneSnapshot{
			Lane: i, Finished: p.lanes[i].finished.String(), Failed: p.lanes[i].failed.String(),
			Reopened: p.lanes[i].reopened.String(), Reckoned: p.lanes[i].reckoned,
		}
		if at != (LaneSnapshot{Lane: i}) {
			s.Lanes = append(s.Lanes, at)
		}
	}
	return s
}

// Restore makes a ledger of a snapshot. It is marked restored: what came after
// the snapshot is lost.
func Restore(s Snapshot, lanes int, policy Policy) (*Ledger, error) {
	switch s.V {
	case SnapshotVersion:
	case 1:
		s.weigh()
	default:
		return nil, fmt.Errorf("%w: version %d, this program reads %d", ErrSnapshot, s.V, SnapshotVersion)
	}
	if s.Lanes != lanes {
		return nil, fmt.Errorf("%w: of a queue of %d lanes, not %d", ErrSnapshot, s.Lanes, lanes)
	}
	l := New(lanes, policy)
	if s.Through < 0 || s.Through > MaxPass {
		return nil, fmt.Errorf("%w: %d finished passes", ErrSnapshot, s.Through)
	}
	l.through, l.past.sums, l.counters = s.Through, s.Past, s.Counters
	l.counted = s.Past.counted()
	for i := range s.Passes {
		if err := l.restorePass(&s.Passes[i]); err != nil {
			return nil, err
		}
	}
	for _, f := range s.Flight {
		if err := l.restoreFlight(f); err != nil {
			return nil, err
		}
	}
	for _, r := range s.Recent {
		if err := l.restoreRecent(r); err != nil {
			return nil, err
		}
	}
	l.MarkRestored()
	return l, nil
}

// weigh gives a snapshot of version 1 the weights that it stood for: its losses
// were divided by the number of records.
func (s *Snapshot) weigh() {
	s.Past.Weight = float64(s.Past.Records)
	s.Passes = slices.Clone(s.Passes)
	for i := range s.Passes {
		s.Passes[i].Sums.Weight = float64(s.Passes[i].Sums.Records)
	}
}

func (l *Ledger) restorePass(s *PassSnapshot) error {
	if s.Pass < l.through || s.Pass > MaxPass || l.passes[s.Pass] != nil {
		return fmt.Errorf("%w: pass %d", ErrSnapshot, s.Pass)
	}
	p := l.pass(s.Pass)
	p.sums, p.collapsed = s.Sums, s.Collapsed
	l.counted += s.Sums.counted()
	for _, at := range s.Lanes {
		if at.Lane < 0 || int64(at.Lane) >= l.lanes {
			return fmt.Errorf("%w: pass %d, lane %d of %d", ErrSnapshot, s.Pass, at.Lane, l.lanes)
		}
		var errs [3]error
		into := &p.lanes[at.Lane]
		into.finished, errs[0] = ranges.Parse(at.Finished)
		into.failed, errs[1] = ranges.Parse(at.Failed)
		into.reopened, errs[2] = ranges.Parse(at.Reopened)
		if into.reckoned = at.Reckoned; at.Reckoned < 0 {
			return fmt.Errorf("%w: pass %d, lane %d had %d batches", ErrSnapshot, s.Pass, at.Lane, at.Reckoned)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return fmt.Errorf("%w: pass %d, lane %d: %w", ErrSnapshot, s.Pass, at.Lane, err)
		}
	}
	if p.collapsed && len(s.Lanes) == 0 {
		p.lanes = nil
	}
	return nil
}

func (l *Ledger) restoreFlight(s FlightSnapshot) error {
	c := chunk{s.Pass, s.Rank}
	_, twice := l.flight[c]
	switch {
	case s.Pass < 0 || s.Pass > MaxPass || s.Rank < 0 || s.Rank > MaxRank || s.Token < 0 || s.Next < 0 || s.Replay < 0:
		return fmt.Errorf("%w: chunk in flight %+v", ErrSnapshot, s)
	case twice || l.finished(s.Pass, s.Rank):
		return fmt.Errorf("%w: chunk %d of pass %d is in flight twice or finished", ErrSnapshot, s.Rank, s.Pass)
	}
	l.flight[c] = inFlight{token: s.Token, next: s.Next, replay: s.Replay}
	return nil
}

func (l *Ledger) restoreRecent(s RecentSnapshot) error {
	c := chunk{s.Pass, s.Rank}
	_, twice := l.recent[c]
	switch {
	case s.Pass < 0 || s.Pass > MaxPass || s.Rank < 0 || s.Rank > MaxRank || s.Batches <= 0:
		return fmt.Errorf("%w: finished chunk %+v", ErrSnapshot, s)
	case twice || !l.finished(s.Pass, s.Rank):
		return fmt.Errorf("%w: chunk %d of pass %d is finished twice or not at all", ErrSnapshot, s.Rank, s.Pass)
	}
	l.recent[c] = s.Batches
	return nil
}

// PassSums are the sums of one pass.
type PassSums struct {
	Pass int `json:"pass"`
	Sums
}

// Summary is what people and the steward want to know of a ledger: the meta
// record of a checkpoint carries it as JSON.
type Summary struct {
	// Passes is the number of leading passes that have collapsed.
	Passes int `json:"passes"`
	// Past are the sums of the leading passes that are finished, but for the
	// newest pass; Sums those of each other pass, by number.
	Past Sums       `json:"past"`
	Sums []PassSums `json:"sums"`
	// InFlight is the number of chunks begun and not finished.
	InFlight int `json:"in_flight"`
	Counters
	// RecoveredSeconds is how long the present owner took from its claim to
	// serving, if there was an owner before it. The ledger does not know it;
	// whoever publishes the summary fills it in.
	RecoveredSeconds float64 `json:"recovered_seconds"`
	// HandOvers is how often the shard was handed over by a living owner, and
	// HandOverSeconds for how long it was not served in all of them. Whoever
	// publishes the summary fills them in.
	HandOvers       int64   `json:"handovers"`
	HandOverSeconds float64 `json:"handover_seconds"`
	// Request is the number of the newest request for checkpoints that the saver
	// had seen before it took its cut; whoever publishes the summary fills it in.
	Request int64 `json:"request,omitempty"`
	// Staleness is how many updates of other trainers the values of each batch had
	// not seen that the present owner has applied; whoever publishes the summary
	// fills it in.
	Staleness *staleness.Counts `json:"staleness,omitempty"`
	// Memory is what the shard takes in memory at least, in bytes, wherever it is
	// loaded; whoever publishes the summary fills it in.
	Memory int64 `json:"memory,omitempty"`
}

// Summary adds the ledger up.
func (l *Ledger) Summary() Summary {
	s := Summary{Passes: l.Passes(), Past: l.past.sums, Sums: []PassSums{}, InFlight: len(l.flight), Counters: l.counters}
	for _, n := range slices.Sorted(maps.Keys(l.passes)) {
		s.Sums = append(s.Sums, PassSums{n, l.passes[n].sums})
	}
	return s
}

// Total adds the passes up.
func (s *Summary) Total() Sums {
	t := s.Past
	for _, p := range s.Sums {
		t.Add(p.Sums)
	}
	return t
}
