package client

import (
	"context"
	"fmt"

	"starfish/internal/wire"
)

// turn is what a call means to the barriers of its shards.
type turn struct {
	kind wire.BarrierKind
	step int64
	// only has for each shard whether the call is about it; nil: about all. With
	// again the others are asked too whether they know of the batch still.
	only  []bool
	again bool
}

// said is what shards have answered about their barriers; under Call.mu.
type said struct {
	waiting []bool // by shard; nil where none waits
	reason  string
	closed  int64
	next    int64
}

// Step pushes a batch under a step, and pulls another one (nil: not) when the
// step is over. It is an Exchange otherwise, but for two things that Wait returns
// nil for, and Turn tells: some shards have closed the step already, or have not
// closed it yet.
func (s *Session) Step(ctx context.Context, push *Batch, meta PushMeta, step int64, pull *Batch) (*Call, error) {
	if err := s.slot(ctx); err != nil {
		return nil, err
	}
	c := newCall(s, push, meta, pull)
	c.turn = turn{kind: wire.Arrive, step: step}
	c.said.closed = -1
	return s.begin(c), nil
}

// Await goes on with a call of which Turn has told that shards have not closed
// its step: it asks those again. What others have answered stays. With again it
// asks every shard: one to which an older word of this trainer has come after the
// batch answers that the step is closed, and is given the batch once more.
func (s *Session) Await(ctx context.Context, of *Call, again bool) (*Call, error) {
	if err := s.slot(ctx); err != nil {
		return nil, err
	}
	c := newCall(s, nil, of.meta, of.pull)
	c.answers = of.answers
	c.turn = turn{kind: wire.Await, step: of.turn.step, only: of.said.waiting, again: again}
	c.said.closed, c.said.next = -1, of.said.next
	peers := int32(0)
	for _, p := range s.peers {
		if c.concerns(p) {
			peers++
		}
	}
	c.waiting.Store(peers)
	return s.begin(c), nil
}

// Idle tells every shard that this trainer has nothing to do in any pass up to
// one, until its next Step. It has to be said again and again: what a shard hears
// of an older message later takes its place.
func (s *Session) Idle(ctx context.Context, pass int) (*Call, error) {
	if err := s.slot(ctx); err != nil {
		return nil, err
	}
	c := newCall(s, nil, PushMeta{}, nil)
	c.turn = turn{kind: wire.Idle, step: int64(pass)}
	return s.begin(c), nil
}

// Turn tells, after a Wait that returned nil, how it stands with the call's step:
// closed is the newest open step of the shards that have closed it already,
// negative if none has; waiting says what those wait for that have not. If it is
// over everywhere, next is at least the step of this trainer.
func (c *Call) Turn() (closed int64, waiting string, next int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.closed, c.said.reason, max(c.said.next, c.turn.step)
}

// waits notes that a shard has not closed the step. To a push that is no news.
func (c *Call) waits(s *section, reason string) {
	if !s.await {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.said.waiting == nil {
		c.said.waiting = make([]bool, c.session.client.layout.shards)
	}
	c.said.waiting[s.shard] = true
	c.said.reason = reasonOf(s.shard, reason)
}

func (c *Call) closed(open int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said.closed = max(c.said.closed, open)
}

func (c *Call) reached(step int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said.next = max(c.said.next, step)
}

// turns writes a call that has to do with barriers. The batch goes to all shards
// before the message waits for the first: what one of them says of it is known
// before another is waited for.
func (m *message) turns() error {
	if m.call.turn.kind == wire.Arrive {
		m.barrier = wire.Arrive
		for _, shard := range m.peer.shards {
			m.section(shard)
			if err := m.push(shard); err != nil {
				return err
			}
		}
	}
	m.barrier = wire.Await
	if m.call.turn.kind == wire.Idle {
		m.barrier = wire.Idle
	}
	for _, shard := range m.peer.shards {
		concerned := m.call.turn.only == nil || m.call.turn.only[shard]
		if !concerned && !m.call.turn.again {
			continue
		}
		m.section(shard)
		if concerned && m.call.pull != nil {
			if err := m.pull(shard); err != nil {
				return err
			}
		}
	}
	m.part.last = true
	return m.flush()
}

func reasonOf(shard int, reason string) string {
	return fmt.Sprintf("shard %d: %s", shard, reason)
}
