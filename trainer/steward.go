package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/failpoint"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/internal/store"
	"starfish/job"
)

const stewardKey = "steward"

// checkInterval is how often the steward looks at what no watch tells it: an
// entry whose beat has not changed.
const checkInterval = time.Second

// steward does the housekeeping that must be done once. Every trainer runs
// one; it works only while it holds the key `steward`, whose create revision
// guards each of its writes, and each of its duties can be repeated by the next
// one.
type steward struct {
	w       *worker
	member  *membership.Member
	log     logrus.FieldLogger
	holding func(bool) // tells /status

	guard   store.Cmp
	trouble remind.Reminder
	ended   time.Time // when it saw the job drain
	// seen is one more than the last pass that it saw, 0 for none, and toldPass
	// when it told of one.
	seen     int
	toldPass time.Time
	// still is held while a pass is evaluated, so that this steward itself does
	// not change the state that it is looking at.
	still chan struct{}
}

// run holds the key whenever nobody else does, until ctx ends or the job has
// ended (nil).
func (s *steward) run(ctx context.Context) error {
	for {
		if err := s.acquire(ctx); err != nil {
			return err
		}
		s.holding(true)
		err := s.serve(ctx)
		s.holding(false)
		s.w.metrics.queue(etcdqueue.Totals{})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return nil
		}
		if fatal := s.fatal(err); fatal != nil {
			return fatal
		}
		if now := s.w.clock.Now(); s.trouble.Due(now) {
			s.log.WithError(err).Warn("steward starts over")
			s.trouble.Over(now)
		}
		if err := clock.Sleep(ctx, s.w.clock, backOff(4)); err != nil {
			return err
		}
	}
}

// fatal tells the errors after which starting over is of no use.
func (s *steward) fatal(err error) error {
	if !retryable(err) {
		return err
	}
	return nil
}

// acquire waits until this process holds the key.
func (s *steward) acquire(ctx context.Context) error {
	value, err := json.Marshal(map[string]any{"v": 1, "name": s.member.Name(), "incarnation": s.member.Incarnation()})
	if err != nil {
		return err
	}
	for {
		r, err := s.w.st.Txn(ctx, store.Txn{
			If:   []store.Cmp{store.Absent(stewardKey), s.member.Registered()},
			Then: []store.Op{store.Put(stewardKey, value, s.member.Lease())},
			Else: []store.Op{store.Get(stewardKey)},
		})
		switch {
		case err != nil:
			// It may have been written: the next attempt finds it.
			if err := clock.Sleep(ctx, s.w.clock, backOff(4)); err != nil {
				return err
			}
		case r.Succeeded:
			s.guard = store.Created(stewardKey, r.Revision)
			return nil
		default:
			kv := r.First(0)
			if kv.Exists() && kv.Lease == s.member.Lease() {
				s.guard = store.Created(stewardKey, kv.CreateRev)
				return nil
			}
			if err := s.awaitVacancy(ctx, r.Revision+1); err != nil {
				return err
			}
		}
	}
}

// awaitVacancy waits until the key may be free, at the longest for the time to
// live of a lease: a watch may miss what happens.
func (s *steward) awaitVacancy(ctx context.Context, rev int64) error {
	limit, cancel := context.WithTimeout(ctx, s.w.job.Spec.LeaseTTL)
	defer cancel()
	for r := range s.w.st.Watch(limit, stewardKey, "", rev) {
		for _, e := range r.Events {
			if e.Deleted {
				return nil
			}
		}
		if r.Err != nil && limit.Err() == nil {
			return clock.Sleep(ctx, s.w.clock, backOff(4))
		}
	}
	return context.Cause(ctx)
}

// serve does the duties until the job has ended (nil) or something fails: the
// key was lost, or the store did not answer.
func (s *steward) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	ended := make(chan struct{})
	g.Go(func() error {
		defer close(ended)
		return s.turns(ctx)
	})
	g.Go(func() error { return s.requeues(ctx, ended) })
	g.Go(func() error { return s.removals(ctx, ended) })
	return g.Wait()
}

