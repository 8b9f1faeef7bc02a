package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"starfish/internal/store"
)

// Hook decides whether a request fails. It is called with op "put", "delete"
// or "range" for each operation of a transaction (both sides, Then first), or
// with "watch" (key = its start), "grant", "keepalive" or "revoke" (no key).
type Hook func(op, key string) error

// Client is the handle of one simulated process, with faults of its own.
type Client struct {
	name  string
	store *Store

	mu     sync.Mutex
	before Hook
	after  Hook
	stray  func(arrive func()) error
	healed chan struct{} // not nil while partitioned; closed when it heals
	heard  chan struct{} // not nil while watches are held; closed when they go on
	thawed chan struct{} // not nil while frozen; closed when it goes on
	broken chan struct{} // closed and replaced when watches break
	deaf   bool          // of the watches that break: they only fall silent
}

// Client makes a handle without faults.
func (s *Store) Client(name string) *Client {
	return &Client{name: name, store: s, broken: make(chan struct{})}
}

// Fail sets the hook that is asked before each request; what it refuses has
// no effect. Nil removes it.
func (c *Client) Fail(hook func(op, key string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = hook
}

// FailAfter sets the hook that is asked after each request: its error hides
// an answer, success or not. Nil removes it.
func (c *Client) FailAfter(hook func(op, key string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = hook
}

// Stray sets the hook that is asked before each transaction that would write. It is
// given a function that makes the transaction arrive, a copy of it if the hook
// lets it through: to be called at any time, also long after the answer. What
// the hook refuses arrives by that function alone. Nil removes it.
func (c *Client) Stray(hook func(arrive func()) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stray = hook
}

// Freeze stops the process that holds the client, or lets it go on: requests do
// not begin, and answers and changes do not reach it, not even their time-outs.
func (c *Client) Freeze(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on && c.thawed == nil:
		c.thawed = make(chan struct{})
	case !on && c.thawed != nil:
		close(c.thawed)
		c.thawed = nil
	}
}

// thaw waits until the process is not frozen.
func (c *Client) thaw() {
	for {
		c.mu.Lock()
		thawed := c.thawed
		c.mu.Unlock()
		if thawed == nil {
			return
		}
		<-thawed
	}
}

// BreakWatches ends all watches of the client with an error.
func (c *Client) BreakWatches() { c.endWatches(false) }

// LoseWatches makes all watches that the client has silent for good, without an
// error. New ones are as they should be.
func (c *Client) LoseWatches() { c.endWatches(true) }

func (c *Client) endWatches(deaf bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = deaf
	close(c.broken)
	c.broken = make(chan struct{})
}

// Partition cuts the client off from the store, or heals that. Requests wait
// for the end of the partition or of their context; watches are silent and
// then go on from where they were.
func (c *Client) Partition(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on && c.healed == nil:
		c.healed = make(chan struct{})
	case !on && c.healed != nil:
		close(c.healed)
		c.healed = nil
	}
}

// HoldWatches makes the client's watches silent, or lets them go on from where
// they were; requests are answered all the same.
func (c *Client) HoldWatches(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on && c.heard == nil:
		c.heard = make(chan struct{})
	case !on && c.heard != nil:
		close(c.heard)
		c.heard = nil
	}
}

// hear is the gate of watches.
func (c *Client) hear(ctx context.Context) error {
	c.thaw()
	c.mu.Lock()
	heard := c.heard
	c.mu.Unlock()
	if heard != nil {
		select {
		case <-heard:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.pass(ctx)
}

// pass waits until the client is not partitioned.
func (c *Client) pass(ctx context.Context) error {
	for {
		c.mu.Lock()
		healed := c.healed
		c.mu.Unlock()
		if healed == nil {
			return context.Cause(ctx)
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return fmt.Errorf("%s is partitioned: %w", c.name, context.Cause(ctx))
		}
	}
}

// call is one thing that hooks are asked about.
type call struct{ op, key string }

// do runs request between the two hooks.
func (c *Client) do(ctx context.Context, calls []call, request func() error) error {
	c.thaw()
	defer c.thaw()
	if err := c.pass(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	before, after := c.before, c.after
	c.mu.Unlock()
	if err := ask(before, calls); err != nil {
		return err
	}
	err := request()
	if hidden := ask(after, calls); hidden != nil {
		return hidden
	}
	return err
}

func ask(hook Hook, calls []call) error {
	if hook == nil {
		return nil
	}
	for _, c := range calls {
		if err := hook(c.op, c.key); err != nil {
			return err
		}
	}
	return nil
}

// Txn implements store.Store.
func (c *Client) Txn(ctx context.Context, t store.Txn) (r store.Result, err error) {
	names := map[store.Kind]string{store.KindPut: "put", store.KindDelete: "delete", store.KindRange: "range"}
	var calls []call
	for _, side := range [][]store.Op{t.Then, t.Else} {
		for _, o := range side {
			calls = append(calls, call{names[o.Kind], o.Key})
		}
	}
	err = c.do(ctx, calls, func() error {
		if err := c.strays(t); err != nil {
			return err
		}
		r, err = c.store.Txn(ctx, t)
		return err
	})
	if err != nil {
		return store.Result{}, err
	}
	return r, nil
}

// strays lets the hook have a copy of a transaction that would write.
func (c *Client) strays(t store.Txn) error {
	c.mu.Lock()
	hook := c.stray
	c.mu.Unlock()
	writes := func(o store.Op) bool { return o.Kind != store.KindRange }
	if hook == nil || !slices.ContainsFunc(t.Then, writes) && !slices.ContainsFunc(t.Else, writes) {
		return nil
	}
	return hook(func() {
		_, _ = c.store.Txn(context.Background(), t) // nobody waits for its answer
	})
}

// Watch implements store.Store.
func (c *Client) Watch(ctx context.Context, start, end string, rev int64) <-chan store.WatchResponse {
	c.mu.Lock()
	before, broken := c.before, c.broken
	c.mu.Unlock()
	if err := ask(before, []call{{"watch", start}}); err != nil {
		out := make(chan store.WatchResponse, 1)
		out <- store.WatchResponse{Err: err}
		close(out)
		return out
	}
	return c.store.watch(ctx, start, end, rev, &gate{pass: c.hear, broken: broken, over: c.broke})
}

// errWatch: see BreakWatches.
var errWatch = errors.New("fake: the watch is broken")

// broke is the end of a watch that has broken.
func (c *Client) broke(ctx context.Context, out chan<- store.WatchResponse) {
	c.mu.Lock()
	deaf := c.deaf
	c.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return
	}
	select {
	case out <- store.WatchResponse{Err: errWatch}:
	case <-ctx.Done():
	}
}

// Grant implements store.Store.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (id store.LeaseID, given time.Duration, err error) {
	err = c.do(ctx, []call{{"grant", ""}}, func() error {
		id, given, err = c.store.Grant(ctx, ttl)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	return id, given, nil
}

// KeepAlive implements store.Store.
func (c *Client) KeepAlive(ctx context.Context, id store.LeaseID) (given time.Duration, err error) {
	err = c.do(ctx, []call{{"keepalive", ""}}, func() error {
		given, err = c.store.KeepAlive(ctx, id)
		return err
	})
	if err != nil {
		return 0, err
	}
	return given, nil
}

// Revoke implements store.Store.
func (c *Client) Revoke(ctx context.Context, id store.LeaseID) error {
	return c.do(ctx, []call{{"revoke", ""}}, func() error { return c.store.Revoke(ctx, id) })
}
