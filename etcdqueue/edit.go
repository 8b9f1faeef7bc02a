package etcdqueue

import (
	"context"
	"errors"

	"starfish/internal/store"
)

// edit is a change of some lanes by compare-and-swap. step works it out from
// the lanes as they are known, again after each conflict. unsure tells it that
// an earlier attempt went without an answer and may have been written.
type edit struct {
	ids    []laneID
	guards []store.Cmp
	step   func(lanes map[laneID]Lane, unsure bool) draft
}

// draft is what one step wants to write.
type draft struct {
	lanes map[laneID]Lane
	puts  []store.Op
	// surprised: something that should be in the lanes is not. Before it is
	// believed the lanes are read again.
	surprised bool
}

// maxFailures is how often a transaction may go without an answer, although
// reads are answered, before the caller is told.
const maxFailures = 5

// run repeats an edit until it is written or there is nothing to write. unsure
// is true if it returns an error and may have been written nevertheless.
func (q *Queue) run(ctx context.Context, e edit) (unsure bool, err error) {
	fresh, failures := false, 0
	for attempt := 0; ; attempt++ {
		slots, err := q.known(ctx, e.ids)
		if err != nil {
			return unsure, err
		}
		lanes := make(map[laneID]Lane, len(slots))
		for id, s := range slots {
			lanes[id] = s.lane
		}
		d := e.step(lanes, unsure)
		if d.surprised && !fresh {
			if _, err := q.reread(ctx, e.ids); err != nil {
				return unsure, err
			}
			fresh = true
			continue
		}
		if len(d.lanes) == 0 {
			return false, nil
		}
		a, err := q.swap(ctx, e, slots, d)
		if err != nil {
			unsure = true
			if failures++; failures == maxFailures || ctx.Err() != nil || fatal(err) {
				return unsure, err
			}
			if _, err := q.reread(ctx, e.ids); err != nil {
				return unsure, err
			}
			if err := q.pause(ctx, attempt); err != nil {
				return unsure, err
			}
			fresh = true
			continue
		}
		switch a.outcome {
		case written:
			q.wrote(d.lanes, a.revision)
			return false, nil
		case guarded:
			return false, ErrGuard
		case conflict:
			if err := q.learn(a); err != nil {
				return unsure, err
			}
			if err := q.pause(ctx, attempt); err != nil {
				return unsure, err
			}
		}
	}
}

// swap writes a draft if its lanes are as they were.
func (q *Queue) swap(ctx context.Context, e edit, slots map[laneID]slot, d draft) (answer, error) {
	conds := make([]store.Cmp, 0, len(d.lanes))
	puts := make([]store.Op, 0, len(d.lanes)+len(d.puts))
	for _, id := range e.ids {
		if l, ok := d.lanes[id]; ok {
			conds = append(conds, store.Unchanged(id.key(), slots[id].rev))
			puts = append(puts, store.Put(id.key(), l.Encode(), 0))
		}
	}
	return q.commit(ctx, conds, e.guards, append(puts, d.puts...))
}

// known is the lanes as the view has them; those that it does not have are read.
func (q *Queue) known(ctx context.Context, ids []laneID) (map[laneID]slot, error) {
	slots := make(map[laneID]slot, len(ids))
	var unknown []laneID
	q.mu.Lock()
	for _, id := range ids {
		if p := q.view.passes[id.pass]; p != nil && id.lane < len(p.lanes) && p.lanes[id.lane].rev > 0 {
			slots[id] = p.lanes[id.lane]
		} else {
			unknown = append(unknown, id)
		}
	}
	q.mu.Unlock()
	read, err := q.reread(ctx, unknown)
	for id, s := range read {
		slots[id] = s
	}
	return slots, err
}

// reread reads lanes from the store. A lane whose pass was removed has no
// chunks.
func (q *Queue) reread(ctx context.Context, ids []laneID) (map[laneID]slot, error) {
	byPass := make(map[int][]int)
	for _, id := range ids {
		byPass[id.pass] = append(byPass[id.pass], id.lane)
	}
	slots := make(map[laneID]slot, len(ids))
	for pass, lanes := range byPass {
		p, err := q.fetch(ctx, pass, lanes)
		if err != nil {
			return nil, err
		}
		for _, l := range lanes {
			slots[laneID{pass, l}] = slot{}
			if p != nil && l < len(p.lanes) {
				slots[laneID{pass, l}] = p.lanes[l]
			}
		}
	}
	return slots, nil
}

// fetch reads lanes of one pass and puts them into the view, if it has the
// pass. What it returns, at least as new as the call, is nil if the pass has
// been removed.
func (q *Queue) fetch(ctx context.Context, pass int, lanes []int) (*passView, error) {
	_, p, _, err := q.readPass(ctx, pass, lanes)
	if errors.Is(err, ErrNoPass) {
		return nil, nil //nolint:nilnil // that there is no pass is an answer
	}
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if v := q.view.passes[pass]; v != nil && v.created == p.created {
		for _, l := range lanes {
			if l < len(p.lanes) {
				v.learn(l, p.lanes[l])
				p.set(l, v.lanes[l])
			}
		}
	}
	return p, nil
}

// learn puts the records of a conflict into the view.
func (q *Queue) learn(a answer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unsettleLocked()
	for _, kv := range a.kvs {
		if _, err := q.learnLocked(kv, a.revision, !kv.Exists()); err != nil {
			return err
		}
	}
	return nil
}

// wrote puts what was just written into the view.
func (q *Queue) wrote(lanes map[laneID]Lane, rev int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	news := false
	for id, l := range lanes {
		if p := q.view.passes[id.pass]; p != nil && id.lane < len(p.lanes) {
			p.set(id.lane, slot{lane: l, rev: rev, seen: rev, theirs: p.lanes[id.lane].theirs})
			news = news || !l.Todo.IsEmpty()
		}
	}
	q.wakeLocked(news)
}
