package fake

import (
	"context"
	"fmt"
	"slices"
	"time"

	"starfish/internal/store"
)

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, start, end string, rev int64) <-chan store.WatchResponse {
	return s.watch(ctx, start, end, rev, &gate{pass: func(context.Context) error { return nil }})
}

// gate is what a client does to its watches.
type gate struct {
	// pass is asked before each look at the store: a partitioned client waits in it.
	pass func(context.Context) error
	// broken, if it is closed, ends the watch; over then has the last word.
	broken <-chan struct{}
	over   func(context.Context, chan<- store.WatchResponse)
}

// watch is Watch behind a gate.
func (s *Store) watch(ctx context.Context, start, end string, rev int64, g *gate) <-chan store.WatchResponse {
	if rev == 0 {
		rev = s.Revision() + 1
	}
	w := &watcher{Store: s, start: start, end: end, next: rev, gate: g, out: make(chan store.WatchResponse)}
	go func() {
		defer close(w.out)
		for g.pass(ctx) == nil && w.step(ctx) {
		}
		select {
		case <-g.broken:
			g.over(ctx, w.out)
		default:
		}
	}()
	return w.out
}

type watcher struct {
	*Store
	gate       *gate
	start, end string
	next       int64 // the first revision that has not been delivered
	out        chan store.WatchResponse
}

// step delivers what is new, or waits until there may be something new; false
// when the watch is over.
func (w *watcher) step(ctx context.Context) bool {
	w.lock()
	r := w.since(w.next)
	changed := w.changed
	expiry, leases := w.untilExpiry()
	w.mu.Unlock()
	if r.Err == nil {
		w.next = max(w.next, r.Revision+1)
		if len(r.Events) == 0 {
			return w.wait(ctx, changed, expiry, leases)
		}
	}
	select {
	case w.out <- r:
		return r.Err == nil
	case <-w.gate.broken:
		return false
	case <-ctx.Done():
		return false
	}
}

func (w *watcher) wait(ctx context.Context, changed <-chan struct{}, expiry time.Duration, leases bool) bool {
	var expired <-chan time.Time
	if leases {
		t := w.clock.Timer(expiry)
		defer t.Stop()
		expired = t.C()
	}
	select {
	case <-changed:
	case <-expired:
	case <-w.gate.broken:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

// since is what a watcher gets whose next revision is rev.
func (w *watcher) since(rev int64) store.WatchResponse {
	r := store.WatchResponse{Revision: w.rev}
	if rev < w.compacted {
		r.Err = fmt.Errorf("watch %s from %d: %w", w.start, rev, store.ErrCompacted)
		return r
	}
	i, _ := slices.BinarySearchFunc(w.history, rev, compareRevision)
	for _, e := range w.history[i:] {
		if within(e.KV.Key, w.start, w.end) {
			e.KV.Value = slices.Clone(e.KV.Value)
			r.Events = append(r.Events, e)
		}
	}
	return r
}
