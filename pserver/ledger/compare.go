package ledger

import (
	"errors"
	"fmt"
	"math"

	"starfish/internal/ranges"
)

// ErrNotCovered says that a pass cannot collapse: the shard lacks chunks that
// are Complete in the queue, or the queue is not through with the pass.
var ErrNotCovered = errors.New("pass not covered")

// Lane is what the comparison needs of one lane of the queue.
type Lane struct {
	Complete ranges.Set
	Failed   ranges.Set
	// Batches is the sum over its Complete chunks. Reckon alone asks for it.
	Batches int64
}

// Missing returns the positions among complete whose chunks are not finished
// here: what a restored shard has to have reopened.
func (l *Ledger) Missing(pass, lane int, complete ranges.Set) ranges.Set {
	p := l.known(pass)
	switch {
	case p == nil:
		return complete
	case p.collapsed && p.lanes == nil:
		return ranges.Set{}
	case p.collapsed:
		return complete.Intersect(p.lanes[lane].failed)
	}
	return complete.Minus(p.lanes[lane].finished)
}

// Covers tells whether every chunk that is Complete in the queue's lanes of the
// pass is finished here.
func (l *Ledger) Covers(pass int, lanes []Lane) bool {
	for i := range lanes {
		if l.Missing(pass, i, lanes[i].Complete).Len() > 0 {
			return false
		}
	}
	return true
}

// Reopened notes that the chunks have been given back to the queue because
// this shard lacks them. Their batches count as replayed.
func (l *Ledger) Reopened(pass, lane int, positions ranges.Set) {
	at := &l.pass(pass).lanes
	if *at == nil {
		return
	}
	(*at)[lane].reopened = (*at)[lane].reopened.Union(positions)
	for c, f := range l.flight {
		if i, position := l.place(c.rank); c.pass == pass && i == lane && positions.Contains(position) {
			f.replay = math.MaxInt64
			l.flight[c] = f
		}
	}
}

// Loss is what Reckon has given up.
type Loss struct {
	// Chunks are Complete in the queue and were not finished here, Batches what
	// they had that was not counted here.
	Chunks  int64
	Batches int64
}

// Reckon settles the account with the lanes of a pass, under policy skip: what
// is Complete in the queue and not finished here is finished without its
// batches, which are lost. With policy replay, or when the pass has collapsed,
// it changes nothing.
//
// How many they are only the lane's sum can tell: it adds up the batches of its
// Complete chunks, and does not say which chunk has how many. Of these the
// ledger has counted all at the last reckoning, all of the chunks finished since
// then, and a part of those in flight; what remains is lost. So each chunk that
// was finished here has its number of batches noted until it is seen as
// Complete. It is exact at any moment, whatever else is Pending in the lane.
func (l *Ledger) Reckon(pass int, lanes []Lane) (loss Loss) {
	if l.policy != Skip {
		return loss
	}
	p := l.pass(pass)
	if p.collapsed {
		return loss
	}
	had := make([]int64, len(lanes))
	for i := range had {
		had[i] = p.lanes[i].reckoned
	}
	for c, batches := range l.recent {
		if i, at := l.place(c.rank); c.pass == pass && lanes[i].Complete.Contains(at) {
			had[i] += batches
			delete(l.recent, c)
		}
	}
	for c, f := range l.flight {
		if i, at := l.place(c.rank); c.pass == pass && lanes[i].Complete.Contains(at) {
			had[i] += f.next
			delete(l.flight, c)
		}
	}
	for i := range lanes {
		at := &p.lanes[i]
		if missing := lanes[i].Complete.Minus(at.finished); missing.Len() > 0 {
			at.finished = at.finished.Union(missing)
			loss.Chunks += missing.Len()
			loss.Batches += max(0, lanes[i].Batches-had[i])
		}
		at.reckoned = lanes[i].Batches
	}
	l.lose(&p.sums, loss.Batches)
	return loss
}

// Unreckoned is the number of chunks of which the ledger keeps a number for
// Reckon.
func (l *Ledger) Unreckoned() int { return len(l.recent) }

