package trainer

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/job"
	"starfish/pserver/client"
)

// In mode sync, and in mode async with a bound on staleness, a batch is pushed
// under a step and the trainer waits, shard by shard, until the step is over
// there. docs/sync.md has the rules. There is one such push under way at a time,
// and everything else goes on as without steps: a fault ends the round, the next
// one sends the batch to all shards again, under the step that it had.

const (
	// turnPatience is how long a step stays open before a log says whom it waits for.
	turnPatience = 5 * time.Second
	// repeatAfter is how long what a trainer has told the shards of itself is left
	// to them, before it is said again: an older message may have come after it.
	repeatAfter = time.Second
)

// turn is a push under a step, with what is pulled when the step is over.
type turn struct {
	push   *item
	pull   *item // nil: nothing is pulled
	values *client.Batch
	call   *client.Call
}

// stepped tells whether trainers keep step.
func (w *worker) stepped() bool {
	return w.job.Spec.Train.Mode == job.ModeSync || w.job.Spec.Train.Staleness > 0
}

// window is how many batches are computed ahead.
func (w *worker) window() int {
	if w.job.Spec.Train.Mode == job.ModeSync {
		return 0
	}
	return w.job.Spec.Train.Window
}

// take pushes a batch under the trainer's step, to all shards at once.
func (p *pipeline) take(ctx context.Context, push, pull *item, values *client.Batch) error {
	if err := p.endTurn(ctx); err != nil {
		return err
	}
	p.r.w.tellProgress(ctx)
	t := &turn{push: push, pull: pull, values: values}
	if err := p.arrive(ctx, t, p.r.w.step); err != nil {
		return err
	}
	p.turn = t
	return nil
}

func (p *pipeline) arrive(ctx context.Context, t *turn, step int64) (err error) {
	t.call, err = p.r.session.Step(ctx, t.push.batch, t.push.meta, step, t.values)
	return err
}

// endTurn waits until the step of the push that is under way is over on every
// shard. Where one has closed it already the batch goes to every shard again,
// under the open step.
func (p *pipeline) endTurn(ctx context.Context) error {
	t, w := p.turn, p.r.w
	if t == nil {
		return nil
	}
	began := w.clock.Now()
	for said := began; ; {
		if err := t.call.Wait(ctx); err != nil {
			return w.broken(ctx, err, []pushedItem{{t.push, t.call}})
		}
		closed, waiting, next := t.call.Turn()
		switch {
		case closed >= 0:
			if err := p.arrive(ctx, t, closed); err != nil {
				return err
			}
		case waiting != "":
			w.hand.wait(waiting)
			w.tellTurn(began, waiting)
			now := w.clock.Now()
			again := now.Sub(said) >= repeatAfter
			if again {
				said = now
			}
			var err error
			if t.call, err = p.r.session.Await(ctx, t.call, again); err != nil {
				return err
			}
		default:
			w.hand.wait("")
			w.turnTold.Over(w.clock.Now())
			w.step = next + 1
			p.turn = nil
			p.r.acknowledged(t.push)
			return nil
		}
	}
}

// tellTurn logs whom an open step waits for, if it does for long.
func (w *worker) tellTurn(began time.Time, waiting string) {
	now := w.clock.Now()
	if waited := now.Sub(began); waited >= turnPatience && w.turnTold.Due(now) {
		w.log.WithFields(logrus.Fields{"seconds": waited.Seconds(), "reason": waiting}).Warn("waiting for the end of a step")
	}
}

// idle says that there is no work in any pass up to one, so that nobody waits.
func (p *pipeline) idle(ctx context.Context, pass int) error {
	if !p.r.w.stepped() {
		return nil
	}
	call, err := p.r.session.Idle(ctx, pass)
	if err != nil {
		return err
	}
	return call.Wait(ctx)
}

// next returns the next item of the feed. Until it comes an idle trainer says again
// and again that it is. A session that breaks meanwhile ends the round elsewhere.
func (p *pipeline) next(ctx context.Context, in <-chan *item, idle bool, pass int) (it *item, ok bool, err error) {
	idle = idle && p.r.w.stepped()
	for {
		var again <-chan time.Time // never, with work
		stop := func() bool { return true }
		if idle {
			timer := p.r.w.clock.Timer(repeatAfter)
			again, stop = timer.C(), timer.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return nil, false, context.Cause(ctx)
		case it, ok = <-in:
			stop()
			return it, ok, nil
		case <-again:
			if err := p.idle(ctx, pass); err != nil && p.r.session.Err() == nil {
				return nil, false, err
			}
			idle = p.r.session.Err() == nil
		}
	}
}
