package etcdqueue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/failpoint"
	"starfish/internal/store"
)

// AwaitTurn waits until the lanes may allow a Turn, as far as this handle's
// copy of them knows. It costs no request.
func (q *Queue) AwaitTurn(ctx context.Context) error {
	return q.await(ctx, func() bool { return q.view.ripe() }, never)
}

func never() (time.Duration, bool) { return 0, false }

// Turn does what the lanes allow, see State: it takes finished passes off the
// list of reopened ones, begins the next pass, or lets the job drain. A pass
// of which every chunk is Failed fails the job. Lanes and `state` are read
// together, and the write compares `state`, which every reopen writes too.
//
// next gives the manifest of a pass; without next, or if it says false, it is
// that of the pass before. Turn returns `state` as it then is; calling it when
// there is nothing to do, or by two stewards at once, does no harm.
func (q *Queue) Turn(ctx context.Context, next func(pass int) (Manifest, bool), guards ...store.Cmp) (State, error) {
	return q.turnWith(ctx, next, nil, guards, false)
}

// TurnWithin is Turn, but it begins no other pass, whatever the lanes allow by
// the time that it reads them.
func (q *Queue) TurnWithin(ctx context.Context, guards ...store.Cmp) (State, error) {
	return q.turnWith(ctx, nil, nil, guards, true)
}

// TurnFrom is Turn on the condition that `state` is still from, and puts ops in
// the transaction that leaves from's pass: so they say something of the pass as
// it was when it ended. It is ErrGuard if `state` has changed; if the lanes
// allow nothing, or no other pass, ops are not put.
func (q *Queue) TurnFrom(ctx context.Context, from State, ops []store.Op, guards ...store.Cmp) (State, error) {
	return q.turnWith(ctx, nil, ops, append(slices.Clone(guards), from.Guard()), false)
}

// Prospect is what Turn would do.
type Prospect struct {
	// Now is `state`, After what would become of it.
	Now, After State
	// Pass sums up the lanes of the current pass.
	Pass Totals
}

// Leaves tells whether Turn would begin another pass.
func (p Prospect) Leaves() bool { return p.After.Phase == PhaseTraining && p.After.Pass != p.Now.Pass }

// Prospect tells what Turn would do now. While `state` does not change, that
// stays so.
func (q *Queue) Prospect(ctx context.Context) (Prospect, error) {
	s, passes, err := q.takeable(ctx)
	if err != nil {
		return Prospect{}, fmt.Errorf("look ahead: %w", err)
	}
	after, sums, err := q.prospect(ctx, s, passes)
	return Prospect{Now: s, After: after, Pass: sums}, err
}

// prospect is `state` after what the lanes allow.
func (q *Queue) prospect(ctx context.Context, s State, passes map[int]*passView) (after State, sums Totals, err error) {
	after = s.turned(func(p int) bool { return passes[p].open == 0 }, q.c.Passes)
	if now := passes[s.Pass]; now != nil {
		sums = Sum(now.all())
		if s.Phase == PhaseTraining && now.open == 0 && allFailed(sums) {
			after.Phase, after.Pass = PhaseFailed, s.Pass // no other pass begins
			after.Reason, err = q.whyAllFailed(ctx, s.Pass)
		}
	}
	return after, sums, err
}

func (q *Queue) turnWith(
	ctx context.Context, next func(pass int) (Manifest, bool), ops []store.Op, guards []store.Cmp, stay bool,
) (State, error) {
	for attempt := 0; ; attempt++ {
		s, passes, err := q.takeable(ctx)
		if err != nil {
			return State{}, fmt.Errorf("turn: %w", err)
		}
		after, _, err := q.prospect(ctx, s, passes)
		if err != nil {
			return State{}, fmt.Errorf("turn: %w", err)
		}
		if stay && after.Phase == PhaseTraining {
			after.Pass = s.Pass
		}
		if after.Phase == s.Phase && after.Pass == s.Pass && len(after.Reopened) == len(s.Reopened) {
			return s, nil
		}
		var puts []store.Op
		m := passes[s.Pass].manifest
		if after.Pass != s.Pass {
			puts = append(puts, ops...)
			if next != nil {
				if given, ok := next(after.Pass); ok {
					m = given
				}
			}
			m.V = manifestVersion
			puts = append(puts, store.Put(passKey(after.Pass), m.encode(), 0))
		}
		failpoint.Hit(failpoint.BeforeTurn)
		done, err := q.writeState(ctx, s, &after, puts, guards)
		if err != nil {
			return State{}, fmt.Errorf("turn: %w", err)
		}
		if done {
			failpoint.Hit(failpoint.AfterTurn)
			q.turnedTo(s, after, m)
			return after, nil
		}
		if err := q.pause(ctx, attempt); err != nil {
			return State{}, err
		}
	}
}