// turns turns the passes and ends the job.
func (s *steward) turns(ctx context.Context) error {
	for {
		state, err := s.turn(ctx)
		if err != nil {
			return fmt.Errorf("turn: %w", err)
		}
		s.observe(state)
		switch state.Phase {
		case etcdqueue.PhaseComplete, etcdqueue.PhaseFailed:
			return nil
		case etcdqueue.PhaseDraining:
			if err := s.finish(ctx, state); err != nil {
				return err
			}
		default:
			if err := s.w.queue.AwaitTurn(ctx); err != nil {
				return fmt.Errorf("await turn: %w", err)
			}
		}
	}
}

// turnEvery is how often the turn of a pass is told at most.
const turnEvery = time.Second

// observe notes the times of the first take and of the last complete, as far
// as this process sees them, and tells of a new pass.
func (s *steward) observe(state etcdqueue.State) {
	if now := s.w.clock.Now(); state.Phase == etcdqueue.PhaseTraining && s.seen > 0 && state.Pass >= s.seen && now.Sub(s.toldPass) >= turnEvery {
		s.toldPass = now
		s.log.WithField("pass", state.Pass).Info("the pass has turned")
	}
	s.seen = state.Pass + 1
	if s.ended.IsZero() && state.Phase == etcdqueue.PhaseDraining {
		s.ended = s.w.clock.Now()
	}
	if state.Phase == etcdqueue.PhaseTraining {
		s.ended = time.Time{}
	}
}

// requeues takes back the chunks of trainers that are gone, at once, and those
// of trainers that do not move.
func (s *steward) requeues(ctx context.Context, ended <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.every(ctx, ended, membership.WatchRoster(ctx, s.w.st, membership.Trainers), func() error {
		n, err := s.w.queue.Requeue(ctx, s.registered, s.guard)
		if err != nil {
			return fmt.Errorf("requeue: %w", err)
		}
		s.w.metrics.queue(s.w.queue.Depth())
		if n > 0 {
			s.log.WithField("chunks", n).Info("chunks of lost trainers are Todo again")
		}
		return nil
	})
}

// every does a duty once per checkInterval, and when woken, until the job has
// ended (nil) or the duty fails.
func (s *steward) every(ctx context.Context, ended <-chan struct{}, wake <-chan membership.Roster, duty func() error) error {
	for {
		timer := s.w.clock.Timer(checkInterval)
		select {
		case <-ended:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C():
		case <-wake:
			timer.Stop()
		}
		if err := duty(); err != nil {
			return err
		}
	}
}

func (s *steward) registered(ctx context.Context) (map[string]bool, error) {
	roster, err := membership.ReadRoster(ctx, s.w.st, membership.Trainers)
	if err != nil {
		return nil, err
	}
	return roster.Live(), nil
}

// removals removes the lanes of passes that every listed checkpoint covers.
func (s *steward) removals(ctx context.Context, ended <-chan struct{}) error {
	return s.every(ctx, ended, nil, func() error {
		if err := s.removePasses(ctx); err != nil {
			return fmt.Errorf("remove passes: %w", err)
		}
		return nil
	})
}

func (s *steward) removePasses(ctx context.Context) error {
	select {
	case s.still <- struct{}{}:
		defer func() { <-s.still }()
	default:
		return nil
	}
	state, err := s.w.queue.State(ctx)
	if err != nil || state.Phase.Ended() || state.Floor >= state.Pass {
		return ignoreEnd(err)
	}
	view, err := membership.ReadView(ctx, s.w.st)
	if err != nil {
		return err
	}
	metas, _, err := checkpoint.ListAll(ctx, s.w.st, s.w.job.Spec.Shards)
	if err != nil {
		return err
	}
	below := min(coveredByAll(metas), state.Pass)
	if below <= state.Floor {
		return nil
	}
	err = s.w.queue.RemovePasses(ctx, below, s.guard, view.Guard())
	if errors.Is(err, etcdqueue.ErrGuard) {
		return nil // the next look sees what has changed
	}
	return ignoreEnd(err)
}

