package etcdqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// grant names one take from one lane.
type grant struct {
	laneID
	token int64
}

// takes is what a handle remembers of its takes. It lets it find again what it
// took without being told.
type takes struct {
	// granted has, for each take, the positions that were handed out and not
	// reported on.
	granted map[grant]ranges.Set
	// doubt has the lanes whose record a take without an answer may have
	// written, with the revision that it compared. It is settled when the
	// record is seen at a later one.
	doubt map[laneID]int64
	// found are tasks of such takes that are still to be handed out.
	found []Task
	// unsure are the tasks of which a report went without an answer.
	unsure map[Task]bool
}

func newTakes() takes {
	return takes{granted: make(map[grant]ranges.Set), doubt: make(map[laneID]int64), unsure: make(map[Task]bool)}
}

func (t *takes) hand(tasks []Task) {
	for _, task := range tasks {
		g := grant{task.id(), task.Token}
		at := t.granted[g]
		at.Add(task.Position)
		t.granted[g] = at
	}
}

// settle forgets a task that was reported on or is not ours any more. That may
// happen to a task more than once.
func (t *takes) settle(task Task) {
	g := grant{task.id(), task.Token}
	at := t.granted[g]
	if at.Remove(task.Position); at.IsEmpty() {
		delete(t.granted, g)
	} else {
		t.granted[g] = at
	}
	delete(t.unsure, task)
}

// Take takes up to max chunks, at least one, and returns them in the order in
// which they are to be trained. Each belongs to the caller until it is reported
// on with Complete, Fail or Release, or is taken back by Requeue. Passes with
// reopened chunks come first; no take is from two passes.
//
// With Speculate, a taker that has nothing in hand and finds nothing Todo takes
// what others have had in hand for too long without progress: their reports on
// that are ErrStale from then on.
//
// Errors: *EmptyError, which is an ErrEmpty (wait with Changed), ErrDone, *ErrFailed, ErrNoQueue. After
// any other error the chunks may have been taken; a later Take finds them.
func (q *Queue) Take(ctx context.Context, max int) ([]Task, error) {
	if max < 1 || q.c.Incarnation == "" {
		return nil, fmt.Errorf("etcdqueue: take %d chunks as incarnation %q", max, q.c.Incarnation)
	}
	if err := q.start(ctx); err != nil {
		return nil, err
	}
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	defer q.unlock()
	w := wish{count: int64(max), peers: q.c.Peers(), avoid: make(map[int]bool)}
	failures := 0
	for attempt := 0; ; attempt++ {
		if err := q.resolve(ctx); err != nil {
			return nil, fmt.Errorf("take: %w", err)
		}
		p, picks, skipped, tasks, err := q.choose(w)
		if errors.Is(err, errBehind) {
			if err := q.widen(ctx); err != nil {
				return nil, fmt.Errorf("take: %w", err)
			}
			continue
		}
		if err != nil || len(tasks) > 0 {
			return tasks, err
		}
		a, err := q.commitTake(ctx, p, picks, skipped)
		if err != nil {
			if failures++; failures == maxFailures || ctx.Err() != nil || fatal(err) {
				return nil, fmt.Errorf("take: %w", err)
			}
			if err := q.pause(ctx, attempt); err != nil {
				return nil, err
			}
			continue // resolve reads what became of it, or fails
		}
		if tasks, err = q.taken(p, picks, skipped, a, &w); err != nil || len(tasks) > 0 {
			return tasks, err
		}
		if a.outcome == conflict {
			// Somebody else works where this taker is: what the others do counts.
			if err := q.widen(ctx); err != nil {
				return nil, fmt.Errorf("take: %w", err)
			}
			if err := q.pause(ctx, attempt); err != nil {
				return nil, err
			}
		}
	}
}

// Changed waits until a Take may do better than the last one, which found
// nothing: something is Todo again, the pass or the phase has changed, or the
// queue cannot be used any more; or, with Speculate, something can be taken over
// from others. It costs no request.
func (q *Queue) Changed(ctx context.Context) error {
	return q.await(ctx, func() bool { return q.news != q.emptyAt }, q.overtakeInLocked)
}

