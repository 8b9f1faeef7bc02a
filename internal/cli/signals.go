package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrSignal is the cause of a context that a signal cancelled.
var ErrSignal = errors.New("stopped by a signal")

// Signals returns a context that the first SIGTERM, SIGINT or SIGHUP cancels,
// with a cause that is ErrSignal; each further one calls again. SIGHUP stays
// ignored if it was, as by nohup.
func Signals(parent context.Context, again func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(c, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case s := <-c:
				if first {
					cancel(fmt.Errorf("%w (%v)", ErrSignal, s))
				} else {
					again()
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(c)
		close(done)
		cancel(nil)
	}
}

// aborts is what is still done when the process ends at once. Its mutex is held
// over nothing but the list.
type aborts struct {
	mu    sync.Mutex
	begun bool
	todo  []func()
}

type abortsKey struct{}

// withAborts gives OnAbort a place in the context. abort does what is to be
// done, in the background, and calls exit after it; a further call does not
// wait for that.
func withAborts(ctx context.Context) (_ context.Context, abort func(exit func())) {
	a := &aborts{}
	return context.WithValue(ctx, abortsKey{}, a), func(exit func()) {
		a.mu.Lock()
		todo, again := a.todo, a.begun
		a.begun = true
		a.mu.Unlock()
		if again {
			exit()
			return
		}
		go func() {
			for i := len(todo) - 1; i >= 0; i-- {
				todo[i]()
			}
			exit()
		}()
	}
}

// OnAbort has f called when a second signal ends the process at once; what was
// added last is called first. f must be quick: a third signal does not wait for
// it. Without Main nothing is ever called.
func OnAbort(ctx context.Context, f func()) {
	if a, ok := ctx.Value(abortsKey{}).(*aborts); ok {
		a.mu.Lock()
		a.todo = append(a.todo, f)
		a.mu.Unlock()
	}
}