// coveredByAll is the number of passes that every listed checkpoint of every
// shard covers; 0 while a shard has none.
func coveredByAll(metas [][]checkpoint.Meta) int {
	covered := -1
	for _, ms := range metas {
		if len(ms) == 0 {
			return 0
		}
		for _, m := range ms {
			if covered < 0 || m.Passes < covered {
				covered = m.Passes
			}
		}
	}
	return max(covered, 0)
}

func ignoreEnd(err error) error {
	if errors.Is(err, etcdqueue.ErrPhase) || errors.Is(err, etcdqueue.ErrNoQueue) {
		return nil
	}
	return err
}

// finish waits until the newest checkpoint of every shard covers every pass,
// evaluates, and ends the job. It returns nil when the job has ended or has
// gone back to training.
func (s *steward) finish(ctx context.Context, state etcdqueue.State) error {
	s.log.WithField("pass", state.Pass).Info("every chunk is dealt with: waiting for the last checkpoints")
	view, metas, err := s.awaitCovered(ctx, state)
	if err != nil || view == nil {
		return err
	}
	test, err := s.lastEvaluation(ctx)
	if err != nil {
		return err
	}
	ops, err := s.lastWrites(ctx, metas, test)
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.Finishing)
	err = s.w.queue.Finish(ctx, etcdqueue.PhaseComplete, "", ops, s.guard, state.Guard(), view.Guard())
	if errors.Is(err, etcdqueue.ErrGuard) {
		return s.holds(ctx) // a shard has moved or reopened: the next turn looks again
	}
	if err == nil {
		s.log.WithField("pass", state.Pass).Info("the job is complete, its result is written")
	}
	return err
}

func (s *steward) lastEvaluation(ctx context.Context) (*job.TestResult, error) {
	if !s.w.tests() {
		return nil, nil
	}
	session, err := s.w.client.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	return s.w.evaluate(ctx, session)
}

// lastWrites are the result and, unless the model has no metrics, the record of
// the last pass.
func (s *steward) lastWrites(ctx context.Context, metas [][]checkpoint.Meta, test *job.TestResult) ([]store.Op, error) {
	result, last, err := s.result(ctx, metas, test)
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Put(job.KeyResult, value, 0)}
	if s.w.pushOnly {
		return ops, nil
	}
	op, err := last.Put()
	return append(ops, op), err
}

// awaitCovered waits for the last checkpoints. It returns a nil view if the
// state has changed meanwhile.
func (s *steward) awaitCovered(ctx context.Context, state etcdqueue.State) (*membership.View, [][]checkpoint.Meta, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		r, err := store.Read(ctx, s.w.st, store.Get("state"))
		if err != nil {
			return nil, nil, err
		}
		if r.First(0).ModRev != state.Revision {
			return nil, nil, nil
		}
		view, err := membership.ReadView(ctx, s.w.st)
		if err != nil {
			return nil, nil, err
		}
		metas, _, err := checkpoint.ListAll(ctx, s.w.st, s.w.job.Spec.Shards)
		if err != nil {
			return nil, nil, err
		}
		if covered(view, metas, s.w.job.Spec.Train.Passes) {
			return &view, metas, nil
		}
		if err := s.awaitChange(ctx, r.Revision+1); err != nil {
			return nil, nil, err
		}
	}
}

// covered tells whether the newest checkpoint of every shard is of the shard's
// present generation and covers all passes.
func covered(view membership.View, metas [][]checkpoint.Meta, passes int) bool {
	for i, ms := range metas {
		if len(ms) == 0 || i >= len(view.Shards) {
			return false
		}
		if ms[0].Generation != view.Shards[i].Generation || ms[0].Passes < passes {
			return false
		}
	}
	return true
}

// awaitChange waits for a change of anything of the job, at the longest for a
// second.
func (s *steward) awaitChange(ctx context.Context, rev int64) error {
	limit, cancel := context.WithTimeout(ctx, checkInterval)
	defer cancel()
	for r := range s.w.st.Watch(limit, "", "\x00", rev) {
		if len(r.Events) > 0 {
			return nil
		}
		if r.Err != nil && limit.Err() == nil {
			return clock.Sleep(ctx, s.w.clock, backOff(4))
		}
	}
	return context.Cause(ctx)
}
