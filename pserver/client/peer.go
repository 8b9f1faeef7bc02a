package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/pserver/pb"
)

// unanswered bounds the messages of a stream that wait for their answers.
const unanswered = 64

// peer is a session's side of one pserver: the stream, a goroutine that writes
// messages to it, and one that takes the answers. The two share only channels.
// The gRPC connection beside it carries the calls, and its pings tell whether
// the pserver is there.
type peer struct {
	session *Session
	owner   membership.Owner
	shards  []int // ascending
	conn    *grpc.ClientConn
	stream  transport.Stream

	queue   chan *Call // exchanges to send
	pending chan *part // messages sent, in order
	free    chan *part // answered ones, for reuse
	buffers *wire.Pool

	writer   wire.RequestWriter // the sender's
	seq      uint64             // the sender's
	response wire.Response      // the receiver's

	asked, heard atomic.Int64 // messages sent, and answered
	known        int64        // the pulse's: heard at the last look,
	quiet        time.Time    // which has not changed since
}

// part remembers what a message asked for.
type part struct {
	call     *Call
	seq      uint64
	last     bool // of the call at this peer
	sections []section
	items    [][]float32 // where pulled values go, in order
}

// section is one shard's section of a message.
type section struct {
	shard  int
	push   bool // it carries a push …
	staged bool // … which goes on in a later message
	await  bool // it waits for the end of a step
	items  int  // the end of the section's items
}

func newPeer(s *Session, o membership.Owner) *peer {
	return &peer{
		session: s, owner: o,
		queue:   make(chan *Call, inFlight),
		pending: make(chan *part, unanswered),
		free:    make(chan *part, unanswered),
		buffers: wire.NewPool(inFlight),
	}
}

// fault is the error of a peer that does not answer properly.
func (p *peer) fault(err error) *FaultError {
	return &FaultError{Shard: p.shards[0], Pserver: p.owner.Name, Err: err}
}

func (p *peer) sendLoop() {
	for {
		select {
		case c := <-p.queue:
			err := p.send(c)
			if errors.Is(err, io.EOF) {
				return // the stream has ended; the receiver learns why
			}
			if err != nil {
				p.session.broken(p.fault(err))
				return
			}
		case <-p.session.ctx.Done():
			return
		}
	}
}

// watchLoop breaks the session when the pserver falls silent, which the stream
// alone would not notice.
func (p *peer) watchLoop() {
	if err := transport.Lost(p.session.ctx, p.conn); p.session.ctx.Err() == nil {
		p.session.broken(p.fault(err))
	}
}

func (p *peer) receiveLoop() {
	for {
		body, err := p.stream.Recv()
		if err != nil {
			p.session.broken(p.fault(streamError(err)))
			return
		}
		p.heard.Add(1)
		select {
		case m := <-p.pending:
			if f := p.receive(m, body); f != nil {
				p.session.broken(f)
				return
			}
			p.recycle(m)
		default:
			p.session.broken(p.fault(errors.New("an answer without a question")))
			return
		}
	}
}

// receive takes one answer. It returns the fault that breaks the session.
func (p *peer) receive(m *part, body []byte) *FaultError {
	r := &p.response
	if err := r.Decode(body); err != nil {
		return p.fault(err)
	}
	if r.Seq != m.seq || len(r.Shards) != len(m.sections) {
		return p.fault(fmt.Errorf("answer %d with %d sections instead of %d with %d", r.Seq, len(r.Shards), m.seq, len(m.sections)))
	}
	from := 0
	for i := range r.Shards {
		s := &m.sections[i]
		if f := p.answer(m.call, s, &r.Shards[i], m.items[from:s.items]); f != nil {
			return f
		}
		from = s.items
	}
	if m.last {
		m.call.answered()
	}
	return nil
}

