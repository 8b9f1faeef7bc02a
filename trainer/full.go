package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
)

// fullPause is how long a trainer waits before it tries again at a pserver that has
// no memory left, unless shards change hands before.
const fullPause = 2 * time.Second

// fullness is the wait of a trainer for memory.
type fullness struct {
	since   time.Time // zero: it does not wait
	batches int64     // that had been acknowledged then
	what    string    // it waits for
}

// isFull is the refusal of a pserver that has no memory for new rows, nil if err
// is another fault.
func isFull(err error) *client.FaultError {
	if f := (*client.FaultError)(nil); errors.As(err, &f) && f.Code == wire.Full {
		return f
	}
	return nil
}

// awaitRoom waits, after a refusal for want of memory, for the moment to try again:
// when a shard has changed hands, or after a pause. What was refused has changed
// nothing, so it is simply sent again. A wait that has lasted for the spec's
// recovery.memory_wait, without a batch of this trainer getting through, fails the
// job.
func (w *worker) awaitRoom(ctx context.Context, full *client.FaultError) error {
	now, done := w.clock.Now(), w.metrics.batches.Load()
	if w.full.since.IsZero() || done != w.full.batches {
		w.full = fullness{since: now, batches: done}
	}
	waited := now.Sub(w.full.since)
	what := fmt.Sprintf("%s is at its memory limit: shard %d: %s", full.Pserver, full.Shard, full.Reason)
	w.full.what = "memory: " + what
	w.hand.wait(w.full.what)
	if w.fullTold.Due(now) {
		w.log.WithField("seconds", waited.Seconds()).Warn("waiting: " + what)
	}
	limit := w.job.Spec.Recovery.MemoryWait
	if limit > 0 && waited >= limit {
		return w.failJob(ctx, fmt.Sprintf("no memory for new rows for %v: %s. Give the pservers a higher --max-memory, or start more "+
			"of them before it comes to this (a pserver that joins takes shards over), then run a new job", limit, what))
	}
	pause := fullPause
	if limit > 0 {
		pause = min(pause, limit-waited)
	}
	return w.untilMoved(ctx, pause)
}

// untilMoved waits until a shard changes hands, at most for the pause.
func (w *worker) untilMoved(ctx context.Context, pause time.Duration) error {
	v, err := membership.ReadView(ctx, w.st)
	if err != nil {
		return clock.Sleep(ctx, w.clock, pause)
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	views := membership.WatchView(watch, w.st, v)
	timer := w.clock.Timer(pause)
	defer timer.Stop()
	for {
		select {
		case next, ok := <-views:
			if ok && next.Revision == v.Revision {
				continue
			}
			if ok {
				return nil
			}
			views = nil // it has ended
		case <-timer.C():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// failJob ends the job for everybody. A trainer that is not registered any more has
// no say.
func (w *worker) failJob(ctx context.Context, reason string) error {
	// What has failed may have ended the round, and with it ctx, already.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	for attempt := 0; ; attempt++ {
		err := w.queue.Finish(ctx, etcdqueue.PhaseFailed, reason, nil, w.member.Registered())
		if err == nil || errors.Is(err, etcdqueue.ErrPhase) {
			return job.Exitf(job.ExitFailure, "%s", reason)
		}
		if !retryable(err) || errors.Is(err, etcdqueue.ErrGuard) {
			return err
		}
		if err := clock.Sleep(ctx, w.clock, backOff(attempt)); err != nil {
			return err
		}
	}
}