// Collapse replaces the ranges of a pass by the statement that all its chunks
// are finished, except the failed ones, which are noted: they may be taken
// again by hand. It refuses unless every one of the pass's chunks is either
// Complete in the queue and finished here, or Failed in the queue.
//
// A pass that has collapsed already is left as it is.
func (l *Ledger) Collapse(pass int, chunks int64, lanes []Lane) error {
	p := l.pass(pass)
	if p.collapsed {
		return nil
	}
	if int64(len(lanes)) != l.lanes {
		return fmt.Errorf("%w: pass %d was compared with %d lanes of %d", ErrNotCovered, pass, len(lanes), l.lanes)
	}
	if err := l.settled(pass, chunks, lanes); err != nil {
		return err
	}
	failed, any := make([]lane, l.lanes), false
	for i := range lanes {
		failed[i].failed = lanes[i].Failed.Minus(p.lanes[i].finished)
		any = any || failed[i].failed.Len() > 0
	}
	p.collapsed, p.lanes = true, nil
	if any {
		p.lanes = failed
	}
	l.forgetRecent()
	l.fold()
	return nil
}

// Forget gives up the passes below floor that have not collapsed: they can be
// neither compared nor replayed any more. batches is how many distinct ones all
// passes below floor had; those of them that were never counted here are lost,
// noted with the last of these passes, and returned. A second call with the same
// floor changes nothing.
func (l *Ledger) Forget(floor int, batches int64) (lost int64) {
	if floor <= l.Passes() {
		return 0
	}
	for n := l.through; n < floor; n++ {
		if p := l.pass(n); !p.collapsed {
			p.collapsed, p.lanes = true, nil
		}
	}
	for c := range l.flight {
		if c.pass < floor && l.finished(c.pass, c.rank) {
			delete(l.flight, c)
		}
	}
	counted := l.past.sums
	for n, p := range l.passes {
		if n < floor {
			counted.Add(p.sums)
		}
	}
	// Batches of chunks that failed may be counted here, and are not asked for.
	lost = max(0, batches-counted.Batches-counted.Skipped-counted.Lost)
	l.lose(&l.pass(floor-1).sums, lost)
	l.forgetRecent()
	l.fold()
	return lost
}

// forgetRecent drops what is noted of chunks of passes that have collapsed: one
// that is finished here and Failed in the queue.
func (l *Ledger) forgetRecent() {
	for c := range l.recent {
		if p := l.known(c.pass); p != nil && p.collapsed {
			delete(l.recent, c)
		}
	}
}

// fold forgets the leading passes that are finished without exception, so that
// the ledger does not grow with the number of passes. The newest pass stays:
// its sums are asked for by themselves.
func (l *Ledger) fold() {
	for {
		p := l.passes[l.through]
		if p == nil || !p.collapsed || p.lanes != nil || l.passes[l.through+1] == nil {
			return
		}
		l.past.sums.Add(p.sums)
		delete(l.passes, l.through)
		l.through++
	}
}

// settled tells why the pass cannot collapse, if it cannot.
func (l *Ledger) settled(pass int, chunks int64, lanes []Lane) error {
	var dealt int64
	for i := range lanes {
		if missing := l.Missing(pass, i, lanes[i].Complete); missing.Len() > 0 {
			return fmt.Errorf("%w: pass %d, lane %d lacks %v", ErrNotCovered, pass, i, missing)
		}
		dealt += lanes[i].Complete.Union(lanes[i].Failed).Len()
	}
	if dealt != chunks {
		return fmt.Errorf("%w: %d of %d chunks of pass %d are Complete or Failed", ErrNotCovered, dealt, chunks, pass)
	}
	return nil
}

// Passes returns the number of passes from the first one on that have
// collapsed without a gap between them.
func (l *Ledger) Passes() int {
	n := l.through
	for p := l.passes[n]; p != nil && p.collapsed; p = l.passes[n] {
		n++
	}
	return n
}
