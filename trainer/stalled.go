package trainer

import (
	"context"
	"time"
)

// Where trainers keep step, one that lives and hangs in a computation would be
// waited for by all of them. It is its own registration that says so, once its
// chunks may be given to others: another part of the process sees that nothing
// moves. From then on nobody waits for it; before its next push it is there again.
// Nothing but who is waited for depends on that.

// tellPatience is how long a push is held up by saying that the work goes on.
const tellPatience = time.Second

// tellStall says that the work has come to a stand, and tells whether it could.
func (w *worker) tellStall(ctx context.Context) bool {
	if !w.tell(ctx, true) {
		return false
	}
	w.log.WithField("seconds", w.job.Spec.Queue.StallTimeout.Seconds()).
		Warn("no batch has come to an end for queue.stall_timeout: the others do not wait for this trainer, and may take its chunks")
	return true
}

// tellProgress takes back, before a push, that the work has come to a stand. If it
// cannot, the next push tries again.
func (w *worker) tellProgress(ctx context.Context) {
	if !w.stalled.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	if w.tell(ctx, false) {
		w.log.Info("the work goes on after a stand")
	}
}

// tell says it in the registration.
func (w *worker) tell(ctx context.Context, stalled bool) bool {
	select {
	case w.telling <- struct{}{}:
		defer func() { <-w.telling }()
	case <-ctx.Done():
		return false
	}
	if stalled {
		w.stalled.Store(true) // also if it has come to nothing as far as is known
	}
	if err := w.member.Stall(ctx, stalled); err != nil {
		w.log.WithError(err).WithField("stalled", stalled).Debug("the registration could not be changed")
		return false
	}
	w.stalled.Store(stalled)
	return true
}
