package checkpoint

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// linger is how long a publication waits at most for others that are announced.
const linger = 100 * time.Millisecond

// Publisher lists the files of all shards of one process, several in one
// transaction: the first checkpoints of many shards would otherwise rewrite the
// record of the owners once for each, and stand in each other's way.
//
// A save announces itself before it begins. Whoever has a file to list waits
// for those that are announced, a moment at most, and one of them writes for
// all. With nothing announced nobody waits. It is safe for concurrent use, but
// for one shard there is one save at a time.
type Publisher struct {
	st   store.Store
	clk  clock.Clock
	turn chan struct{} // held by the one that writes
	news chan struct{} // something has been announced, withdrawn or queued

	mu        sync.Mutex
	announced int
	queue     []*request
}

// request is one file to be listed. Who holds the turn takes it from the queue,
// sets out and closes done.
type request struct {
	ctx     context.Context //nolint:containedctx // it ends the waiting, and with those of the others the writing
	listing Listing
	out     Listed
	done    chan struct{}
}

// NewPublisher returns one for a process.
func NewPublisher(st store.Store, clk clock.Clock) *Publisher {
	return &Publisher{st: st, clk: clk, turn: make(chan struct{}, 1), news: make(chan struct{}, 1)}
}

// Announcement is a save that has begun, for one goroutine.
type Announcement struct {
	p    *Publisher
	over bool
}

// Announce says that there will be a file to list. Withdraw must follow.
func (p *Publisher) Announce() *Announcement {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announced++
	return &Announcement{p: p}
}

// Withdraw ends the announcement, if Publish has not.
func (a *Announcement) Withdraw() { a.end(nil) }

func (a *Announcement) end(r *request) {
	a.p.mu.Lock()
	if !a.over {
		a.over = true
		a.p.announced--
	}
	if r != nil {
		a.p.queue = append(a.p.queue, r)
	}
	a.p.mu.Unlock()
	select {
	case a.p.news <- struct{}{}:
	default:
	}
}

// Publish is PublishAll for the announced file, together with those of others.
// It returns when nothing is under way for this file any more.
func (a *Announcement) Publish(ctx context.Context, l Listing) ([]Meta, error) {
	r := &request{ctx: ctx, listing: l, done: make(chan struct{})}
	a.end(r)
	p := a.p
	select {
	case <-r.done:
	case p.turn <- struct{}{}:
		p.serve(r)
		<-p.turn
	case <-ctx.Done():
		if p.remove(r) {
			return nil, context.Cause(ctx)
		}
		<-r.done
	}
	return r.out.Dropped, r.out.Err
}

// serve publishes what is queued until r is among it.
func (p *Publisher) serve(r *request) {
	for {
		select {
		case <-r.done:
			return
		default:
			p.publish(p.gather(r.ctx))
		}
	}
}

// gather waits for what is announced, and takes the oldest requests.
func (p *Publisher) gather(ctx context.Context) []*request {
	timer := p.clk.Timer(linger)
	defer timer.Stop()
	for wait := true; wait; {
		p.mu.Lock()
		wait = p.announced > 0 && len(p.queue) < MaxListings
		p.mu.Unlock()
		if !wait {
			break
		}
		select {
		case <-p.news:
		case <-timer.C():
			wait = false
		case <-ctx.Done():
			wait = false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.queue), MaxListings)
	taken := p.queue[:n:n]
	p.queue = p.queue[n:]
	return taken
}

// publish writes for all of them, as long as one of them still wants it.
func (p *Publisher) publish(rs []*request) {
	if len(rs) == 0 {
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(rs[0].ctx))
	defer cancel(nil)
	var wanted atomic.Int64
	wanted.Store(int64(len(rs)))
	listings := make([]Listing, len(rs))
	for i, r := range rs {
		listings[i] = r.listing
		defer context.AfterFunc(r.ctx, func() {
			if wanted.Add(-1) == 0 {
				cancel(context.Cause(r.ctx))
			}
		})()
	}
	for i, out := range PublishAll(ctx, p.st, listings) {
		rs[i].out = out
		close(rs[i].done)
	}
}

// remove takes a request back, if it is not under way yet.
func (p *Publisher) remove(r *request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, q := range p.queue {
		if q == r {
			p.queue = append(p.queue[:i:i], p.queue[i+1:]...)
			return true
		}
	}
	return false
}