// whyAllFailed is the reason of a job of which every chunk of a pass failed: it
// names the first of them and what was the matter with it.
func (q *Queue) whyAllFailed(ctx context.Context, pass int) (string, error) {
	reason := fmt.Sprintf("every chunk of pass %d failed", pass)
	failed, err := q.FailedChunks(ctx)
	if err != nil || len(failed) == 0 {
		return reason, err
	}
	return fmt.Sprintf("%s; chunk %d: %s", reason, failed[0].Chunk, failed[0].Reason), nil
}

// turnedTo puts the turn into the view, ahead of the watch.
func (q *Queue) turnedTo(before, after State, m Manifest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.view.state.Phase == "" || !q.view.setState(after) {
		return // the follower has not begun, or has seen it already
	}
	if after.Pass != before.Pass {
		q.mergeLocked(newPassView(&q.c, after.Pass, m, after.Revision, after.Revision, after.Lanes))
	}
	q.wakeLocked(true)
}

// writeState replaces `state` if it is as it was; false if it is not.
func (q *Queue) writeState(ctx context.Context, from State, to *State, puts []store.Op, guards []store.Cmp) (bool, error) {
	puts = append(puts, store.Put(stateKey, to.encode(), 0))
	a, err := q.commit(ctx, []store.Cmp{from.Guard()}, guards, puts)
	if err != nil {
		return false, err
	}
	if a.outcome == guarded {
		return false, ErrGuard
	}
	to.Revision = a.revision
	return a.outcome == written, nil
}

// takeable reads `state` and the passes that may be taken from. Where they do
// not fit into one read, every read has shown the same `state`: while that is
// so, a finished pass stays finished, since a reopen would have changed it.
func (q *Queue) takeable(ctx context.Context) (State, map[int]*passView, error) {
	// What the follower knows will do to begin with: it is verified below.
	q.mu.Lock()
	s := q.view.state
	q.mu.Unlock()
	var err error
	if s.Phase == "" {
		s, err = q.State(ctx)
	}
	for attempt := 0; err == nil; attempt++ {
		passes := make(map[int]*passView)
		now := s
		for _, number := range s.Takeable() {
			if passes[number], now, err = q.readUnder(ctx, s, number); err != nil || passes[number] == nil {
				break
			}
		}
		if err != nil {
			break
		}
		if now.Revision == s.Revision {
			return s, passes, nil
		}
		s, err = now, q.pause(ctx, attempt)
	}
	return State{}, nil, err
}

// readUnder reads a pass if `state` is still s. If not, the pass is nil and the
// present state is returned.
func (q *Queue) readUnder(ctx context.Context, s State, pass int) (*passView, State, error) {
	now, p, _, err := q.readPass(ctx, pass, nil)
	if now.Revision != 0 && now.Revision != s.Revision {
		return nil, now, nil
	}
	return p, now, err
}

// entryID names an entry of a lane.
type entryID struct {
	laneID
	Holder
}

// sighting is what was last seen of an entry, and since when.
type sighting struct {
	beat  int64
	since time.Time
}

// Requeue takes back, Pending → Todo, what was taken by incarnations that are
// not registered any more, and what has shown no progress for the stall timeout
// on this process's clock, counted from when this handle first saw it so. It
// returns the number of chunks.
//
// registered says which incarnations are. It is called after the lanes were
// read, so that whoever had taken something by then had registered before; nil
// looks at stalled entries only.
func (q *Queue) Requeue(ctx context.Context, registered func(context.Context) (map[string]bool, error), guards ...store.Cmp) (int, error) {
	_, passes, err := q.takeable(ctx)
	if err != nil {
		return 0, fmt.Errorf("requeue: %w", err)
	}
	var live map[string]bool
	if registered != nil {
		if live, err = registered(ctx); err != nil {
			return 0, fmt.Errorf("requeue: %w", err)
		}
	}
	lost := q.judge(passes, func(e Entry) bool { return registered == nil || live[e.Incarnation] })
	return q.requeue(ctx, lost, guards)
}

// Depth sums up the passes that could be taken from when Requeue last looked: its
// Todo is the work that waits for takers.
func (q *Queue) Depth() Totals {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.depth
}

// judge notes what is seen of each entry and chooses those that are to go back,
// each with the beat at which it was found so. The beat of an entry whose owner
// is gone does not matter: it is -1.
func (q *Queue) judge(passes map[int]*passView, registered func(Entry) bool) map[entryID]int64 {
	now := q.c.Clock.Now()
	lost := make(map[entryID]int64)
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := make(map[entryID]sighting)
	q.depth = Totals{}
	for number, p := range passes {
		q.depth = q.depth.Add(Sum(p.all()))
		for lane, s := range p.lanes {
			for _, e := range s.lane.Pending {
				id := entryID{laneID{number, lane}, Holder{e.Incarnation, e.Token}}
				old, known := q.seen[id]
				if !known || old.beat != e.Beat {
					old = sighting{beat: e.Beat, since: now}
				}
				seen[id] = old
				switch {
				case !registered(e):
					lost[id] = -1
				case now.Sub(old.since) >= q.c.StallTimeout:
					lost[id] = e.Beat
				}
			}
		}
	}
	q.seen = seen
	return lost
}

