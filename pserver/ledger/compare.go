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

// Forgive finishes chunks without their batches: under policy skip, what is
// Complete in the queue and missing here stays lost. The number of lost batches
// is the caller's to tell, for only the lanes know it.
func (l *Ledger) Forgive(pass, lane int, positions ranges.Set, batches int64) {
	p := l.pass(pass)
	p.sums.Lost += batches
	l.counted += batches
	if p.lanes == nil {
		return
	}
	at := &p.lanes[lane]
	at.reopened = at.reopened.Minus(positions)
	if p.collapsed {
		at.failed = at.failed.Minus(positions)
	} else {
		at.finished = at.finished.Union(positions)
	}
	for c := range l.flight {
		if i, position := l.place(c.rank); c.pass == pass && i == lane && positions.Contains(position) {
			delete(l.flight, c)
		}
	}
}

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
	l.pass(floor - 1).sums.Lost += lost
	l.fold()
	return lost
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
