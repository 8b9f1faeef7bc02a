package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Call is an exchange under way.
type Call struct {
	session *Session
	push    *Batch
	meta    PushMeta
	pull    *Batch
	turn    turn
	answers []Answer

	done    chan struct{} // closed when every peer has answered
	waiting atomic.Int32  // peers that have not

	mu    sync.Mutex
	fault *FaultError // the first refusal
	said  said
}

func newCall(s *Session, push *Batch, meta PushMeta, pull *Batch) *Call {
	c := &Call{session: s, push: push, meta: meta, pull: pull, done: make(chan struct{})}
	if push != nil {
		c.answers = make([]Answer, s.client.layout.shards)
	}
	c.waiting.Store(int32(len(s.peers)))
	return c
}

// concerns tells whether a peer has a part in the call.
func (c *Call) concerns(p *peer) bool {
	return c.turn.only == nil || c.turn.again || slices.ContainsFunc(p.shards, func(shard int) bool { return c.turn.only[shard] })
}

// Wait waits for all answers: nil, *FaultError or the context's cause. Only
// after nil, or a *FaultError whose code is GoBack, Stale or Full, may the batches be
// touched; otherwise the session has to be closed first.
func (c *Call) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.result()
	default:
	}
	select {
	case <-c.done:
		return c.result()
	case <-c.session.ctx.Done():
		return c.session.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Answers has what each shard said to the push, by shard; valid after a Wait
// that returned nil or a refusal (zero for a shard that refused).
func (c *Call) Answers() []Answer { return c.answers }

func (c *Call) result() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return c.fault
	}
	return nil
}

func (c *Call) refused(f *FaultError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		c.fault = f
	}
}

// answered is called once for each peer, after its last answer.
func (c *Call) answered() {
	if c.waiting.Add(-1) > 0 {
		return
	}
	if c.result() == nil {
		c.session.client.faults.Store(0)
	}
	close(c.done)
	<-c.session.slots
}