// requeue moves the chosen entries, those that stalled only if they still do.
func (q *Queue) requeue(ctx context.Context, lost map[entryID]int64, guards []store.Cmp) (int, error) {
	var tasks []Task
	for id := range lost {
		tasks = append(tasks, Task{Pass: id.pass, Lane: id.lane})
	}
	slices.SortFunc(tasks, func(a, b Task) int { return slices.Compare([]int{a.Pass, a.Lane}, []int{b.Pass, b.Lane}) })
	if len(tasks) == 0 {
		return 0, nil
	}
	if err := q.lock(ctx); err != nil {
		return 0, err
	}
	defer q.unlock()
	total := 0
	for _, g := range groups(tasks) {
		var moved []Entry
		e := edit{ids: g.ids, guards: guards, step: func(lanes map[laneID]Lane, _ bool) draft {
			d := draft{lanes: make(map[laneID]Lane)}
			moved = nil
			for _, id := range g.ids {
				l, n := lanes[id].Requeue(func(e Entry) bool {
					beat, ok := lost[entryID{id, Holder{e.Incarnation, e.Token}}]
					if ok = ok && (beat < 0 || beat == e.Beat); ok {
						moved = append(moved, e)
					}
					return ok
				})
				if n > 0 {
					d.lanes[id] = l
				}
			}
			return d
		}}
		if _, err := q.run(ctx, e); err != nil {
			return total, fmt.Errorf("requeue: %w", err)
		}
		for _, e := range moved {
			total += int(e.At.Len())
			q.c.Log.WithFields(logrus.Fields{"trainer": e.Owner, "incarnation": e.Incarnation, "token": e.Token, "positions": e.At.String()}).
				Warn("chunks taken back from a trainer that is gone or stalled")
		}
	}
	return total, nil
}

// RemovePasses removes lanes and manifests of the passes below `below`, as far
// as none of them is current or reopened, moves the floor and keeps their sums
// in `state`: one transaction, which compares `state`. The caller answers for
// nobody needing them any more, and adds the guards that this hangs on.
func (q *Queue) RemovePasses(ctx context.Context, below int, guards ...store.Cmp) error {
	for attempt := 0; ; attempt++ {
		s, err := q.State(ctx)
		if err != nil {
			return fmt.Errorf("remove passes: %w", err)
		}
		after := s
		after.Floor = s.removable(below)
		if after.Floor == s.Floor || s.Phase.Ended() {
			return nil
		}
		same := true
		for p := s.Floor; p < after.Floor && same; p++ {
			pass, _, err := q.readUnder(ctx, s, p)
			if err != nil {
				return fmt.Errorf("remove passes: %w", err)
			}
			if same = pass != nil; same {
				after.Past = after.Past.Add(Sum(pass.all()))
			}
		}
		if same {
			done, err := q.writeState(ctx, s, &after, []store.Op{
				store.DeleteRange(lanesPrefix(s.Floor), lanesPrefix(after.Floor)),
				store.DeleteRange(passKey(s.Floor), passKey(after.Floor)),
			}, guards)
			if err != nil {
				return fmt.Errorf("remove passes: %w", err)
			}
			if done {
				return nil
			}
		}
		if err := q.pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// Finish ends the job: with PhaseComplete, which only a draining job may
// become, or with PhaseFailed and its reason. ops, the job's result, are put in
// the same transaction. Who found the job complete looked at some State; its
// Guard belongs among the guards. Nil if the phase is that already.
func (q *Queue) Finish(ctx context.Context, phase Phase, reason string, ops []store.Op, guards ...store.Cmp) error {
	for attempt := 0; ; attempt++ {
		s, err := q.State(ctx)
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		if s.Phase == phase {
			return nil
		}
		if !phase.Ended() || s.Phase.Ended() || phase == PhaseComplete && s.Phase != PhaseDraining {
			return fmt.Errorf("finish: %w: from %s to %s", ErrPhase, s.Phase, phase)
		}
		after := s
		after.Phase, after.Reason = phase, reason
		done, err := q.writeState(ctx, s, &after, slices.Clone(ops), guards)
		if err != nil {
			return fmt.Errorf("finish: %w", err)
		}
		if done {
			return nil
		}
		if err := q.pause(ctx, attempt); err != nil {
			return err
		}
	}
}