// await waits until cond, which is called with mu held, is true, or the time has
// come that due, called likewise, has named last, if it has named any.
func (q *Queue) await(ctx context.Context, cond func() bool, due func() (time.Duration, bool)) error {
	if err := q.start(ctx); err != nil {
		return err
	}
	q.mu.Lock()
	q.waiting++ // so it does not settle
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		q.waiting--
		q.mu.Unlock()
	}()
	for {
		q.mu.Lock()
		ok, changed, err := q.unsettleLocked() && cond(), q.changed, q.fatal
		wait, timed := time.Duration(0), false
		if err == nil && !ok && q.scope == everything {
			wait, timed = due()
		}
		q.mu.Unlock()
		if err != nil || ok || timed && wait <= 0 {
			return err
		}
		var come <-chan time.Time // never, without a time
		stop := func() bool { return true }
		if timed {
			timer := q.c.Clock.Timer(wait)
			come, stop = timer.C(), timer.Stop
		}
		select {
		case <-changed:
			stop()
		case <-come:
		case <-ctx.Done():
			stop()
			return context.Cause(ctx)
		}
	}
}

// choose plans a take from the view. skipped are the conditions that the chunks
// which it moves to Failed are quarantined still. tasks are those that were
// found instead.
func (q *Queue) choose(w wish) (p *passView, picks []pick, skipped []store.Cmp, tasks []Task, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fatal != nil {
		return nil, nil, nil, nil, q.fatal
	}
	q.emptyAt = q.news
	if n := min(len(q.takes.found), int(w.count)); n > 0 {
		tasks = q.takes.found[:n:n]
		q.takes.found = q.takes.found[n:]
		return nil, nil, nil, tasks, nil
	}
	switch s := q.view.state; s.Phase {
	case PhaseTraining, PhaseDraining:
	case PhaseComplete:
		return nil, nil, nil, nil, ErrDone
	case PhaseFailed:
		return nil, nil, nil, nil, &ErrFailed{Reason: s.Reason}
	default:
		return nil, nil, nil, nil, ErrNoQueue
	}
	for _, number := range q.view.state.Takeable() {
		if p := q.view.passes[number]; p != nil && q.view.state.Phase == PhaseTraining {
			if picks := p.plan(w, q.view.failed); len(picks) > 0 {
				// The plan is worked out on a copy: the view goes on.
				return p.snapshot(picks), picks, p.quarantined(picks, q.view.failed), nil, nil
			}
		}
	}
	if q.scope != everything {
		return nil, nil, nil, nil, errBehind
	}
	if p, picks := q.overtakeLocked(w); len(picks) > 0 {
		return p.snapshot(picks), picks, nil, nil, nil
	}
	return nil, nil, nil, nil, &EmptyError{Pass: q.view.state.Pass}
}

// snapshot is the pass with only the picked lanes, as they are now.
func (p *passView) snapshot(picks []pick) *passView {
	c := *p
	c.lanes = make([]slot, len(p.lanes))
	for _, k := range picks {
		c.lanes[k.lane] = p.lanes[k.lane]
	}
	return &c
}

// quarantined are the conditions that the chunks which picks move to Failed have
// not been readmitted.
func (p *passView) quarantined(picks []pick, failed quarantine) []store.Cmp {
	var conds []store.Cmp
	for _, k := range picks {
		for position := range k.failed.All() {
			chunk := p.task(k.lane, position, 0).Chunk
			conds = append(conds, store.Unchanged(failedKey(chunk), failed[chunk]))
		}
	}
	return conds
}

// commitTake writes what was planned: one transaction, which compares each lane,
// that the pass is still the one that the plan was made for, and skipped.
func (q *Queue) commitTake(ctx context.Context, p *passView, picks []pick, skipped []store.Cmp) (answer, error) {
	conds := make([]store.Cmp, 0, len(picks)+1+len(skipped))
	puts := make([]store.Op, 0, len(picks))
	for _, k := range picks {
		s := p.lanes[k.lane]
		conds = append(conds, store.Unchanged(laneKey(p.number, k.lane), s.rev))
		puts = append(puts, store.Put(laneKey(p.number, k.lane), q.takeFrom(s, k).Encode(), 0))
	}
	conds = append(conds, store.Created(passKey(p.number), p.created))
	conds = append(conds, skipped...)
	a, err := q.commit(ctx, conds, nil, puts)
	if err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, k := range picks {
			q.takes.doubt[laneID{p.number, k.lane}] = p.lanes[k.lane].rev
		}
	}
	return a, err
}

