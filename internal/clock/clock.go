// Package clock is the one seam through which starfish reads and waits for time.
//
// Only the monotonic reading matters: nothing in starfish compares times taken
// on two machines, and nothing compares wall-clock times at all. Production
// code uses System; simulations replace it to let the clock of one process
// jump or stand still.
package clock

import (
	"context"
	"time"
)

// Clock tells and waits for time. Implementations are safe for concurrent use.
type Clock interface {
	// Now returns the current time; only differences of two results of the
	// same clock mean anything.
	Now() time.Time
	// Timer returns a timer that fires once after d.
	Timer(d time.Duration) Timer
}

// Timer is a single-shot timer, like time.Timer.
type Timer interface {
	// C delivers the time at which the timer fired.
	C() <-chan time.Time
	// Stop prevents the timer from firing; false if it has fired or was stopped.
	Stop() bool
}

// System is the machine's clock.
var System Clock = system{}

type system struct{}

func (system) Now() time.Time { return time.Now() }

// Timer never returns a timer that is due at once: in virtual time and under
// the race detector the runtime of Go 1.26 crashes in the select that is the
// first to run one.
func (system) Timer(d time.Duration) Timer { return systemTimer{time.NewTimer(max(d, 1))} }

type systemTimer struct{ t *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.t.C }
func (t systemTimer) Stop() bool          { return t.t.Stop() }

// Sleep waits for d or until ctx ends; it returns the context's cause in the
// latter case.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	t := c.Timer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
