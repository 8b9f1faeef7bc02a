package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"starfish/internal/failpoint"
	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/pserver/pb"
)

// ErrClosed: the session was closed by its user.
var ErrClosed = errors.New("client: session closed")

// inFlight bounds the exchanges of a session that wait for their answers.
const inFlight = 8

// Session moves pushes and pulls under one view: an answer counts only if the
// generation that gave it is the view's, and the session ends when a shard
// changes hands. It has one stream to each pserver and
// goroutines for each stream, so a slow server holds up neither the caller
// nor the other servers until inFlight exchanges wait for it.
//
// A session belongs to one user: its methods must not be called concurrently,
// apart from Done, Err, Abort and Close.
type Session struct {
	client *Client
	view   membership.View
	peers  []*peer
	slots  chan struct{} // one token for each exchange in flight
	wg     sync.WaitGroup

	ctx    context.Context // of all streams; its cause is the session's error
	cancel context.CancelCauseFunc
}

// Open opens a session under a view in which every shard has an owner.
func (c *Client) Open(ctx context.Context, v membership.View) (*Session, error) {
	if missing := c.unowned(v); len(missing) != 0 {
		return nil, &FaultError{Shard: missing[0], Code: wire.WrongOwner, Reason: "the shard has no owner"}
	}
	s := &Session{client: c, view: v, slots: make(chan struct{}, inFlight)}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.peers = peersOf(s, v)
	stop := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	err := s.connect()
	if !stop() {
		err = because(err, context.Cause(ctx))
	}
	if err != nil {
		s.cancel(err)
		s.Close()
		return nil, err
	}
	s.wg.Go(s.watch)
	s.wg.Go(s.pulse)
	for _, p := range s.peers {
		s.wg.Go(p.sendLoop)
		s.wg.Go(p.receiveLoop)
		s.wg.Go(p.watchLoop)
	}
	return s, nil
}

// peersOf groups the shards by owner, in the order of their first shards.
func peersOf(s *Session, v membership.View) []*peer {
	var peers []*peer
	for shard, o := range v.Shards[:s.client.layout.shards] {
		i := slices.IndexFunc(peers, func(p *peer) bool { return p.owner.Incarnation == o.Incarnation })
		if i < 0 {
			i = len(peers)
			peers = append(peers, newPeer(s, o))
		}
		peers[i].shards = append(peers[i].shards, shard)
	}
	return peers
}

// connect opens all streams at once.
func (s *Session) connect() error {
	var g errgroup.Group
	for _, p := range s.peers {
		g.Go(func() error {
			cc, err := transport.NewClient(s.client.c.Network, p.owner.Address)
			if err != nil {
				return p.fault(err)
			}
			p.conn = cc
			if p.stream, err = transport.Open(s.ctx, s.client.c.Network, p.owner.Address); err != nil {
				return p.fault(err)
			}
			return nil
		})
	}
	return g.Wait()
}

// watch breaks the session when a shard changes hands: an owner that has gone
// silent without closing its connections is noticed by that.
func (s *Session) watch() {
	for v := range membership.WatchView(s.ctx, s.client.c.Store, s.view) {
		if shard := changed(s.view, v); shard >= 0 {
			s.broken(&FaultError{
				Shard: shard, Pserver: s.view.Shards[shard].Name, Code: wire.WrongOwner, Reason: "the shard has changed hands",
			})
			return
		}
	}
}

// View is the view that the session works under.
func (s *Session) View() membership.View { return s.view }

// Done is closed when the session is broken or closed; Err says why.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err is what ended the session: a *FaultError, what Abort was given, or
// ErrClosed; nil while it is alive.
func (s *Session) Err() error { return context.Cause(s.ctx) }

// Abort breaks the session, as a fault of the network would: when the view
// has changed, for example.
func (s *Session) Abort(err error) { s.cancel(err) }

// Close ends the session and returns when nothing of it touches a batch any
// more. It may be called again.
func (s *Session) Close() {
	s.cancel(ErrClosed)
	for _, p := range s.peers {
		if p.conn != nil {
			_ = p.conn.Close() // only says "closed already"
		}
	}
	s.wg.Wait()
}

// broken ends the session because of a fault. After its end everything breaks.
func (s *Session) broken(f *FaultError) {
	if s.ctx.Err() == nil {
		s.client.faults.Add(1)
		s.client.waiting(f.Error())
	}
	s.cancel(f)
}

// Exchange pushes one batch and pulls another (nil: not), in this order at
// every shard. Every shard gets the push, empty where it has nothing to add.
//
// It returns before the servers have answered: the batches must not be touched
// until Wait of the call has returned nil or a refusal (GoBack, Stale, Full), or the
// session is closed. A further Exchange may be made before; calls are handled
// in order. With inFlight calls under way it waits for the oldest.
func (s *Session) Exchange(ctx context.Context, push *Batch, meta PushMeta, pull *Batch) (*Call, error) {
	if err := s.slot(ctx); err != nil {
		return nil, err
	}
	return s.begin(newCall(s, push, meta, pull)), nil
}

// slot takes the slot of a call.
func (s *Session) slot(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-s.ctx.Done():
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin sends a call that holds a slot.
func (s *Session) begin(c *Call) *Call {
	for i, p := range s.peers {
		if i > 0 && c.push != nil {
			failpoint.Hit(failpoint.BetweenPushes)
		}
		if c.concerns(p) {
			p.queue <- c // has room for every call that holds a slot
		}
	}
	return c
}

// Progress asks every shard how far it is with chunks: one entry for each
// chunk, with one for each shard. Without chunks it asks whether all serve.
func (s *Session) Progress(ctx context.Context, chunks []Chunk) ([][]Progress, error) {
	req := &pb.ProgressRequest{Job: s.client.c.Job[:]}
	for _, c := range chunks {
		req.Chunks = append(req.Chunks, &pb.ChunkRef{Pass: int64(c.Pass), Rank: c.Rank})
	}
	out := make([][]Progress, len(chunks))
	for i := range out {
		out[i] = make([]Progress, s.client.layout.shards)
	}
	ctx, stop := s.within(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range s.peers {
		g.Go(func() error { return p.progress(gctx, req, out) })
	}
	if err := g.Wait(); err != nil {
		return nil, cmp.Or(s.Err(), err)
	}
	return out, nil
}

// within is a context that ends with the session too.
func (s *Session) within(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// Sums asks every shard for its sums of a pass.
func (s *Session) Sums(ctx context.Context, pass int) ([]Sums, error) {
	ctx, stop := s.within(ctx)
	defer stop()
	out := make([]Sums, s.client.layout.shards)
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range s.peers {
		g.Go(func() error { return p.sums(gctx, pass, out) })
	}
	if err := g.Wait(); err != nil {
		return nil, cmp.Or(s.Err(), err)
	}
	return out, nil
}

// because gives a fault the cause that its context ended with.
func because(err, cause error) error {
	var f *FaultError
	if errors.As(err, &f) {
		f.Err = cause
		return f
	}
	return cause
}

// streamError tells why a stream has ended when it should not have.
func streamError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