// answer takes one shard's section of an answer.
func (p *peer) answer(c *Call, s *section, a *wire.ShardResponse, items [][]float32) *FaultError {
	f := &FaultError{Shard: s.shard, Pserver: p.owner.Name, Code: a.Code, Next: a.Next, Reason: a.Reason}
	generation := p.session.view.Shards[s.shard].Generation
	switch {
	case a.Shard != s.shard:
		return p.fault(fmt.Errorf("an answer of shard %d instead of %d", a.Shard, s.shard))
	case a.Code == wire.GoBack || a.Code == wire.Stale || a.Code == wire.Full:
		c.refused(f)
		return nil
	case a.Code == wire.Waiting && c.turn.kind != wire.NoBarrier:
		c.waits(s, a.Reason)
		return nil
	case a.Code == wire.Closed && c.turn.kind != wire.NoBarrier:
		c.closed(a.Next)
		return nil
	case a.Code.Refused():
		return f
	case a.Generation != generation:
		f.Code, f.Reason = wire.WrongOwner, fmt.Sprintf("generation %d answers instead of %d", a.Generation, generation)
		return f
	case !s.fits(a.Code):
		return p.fault(fmt.Errorf("shard %d answers %q", s.shard, a.Code))
	}
	if s.await {
		c.reached(a.Next)
	}
	if (s.push || s.await) && !s.staged {
		c.answers[s.shard] = Answer{Code: a.Code, Finished: a.Finished, Next: a.Next}
	}
	values := a.Values
	for _, dst := range items {
		if len(values) < len(dst) {
			return p.fault(fmt.Errorf("shard %d answers too few values", s.shard))
		}
		values = values[copy(dst, values):]
	}
	if len(values) != 0 {
		return p.fault(fmt.Errorf("shard %d answers too many values", s.shard))
	}
	return nil
}

// fits tells whether the section may be answered by a success of this code.
func (s *section) fits(c wire.Code) bool {
	switch c {
	case wire.OK:
		return !s.push
	case wire.Staged:
		return s.staged
	case wire.Applied, wire.Duplicate, wire.Skipped:
		return s.push || s.await
	}
	return false
}

// progress fills the column of each of the peer's shards.
func (p *peer) progress(ctx context.Context, all *pb.ProgressRequest, out [][]Progress) error {
	req := &pb.ProgressRequest{Job: all.Job, Chunks: all.Chunks}
	for _, s := range p.shards {
		req.Shards = append(req.Shards, &pb.ShardRef{Shard: uint32(s), Generation: p.session.view.Shards[s].Generation})
	}
	res, err := pb.NewPServerClient(p.conn).Progress(ctx, req)
	if err != nil {
		return p.fault(err)
	}
	if len(res.Shards) != len(p.shards) {
		return p.fault(fmt.Errorf("progress of %d shards instead of %d", len(res.Shards), len(p.shards)))
	}
	for i, a := range res.Shards {
		shard := p.shards[i]
		f := &FaultError{Shard: shard, Pserver: p.owner.Name, Code: wire.Code(a.Code), Reason: a.Reason}
		switch {
		case f.Code != wire.OK:
			return f
		case int(a.Shard) != shard || a.Generation != p.session.view.Shards[shard].Generation || len(a.Chunks) != len(out):
			return p.fault(fmt.Errorf("progress of shard %d generation %d, %d chunks", a.Shard, a.Generation, len(a.Chunks)))
		}
		for k, c := range a.Chunks {
			out[k][shard] = Progress{Finished: c.Finished, Next: c.Next}
		}
	}
	return nil
}

// sums fills in what the peer's shards have counted.
func (p *peer) sums(ctx context.Context, pass int, out []Sums) error {
	res, err := pb.NewPServerClient(p.conn).Stats(ctx, &pb.StatsRequest{})
	if err != nil {
		return p.fault(err)
	}
	for _, shard := range p.shards {
		i := slices.IndexFunc(res.Shards, func(a *pb.ShardStats) bool {
			return int(a.Shard) == shard && a.Generation == p.session.view.Shards[shard].Generation
		})
		if i < 0 {
			return &FaultError{Shard: shard, Pserver: p.owner.Name, Code: wire.WrongOwner, Reason: "it has no sums of the shard"}
		}
		for _, s := range res.Shards[i].Passes {
			if int(s.Pass) == pass {
				out[shard] = Sums{Batches: s.Batches + s.Skipped + s.Lost, Records: s.Records, Loss: s.Loss, Weight: s.Weight}
			}
		}
	}
	return nil
}

func (p *peer) recycle(m *part) {
	m.call = nil
	clear(m.items)
	select {
	case p.free <- m:
	default:
	}
}
