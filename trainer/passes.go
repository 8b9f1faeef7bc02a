package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver/client"
)

var (
	// errMoved: chunks were reopened while the end of a pass was evaluated.
	errMoved = errors.New("the state has changed")
	// errUnsettled: a shard lacks batches of chunks that are Complete, and does
	// not have them reopened.
	errUnsettled = errors.New("the shards have not counted the whole pass")
)

const (
	settlePause    = 200 * time.Millisecond
	settleAttempts = 150
)

// perPass tells whether the end of each pass is evaluated. The last pass is
// evaluated at the end of the job anyway.
func (w *worker) perPass() bool {
	train := w.job.Spec.Train
	return train.Evaluate == job.EvaluatePass && train.Passes > 1 && !w.pushOnly
}

// turn does what the lanes allow, and evaluates a pass before it leaves it: the
// record `metrics/<pass>` is written by the transaction that turns the pass, on
// the condition that nothing was reopened since the evaluation began. So it is
// of exactly the state at the end of the pass, and a steward that dies before
// has left no trace: the next one evaluates. While the pass is not turned
// nothing is Todo, so nobody trains.
func (s *steward) turn(ctx context.Context) (etcdqueue.State, error) {
	if !s.w.perPass() {
		return s.w.queue.Turn(ctx, nil, s.guard)
	}
	select {
	case s.still <- struct{}{}:
		defer func() { <-s.still }()
	case <-ctx.Done():
		return etcdqueue.State{}, context.Cause(ctx)
	}
	p, err := s.w.queue.Prospect(ctx)
	switch {
	case err != nil:
		return etcdqueue.State{}, err
	case !p.Leaves(): // it may be left in a moment, and is evaluated before that
		return s.w.queue.TurnWithin(ctx, s.guard)
	case len(p.After.Reopened) > 0: // trained meanwhile: the state would move under the evaluation
		return p.Now, clock.Sleep(ctx, s.w.clock, settlePause)
	}
	record, err := s.evaluatePass(ctx, p)
	switch {
	case errors.Is(err, errMoved):
		return p.Now, nil
	case errors.Is(err, errUnsettled):
		s.log.WithError(err).WithField("pass", p.Now.Pass).Warn("a pass is not evaluated")
		return s.w.queue.Turn(ctx, nil, s.guard)
	case err != nil:
		return etcdqueue.State{}, err
	}
	op, err := record.Put()
	if err != nil {
		return etcdqueue.State{}, err
	}
	state, err := s.w.queue.TurnFrom(ctx, p.Now, []store.Op{op}, s.guard)
	if errors.Is(err, etcdqueue.ErrGuard) {
		return p.Now, s.holds(ctx)
	}
	if err == nil && state.Pass != p.Now.Pass {
		s.announce(record)
	}
	return state, err
}

// holds tells that the guard of this steward still holds, or why not.
func (s *steward) holds(ctx context.Context) error {
	r, err := s.w.st.Txn(ctx, store.Txn{If: []store.Cmp{s.guard}})
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("steward: %w", etcdqueue.ErrGuard)
	}
	return err
}

// evaluatePass evaluates a pass that is finished and that nobody may leave but
// this steward. It ends with errMoved once the state is not that of p any more.
func (s *steward) evaluatePass(ctx context.Context, p etcdqueue.Prospect) (*job.PassResult, error) {
	ended := s.w.clock.Now()
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch.Go(func() {
		for state := range s.w.queue.WatchState(ctx) {
			if state.Revision > p.Now.Revision {
				cancel(errMoved)
			}
		}
	})
	r, err := s.passResult(ctx, p, ended)
	if err != nil && errors.Is(context.Cause(ctx), errMoved) {
		return nil, errMoved // whatever it looked like
	}
	return r, err
}

func (s *steward) passResult(ctx context.Context, p etcdqueue.Prospect, ended time.Time) (*job.PassResult, error) {
	session, err := s.w.client.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	sums, err := s.settled(ctx, session, p)
	if err != nil {
		return nil, err
	}
	r := &job.PassResult{Pass: p.Now.Pass, Records: sums.Records, Seconds: s.since(ended)}
	if sums.Weight > 0 {
		loss := sums.Loss / sums.Weight
		r.Train.Loss = &loss
	}
	if s.w.tests() {
		r.Test, err = s.w.evaluate(ctx, session)
	}
	return r, err
}

// settled waits until every shard of the session has counted every batch of the
// pass's complete chunks, and gives the sums of one that has not lost any of
// them, if there is one. One that has just loaded a
// checkpoint serves before it has compared its ledger with the lanes: what it
// would be asked then is not the state at the end of the pass. Soon it has
// reopened what it lacks, which changes the state.
func (s *steward) settled(ctx context.Context, session *client.Session, p etcdqueue.Prospect) (client.Sums, error) {
	for range settleAttempts {
		sums, err := session.Sums(ctx, p.Now.Pass)
		if err != nil {
			return client.Sums{}, err
		}
		if !slices.ContainsFunc(sums, func(shard client.Sums) bool { return shard.Batches < p.Pass.Batches }) {
			return slices.MaxFunc(sums, func(a, b client.Sums) int { return cmp.Compare(a.Records, b.Records) }), nil
		}
		if err := clock.Sleep(ctx, s.w.clock, settlePause); err != nil {
			return client.Sums{}, err
		}
	}
	return client.Sums{}, errUnsettled
}

// since is the time from the first take to then, as far as this process has
// seen both.
func (s *steward) since(then time.Time) *float64 {
	took := s.w.firstTake()
	if took.IsZero() || then.IsZero() {
		return nil
	}
	seconds := then.Sub(took).Seconds()
	return &seconds
}

// announce logs what a pass has achieved.
func (s *steward) announce(r *job.PassResult) {
	fields := logrus.Fields{"pass": r.Pass, "records": r.Records}
	if r.Train.Loss != nil {
		fields["train_loss"] = *r.Train.Loss
	}
	if r.Test != nil {
		for name, value := range r.Test.Metrics {
			if value != nil {
				fields["test_"+name] = *value
			}
		}
	}
	s.log.WithFields(fields).Info("a pass has ended")
}
