package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/pb"
)

const (
	// firstBackoff doubles with each further fault, up to lastBackoff.
	firstBackoff = 20 * time.Millisecond
	lastBackoff  = time.Second
	// probeTimeout bounds one attempt to open a session.
	probeTimeout = 5 * time.Second
)

// Config describes a client.
type Config struct {
	// Network is how pservers are reached. Default: transport.TCP.
	Network transport.Network
	// Store is the job's.
	Store store.Store
	// Job is the job's UUID; a pserver of another job refuses.
	Job        uuid.UUID
	Parameters job.Parameters
	// Trainer is the sender's incarnation; only jobs whose trainers keep step
	// need it.
	Trainer uuid.UUID
	// Clock defaults to clock.System.
	Clock clock.Clock
	// Waiting is told what the client waits for, whenever that changes, and ""
	// when it goes on. Optional; must not block.
	Waiting func(reason string)
	Log     logrus.FieldLogger
}

// Client knows the job's layout and finds the owners of its shards. It is safe
// for concurrent use; batches and sessions belong to one user each.
type Client struct {
	c      Config
	layout *layout
	faults atomic.Int32 // sessions broken since the last good answer

	mu     sync.Mutex
	reason string // what Waiting was told last
	remind remind.Reminder
}

// New returns a client; it does no I/O.
func New(c Config) (*Client, error) {
	l, err := newLayout(c.Parameters)
	if err != nil {
		return nil, err
	}
	if c.Store == nil || c.Log == nil {
		return nil, errors.New("client: a store and a log are needed")
	}
	if c.Network == nil {
		c.Network = transport.TCP
	}
	if c.Clock == nil {
		c.Clock = clock.System
	}
	if c.Waiting == nil {
		c.Waiting = func(string) {}
	}
	return &Client{c: c, layout: l}, nil
}

// NewBatch returns an empty batch.
func (c *Client) NewBatch() *Batch { return newBatch(c.layout) }

// View returns the owners of all shards, waiting until every shard has one. It
// fails only if ctx ends or the store's history went backwards.
func (c *Client) View(ctx context.Context) (membership.View, error) {
	v, err := c.find(ctx)
	if err == nil {
		c.waiting("")
	}
	return v, err
}

func (c *Client) find(ctx context.Context) (membership.View, error) {
	for attempt := int32(0); ; attempt++ {
		v, err := membership.ReadView(ctx, c.c.Store)
		if err == nil {
			if v, err = c.complete(ctx, v); err == nil {
				return v, nil
			}
		}
		if ctx.Err() != nil {
			return membership.View{}, context.Cause(ctx)
		}
		if errors.Is(err, store.ErrHistory) {
			return membership.View{}, err
		}
		c.waiting(fmt.Sprintf("the owners of the shards: %v", err))
		if err := c.backOff(ctx, attempt+1); err != nil {
			return membership.View{}, err
		}
	}
}

