package etcdqueue

import (
	"fmt"
	"maps"
	"slices"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// Lane is one part of a pass's queue, as it stands in one record: where each of
// its chunks is, by position. It is a pure value: a method that changes
// something returns the changed lane and leaves the receiver as it was. Each
// position is in exactly one of Todo, one entry of Pending, Complete and Failed.
type Lane struct {
	V       int        `json:"v"`
	Todo    ranges.Set `json:"todo"`
	Pending []Entry    `json:"pending"`
	// Complete: trained, and acknowledged by everything the completer's guards
	// stand for.
	Complete ranges.Set `json:"complete"`
	// Failed: quarantined, now or in an earlier pass.
	Failed ranges.Set `json:"failed"`
	// Again: reopened and not complete again yet. Their sums are in Batches,
	// Records and Bad already.
	Again ranges.Set `json:"again"`
	// Tries counts the data failures of a position.
	Tries map[int64]int `json:"tries,omitempty"`
	// Batches and Records of each position's first Complete, and the Bad
	// records that were left out of it.
	Batches int64 `json:"batches"`
	Records int64 `json:"records"`
	Bad     int64 `json:"bad,omitempty"`
	// How many positions were taken, taken back from a taker that was lost or
	// stalled, and reopened, each as often as it happened.
	Takes    int64 `json:"takes"`
	Requeued int64 `json:"requeued"`
	Reopened int64 `json:"reopened"`
	// Speculated of Takes were overtaken from another taker.
	Speculated int64 `json:"speculated,omitempty"`
}

// Entry is what one take left in a lane: positions that are Pending. Its
// identity is (Incarnation, Token).
type Entry struct {
	At          ranges.Set `json:"at"`
	Owner       string     `json:"owner"`
	Incarnation string     `json:"incarnation"`
	Token       int64      `json:"token"`
	// Beat grows with every sign of progress.
	Beat int64 `json:"beat"`
	// Reason says what the owner waits for, if it waits.
	Reason string `json:"reason,omitempty"`
	// Run is how many takers in a row had the positions and were overtaken.
	Run int `json:"run,omitempty"`
}

// Holder is who reports on a chunk: it must be who took it.
type Holder struct {
	Incarnation string
	Token       int64
}

// NewLane is a lane of which nothing was taken.
func NewLane(size int64) Lane {
	return Lane{V: laneVersion, Todo: ranges.Of(0, size-1)}
}

// LaneSize is the number of chunks in one lane of a pass of n chunks.
func LaneSize(n int64, lanes, lane int) int64 {
	if int64(lane) >= n {
		return 0
	}
	return (n-int64(lane)-1)/int64(lanes) + 1
}

// Take moves positions from Todo to Pending; false if one of them is not Todo.
func (l Lane) Take(at ranges.Set, owner string, h Holder) (Lane, bool) {
	if at.IsEmpty() || !l.Todo.Covers(at) {
		return l, false
	}
	l.Todo = l.Todo.Minus(at)
	l.Pending = append(slices.Clip(l.Pending), Entry{At: at, Owner: owner, Incarnation: h.Incarnation, Token: h.Token, Beat: 1})
	l.Takes += at.Len()
	return l, true
}

// Overtake moves positions from the entry of one holder to a new entry of another
// one: Requeue and Take in one step, so a chunk is in one place all the time. The
// first holder has lost them, as if it had stalled. false unless its entry has
// them all.
func (l Lane) Overtake(at ranges.Set, from Holder, owner string, h Holder) (Lane, bool) {
	i := slices.IndexFunc(l.Pending, func(e Entry) bool { return e.Incarnation == from.Incarnation && e.Token == from.Token })
	if i < 0 || at.IsEmpty() || !l.Pending[i].At.Covers(at) {
		return l, false
	}
	l.Pending = slices.Clone(l.Pending)
	e := &l.Pending[i]
	run := e.Run + 1
	if e.At = e.At.Minus(at); e.At.IsEmpty() {
		l.Pending = slices.Delete(l.Pending, i, i+1)
	}
	l.Pending = append(l.Pending, Entry{At: at, Owner: owner, Incarnation: h.Incarnation, Token: h.Token, Beat: 1, Run: run})
	l.Takes += at.Len()
	l.Speculated += at.Len()
	return l, true
}

// Skip moves positions of quarantined chunks from Todo to Failed.
func (l Lane) Skip(at ranges.Set) Lane {
	at = at.Intersect(l.Todo)
	l.Todo = l.Todo.Minus(at)
	l.Failed = l.Failed.Union(at)
	return l
}

// Holds tells whether the position is Pending with this holder.
func (l Lane) Holds(position int64, h Holder) bool { return l.find(position, h) >= 0 }

// find returns the index of the holder's entry if position is in it.
func (l Lane) find(position int64, h Holder) int {
	return slices.IndexFunc(l.Pending, func(e Entry) bool {
		return e.Incarnation == h.Incarnation && e.Token == h.Token && e.At.Contains(position)
	})
}

// drop takes a position out of its entry. What is left of the entry has made
// progress, since its owner did something with a part of it.
func (l Lane) drop(i int, position int64) Lane {
	l.Pending = slices.Clone(l.Pending)
	e := &l.Pending[i]
	e.At.Remove(position)
	e.Beat++
	e.Reason = ""
	if e.At.IsEmpty() {
		l.Pending = slices.Delete(l.Pending, i, i+1)
	}
	return l
}

// Touch notes progress, or the reason why there is none, for the entry that
// holds position.
func (l Lane) Touch(position int64, h Holder, reason string) (Lane, bool) {
	i := l.find(position, h)
	if i < 0 {
		return l, false
	}
	l.Pending = slices.Clone(l.Pending)
	l.Pending[i].Beat++
	l.Pending[i].Reason = reason
	return l, true
}

// Done moves a position from Pending to Complete. Its sums are added unless
// they have been already, before it was reopened.
func (l Lane) Done(position int64, h Holder, sums Sums) (Lane, bool) {
	i := l.find(position, h)
	if i < 0 {
		return l, false
	}
	l = l.drop(i, position)
	l.Complete.Add(position)
	if l.Again.Contains(position) {
		l.Again.Remove(position)
		return l, true
	}
	l.Batches += sums.Batches
	l.Records += sums.Records
	l.Bad += sums.Bad
	return l, true
}

// Fail counts a data failure: Pending → Todo, or → Failed at the limit, which
// quarantined tells.
func (l Lane) Fail(position int64, h Holder, limit int) (after Lane, quarantined, ok bool) {
	i := l.find(position, h)
	if i < 0 {
		return l, false, false
	}
	l = l.drop(i, position)
	l.Tries = maps.Clone(l.Tries)
	if l.Tries == nil {
		l.Tries = make(map[int64]int, 1)
	}
	l.Tries[position]++
	if l.Tries[position] < limit {
		l.Todo.Add(position)
		return l, false, true
	}
	l.Failed.Add(position)
	return l, true, true
}

// Readmit takes a position back from quarantine, Failed → Todo, with all its
// tries; false if it is not Failed.
func (l Lane) Readmit(position int64) (Lane, bool) {
	if !l.Failed.Contains(position) {
		return l, false
	}
	l.Failed.Remove(position)
	l.Todo.Add(position)
	l.Tries = maps.Clone(l.Tries)
	delete(l.Tries, position)
	return l, true
}

// Release gives a position back, Pending → Todo. It counts as no failure.
func (l Lane) Release(position int64, h Holder) (Lane, bool) {
	i := l.find(position, h)
	if i < 0 {
		return l, false
	}
	l = l.drop(i, position)
	l.Todo.Add(position)
	return l, true
}

// Requeue gives back what is left of the entries that lost selects.
func (l Lane) Requeue(lost func(Entry) bool) (Lane, int64) {
	var kept []Entry
	var n int64
	for _, e := range l.Pending {
		if !lost(e) {
			kept = append(kept, e)
			continue
		}
		l.Todo = l.Todo.Union(e.At)
		n += e.At.Len()
	}
	if n > 0 {
		l.Pending = kept
		l.Requeued += n
	}
	return l, n
}

// Reopen makes those of positions that are Complete Todo again.
func (l Lane) Reopen(positions ranges.Set) (Lane, int64) {
	at := positions.Intersect(l.Complete)
	l.Complete = l.Complete.Minus(at)
	l.Todo = l.Todo.Union(at)
	l.Again = l.Again.Union(at)
	l.Reopened += at.Len()
	return l, at.Len()
}

// Finished tells whether nothing is Todo or Pending.
func (l Lane) Finished() bool { return l.Todo.IsEmpty() && len(l.Pending) == 0 }

// pendingLen is the number of Pending positions.
func (l Lane) pendingLen() int64 {
	var n int64
	for _, e := range l.Pending {
		n += e.At.Len()
	}
	return n
}

// Totals counts what is in the lane.
func (l Lane) Totals() Totals {
	t := Totals{
		Todo: l.Todo.Len(), Pending: l.pendingLen(), Complete: l.Complete.Len(), Failed: l.Failed.Len(),
		Takes: l.Takes, Requeued: l.Requeued, Reopened: l.Reopened, Speculated: l.Speculated,
		Batches: l.Batches, Records: l.Records, Bad: l.Bad,
	}
	t.Chunks = t.Todo + t.Pending + t.Complete + t.Failed
	return t
}

// Check returns an error unless each of size positions is in exactly one place.
func (l Lane) Check(size int64) error {
	if l.V != laneVersion {
		return fmt.Errorf("%w: version %d of a lane; this program knows version %d", ErrFormat, l.V, laneVersion)
	}
	all := l.Todo.Union(l.Complete).Union(l.Failed)
	for _, e := range l.Pending {
		if e.At.IsEmpty() || e.Incarnation == "" {
			return fmt.Errorf("%w: a pending entry without positions or incarnation", ErrFormat)
		}
		all = all.Union(e.At)
	}
	if n := l.Totals().Chunks; n != size || !all.Equal(ranges.Of(0, size-1)) {
		return fmt.Errorf("%w: %d positions in %s, not each of %d once", ErrFormat, n, all, size)
	}
	if !all.Covers(l.Again) || !l.Complete.Intersect(l.Again).IsEmpty() {
		return fmt.Errorf("%w: %q cannot be trained again", ErrFormat, l.Again.String())
	}
	return nil
}

// Encode is the record's value.
func (l Lane) Encode() []byte {
	if l.Pending == nil {
		l.Pending = []Entry{}
	}
	return mustJSON(l)
}

// DecodeLane reads the record of a lane that has size chunks, and checks it; an
// absent record is one of which nothing was taken.
func DecodeLane(kv store.KV, size int64) (Lane, error) { return decodeLane(kv, size) }

// decodeLane reads a lane of the given size; an absent record is one of which
// nothing was taken.
func decodeLane(kv store.KV, size int64) (Lane, error) {
	if !kv.Exists() {
		return NewLane(size), nil
	}
	var l Lane
	if err := decode(kv, laneVersion, &l, &l.V); err != nil {
		return Lane{}, err
	}
	if err := l.Check(size); err != nil {
		return Lane{}, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return l, nil
}