func (q *Queue) takeFrom(s slot, k pick) Lane {
	l := s.lane.Skip(k.failed)
	if k.at.IsEmpty() {
		return l
	}
	ok, h := false, Holder{q.c.Incarnation, s.seen}
	if k.from == (Holder{}) {
		l, ok = l.Take(k.at, q.c.Name, h)
	} else {
		l, ok = l.Overtake(k.at, k.from, q.c.Name, h)
	}
	if !ok {
		panic("etcdqueue: planned to take what is not there")
	}
	return l
}

// taken puts the answer of a take into the view. If it was written it returns
// the tasks; if not, w learns which lanes others were just at.
func (q *Queue) taken(p *passView, picks []pick, skipped []store.Cmp, a answer, w *wish) ([]Task, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if a.outcome != written {
		return nil, q.collidedLocked(p, picks, skipped, a, w)
	}
	var tasks []Task
	for _, k := range picks {
		old := p.lanes[k.lane]
		if v := q.view.passes[p.number]; v != nil && v.created == p.created {
			v.set(k.lane, slot{lane: q.takeFrom(old, k), rev: a.revision, seen: a.revision})
			v.home = k.lane
		}
		delete(q.takes.doubt, laneID{p.number, k.lane})
		for position := range k.at.All() {
			tasks = append(tasks, p.task(k.lane, position, old.seen))
		}
	}
	if !p.shuffle {
		sortByRank(tasks)
	}
	q.takes.hand(tasks)
	q.overtaken(p, picks)
	q.settleLocked(p, picks, w)
	if len(tasks) == 0 { // only quarantined chunks were moved
		q.wakeLocked(false)
	}
	return tasks, nil
}

func (q *Queue) collidedLocked(p *passView, picks []pick, skipped []store.Cmp, a answer, w *wish) error {
	for i, kv := range a.kvs[:len(picks)] {
		lane := picks[i].lane
		if kv.ModRev == p.lanes[lane].rev {
			continue
		}
		w.avoid[lane] = true
		if w.peers > 1 {
			w.skip++
		}
		if _, err := q.learnLocked(kv, a.revision, !kv.Exists()); err != nil {
			return err
		}
	}
	if kv := a.kvs[len(picks)]; kv.CreateRev != p.created {
		// The pass is over and removed; the watch will say where the job is.
		delete(q.view.passes, p.number)
	}
	for i, kv := range a.kvs[len(picks)+1:] {
		if c, ok := parseFailedKey(skipped[i].Key); ok {
			q.view.setFailed(c, kv)
		}
	}
	return nil
}

// resolve looks at the lanes that a take without an answer may have written.
// Entries of ours in them that were never handed out are that take's.
func (q *Queue) resolve(ctx context.Context) error {
	q.mu.Lock()
	byPass := make(map[int][]int)
	for id := range q.takes.doubt {
		byPass[id.pass] = append(byPass[id.pass], id.lane)
	}
	q.mu.Unlock()
	for pass, lanes := range byPass {
		p, err := q.fetch(ctx, pass, lanes)
		if err != nil {
			return fmt.Errorf("see what became of a take: %w", err)
		}
		q.mu.Lock()
		for _, lane := range lanes {
			q.adoptLocked(laneID{pass, lane}, p)
		}
		q.mu.Unlock()
	}
	return nil
}

func (q *Queue) adoptLocked(id laneID, p *passView) {
	if p == nil {
		delete(q.takes.doubt, id)
		return
	}
	s := p.lanes[id.lane]
	if s.rev == q.takes.doubt[id] {
		return // it may still be on its way
	}
	delete(q.takes.doubt, id)
	for _, e := range s.lane.Pending {
		if e.Incarnation != q.c.Incarnation || !q.takes.granted[grant{id, e.Token}].IsEmpty() {
			continue
		}
		var tasks []Task
		for position := range e.At.All() {
			tasks = append(tasks, p.task(id.lane, position, e.Token))
		}
		q.takes.hand(tasks)
		q.takes.found = append(q.takes.found, tasks...)
		if !p.shuffle {
			sortByRank(q.takes.found)
		}
	}
}

// sortByRank puts tasks into the order of the data.
func sortByRank(tasks []Task) {
	slices.SortFunc(tasks, func(a, b Task) int {
		return cmp.Or(cmp.Compare(a.Pass, b.Pass), cmp.Compare(a.Rank, b.Rank))
	})
}