// complete follows the record until every shard has an owner.
func (c *Client) complete(ctx context.Context, v membership.View) (membership.View, error) {
	missing := c.unowned(v)
	if len(missing) == 0 {
		return v, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	views := membership.WatchView(ctx, c.c.Store, v)
	for {
		c.waiting(c.missing(ctx, missing))
		timer := c.c.Clock.Timer(c.nextReminder())
		select {
		case next, ok := <-views:
			timer.Stop()
			if !ok {
				return v, errors.New("the watch of the owners has ended")
			}
			if v, missing = next, c.unowned(next); len(missing) == 0 {
				return v, nil
			}
		case <-timer.C():
		}
	}
}

// missing says which shards have no owner, and who there is to own them.
func (c *Client) missing(ctx context.Context, shards []int) string {
	reason := fmt.Sprintf("an owner of shards %v", shards)
	roster, err := membership.ReadRoster(ctx, c.c.Store, membership.PServers)
	switch {
	case err != nil:
		return reason
	case len(roster.Members) == 0:
		return reason + ": no pserver is registered"
	}
	names := slices.Sorted(maps.Keys(roster.Members))
	return fmt.Sprintf("%s; registered pservers: %s", reason, strings.Join(names, " "))
}

// unowned lists the shards without an owner.
func (c *Client) unowned(v membership.View) []int {
	var missing []int
	for s := range c.layout.shards {
		if s >= len(v.Shards) || v.Shards[s].Incarnation == "" || v.Shards[s].Address == "" {
			missing = append(missing, s)
		}
	}
	return missing
}

// Connect returns a session whose shards all serve. It tries until it succeeds
// or ctx ends, with growing pauses while sessions keep breaking.
func (c *Client) Connect(ctx context.Context) (*Session, error) {
	var v membership.View
	for {
		if err := c.pause(ctx, v); err != nil {
			return nil, err
		}
		var err error
		if v, err = c.find(ctx); err != nil {
			return nil, err
		}
		s, err := c.try(ctx, v)
		if err == nil {
			c.waiting("")
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.faults.Add(1)
		c.waiting(err.Error())
	}
}

// try opens a session and asks its shards whether they serve.
func (c *Client) try(ctx context.Context, v membership.View) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %v", probeTimeout))
	defer cancel()
	s, err := c.Open(ctx, v)
	if err != nil {
		return nil, err
	}
	if _, err := s.Progress(ctx, nil); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// backOff waits after that many faults in a row, for a random time between
// half of and the whole pause.
func (c *Client) backOff(ctx context.Context, faults int32) error {
	if faults <= 0 {
		return context.Cause(ctx)
	}
	return clock.Sleep(ctx, c.c.Clock, backOffTime(faults))
}

func backOffTime(faults int32) time.Duration {
	pause := min(lastBackoff, firstBackoff<<min(faults-1, 16))
	return pause/2 + rand.N(pause/2)
}

// pause is backOff after the faults so far, but ends, and forgets them, when shards
// have other owners than in v, which was tried last: those may serve.
func (c *Client) pause(ctx context.Context, v membership.View) error {
	faults := c.faults.Load()
	if faults <= 0 || v.Revision == 0 {
		return c.backOff(ctx, faults)
	}
	ctx, stop := context.WithCancel(ctx)
	moved := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for next := range membership.WatchView(ctx, c.c.Store, v) {
			if changed(v, next) >= 0 {
				close(moved)
				return
			}
		}
	})
	defer watch.Wait()
	defer stop()
	return c.wait(ctx, faults, moved)
}

// changed is the first shard that has another owner in next than in v, -1 if none
// has.
func changed(v, next membership.View) int {
	next = next.Sized(len(v.Shards))
	for shard, old := range v.Shards {
		if now := next.Shards[shard]; now.Incarnation != old.Incarnation || now.Generation != old.Generation {
			return shard
		}
	}
	return -1
}

// wait is the back-off, which ends early if shards have moved.
func (c *Client) wait(ctx context.Context, faults int32, moved <-chan struct{}) error {
	timer := c.c.Clock.Timer(backOffTime(faults))
	defer timer.Stop()
	select {
	case <-moved:
		c.faults.Store(0)
		return nil
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waiting reports a change of what the client waits for. The log has it at
// once and then more and more rarely, however often it changes.
func (c *Client) waiting(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.c.Clock.Now()
	waited := c.remind.Waited(now).Seconds()
	switch {
	case reason == "":
		if c.remind.Over(now) {
			c.c.Log.WithField("seconds", waited).Info("pservers answer again")
		}
	case c.remind.Due(now):
		c.c.Log.WithFields(logrus.Fields{"reason": reason, "seconds": waited}).Info("waiting for pservers")
	}
	if reason != c.reason {
		c.reason = reason
		c.c.Waiting(reason)
	}
}

// nextReminder is when a wait is to be logged again.
func (c *Client) nextReminder() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remind.Next(c.c.Clock.Now())
}

// Identify asks who answers at address.
func Identify(ctx context.Context, n transport.Network, address string) (Identity, error) {
	cc, err := transport.NewClient(n, address)
	if err != nil {
		return Identity{}, fmt.Errorf("client: identify %s: %w", address, err)
	}
	defer func() { _ = cc.Close() }()
	r, err := pb.NewPServerClient(cc).Identify(ctx, &pb.IdentifyRequest{})
	if err != nil {
		return Identity{}, fmt.Errorf("client: identify %s: %w", address, err)
	}
	id := Identity{Incarnation: r.Incarnation, Name: r.Name, Version: r.Version, Shards: map[int]int64{}}
	copy(id.Job[:], r.Job)
	for _, s := range r.Shards {
		id.Shards[int(s.Shard)] = s.Generation
	}
	return id, nil
}
