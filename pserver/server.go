package pserver

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/pserver/ledger"
	"starfish/pserver/pb"
)

const (
	// goodbye bounds how long calls may go on when the service stops.
	goodbye = 500 * time.Millisecond
	// buffers is how many answers a stream keeps for reuse.
	buffers = 4
	// maxAnswer bounds the values of one answer, in bytes, leaving room for the
	// fixed parts.
	maxAnswer = wire.MaxMessage - 1<<20
)

// listen starts the service; stop ends it and waits.
func (s *Server) listen() (stop func(), err error) {
	l, err := s.cfg.Network.Listen(s.cfg.Listen)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.address = transport.Advertised(s.cfg.Advertise, l.Addr())
	s.mu.Unlock()
	service := &service{Server: s}
	g := transport.NewServer(service.exchange)
	pb.RegisterPServerServer(g, service)
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	return func() {
		t := s.cfg.Clock.Timer(goodbye)
		defer t.Stop()
		quiet := make(chan struct{})
		go func() { g.GracefulStop(); close(quiet) }()
		select {
		case <-quiet:
		case <-t.C():
		}
		g.Stop()
		<-quiet
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.WithError(err).Warn("the service ended with an error")
		}
	}, nil
}

// probe asks the process at an address who it is.
func (s *Server) probe(ctx context.Context, address string) (string, error) {
	cc, err := transport.NewClient(s.cfg.Network, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = cc.Close() }()
	r, err := pb.NewPServerClient(cc).Identify(ctx, &pb.IdentifyRequest{})
	return r.GetIncarnation(), err
}

// service is what trainers call.
type service struct {
	pb.UnimplementedPServerServer
	*Server
}

// Exchange is exchange for clients that speak gRPC only.
func (s *service) Exchange(g grpc.BidiStreamingServer[pb.Frame, pb.Frame]) error {
	err := s.exchange(g.Context(), transport.Accept(g))
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, wire.ErrFormat):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, errFenced):
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

// exchange serves one stream: messages are answered one after the other.
func (s *service) exchange(ctx context.Context, stream transport.Stream) error {
	x := &exchanger{Server: s.Server, source: s.sources.Add(1), stream: stream, pool: wire.NewPool(buffers)}
	defer x.close()
	return x.serve(ctx)
}

// errFenced: between the work and the answer the lease may have ended.
var errFenced = errors.New("pserver: the shard may have another owner, the answer is withheld")

// exchanger is one stream. Everything in it belongs to the stream's goroutine
// and is reused from message to message.
type exchanger struct {
	*Server
	source uint64
	stream transport.Stream
	pool   *wire.Pool
	job    [16]byte
	known  bool

	request wire.Request
	writer  wire.ResponseWriter
	// used are the ownerships that the answer speaks for; seen are the shards
	// that may hold parts of this stream.
	used   []*held
	seen   map[*Shard]struct{}
	values int // bytes of values in the answer
	// views has for each shard what the values were that the stream was given.
	views []view
	turns
}

func (x *exchanger) serve(ctx context.Context) error {
	x.seen = map[*Shard]struct{}{}
	for {
		if err := x.stage.Wait(ctx, x.source); err != nil {
			return err
		}
		body, err := x.stream.Recv()
		if err != nil {
			return err
		}
		x.metrics.received(len(body))
		if err := x.request.Decode(body); err != nil {
			x.metrics.malformed.Inc()
			return err
		}
		b := x.answer(ctx)
		// The last look, as late as it can be: nothing that is said for a shard
		// may leave after its lease may have ended.
		for _, h := range x.used {
			if !h.ok() {
				b.Release()
				return errFenced
			}
		}
		if err := x.stream.Send(b); err != nil {
			return err
		}
	}
}

// answer handles a message and writes its answer.
func (x *exchanger) answer(ctx context.Context) *wire.Buffer {
	b := x.pool.Get()
	x.writer.Start(b, x.request.Seq)
	x.used, x.values, x.turns = x.used[:0], 0, turns{}
	table := *x.table.Load()
	if len(x.views) < len(table) {
		x.views = make([]view, len(table))
	}
	mine := x.ours()
	for i := range x.request.Shards {
		r := &x.request.Shards[i]
		var h *held
		if mine && r.Shard < len(table) {
			h = table[r.Shard]
		}
		generation := r.Generation
		if h != nil {
			generation = h.generation
		}
		x.writer.Section(r.Shard, generation)
		x.section(ctx, r, h)
	}
	x.writer.Finish()
	return b
}

// ours tells whether the message is for this job.
func (x *exchanger) ours() bool {
	if !x.known {
		x.mu.Lock()
		if x.Server.job != nil {
			x.job, x.known = x.Server.job.UUID, true
		}
		x.mu.Unlock()
	}
	return x.known && x.request.Job == x.job
}

// section handles one shard's section: the push, then the pull.
func (x *exchanger) section(ctx context.Context, r *wire.ShardRequest, h *held) {
	if code, reason := x.refusal(r.Generation, h); code != wire.OK {
		x.refuse(code, 0, reason)
		return
	}
	size, err := h.core.PullSize(r.Dense, r.Sparse)
	if x.values += 4 * size; err == nil && x.values > maxAnswer {
		err = errTooMuch
	}
	if err != nil {
		x.refuse(wire.Invalid, 0, err.Error())
		return
	}
	out, err := x.push(ctx, r, h)
	if err != nil {
		x.failed(h, err)
		return
	}
	code := wire.OK
	if r.Push != nil || r.Barrier.Kind == wire.Await {
		code = out.Code()
	}
	if code.Refused() {
		x.refuse(code, out.Next, out.Reason)
		return
	}
	if out.Lost > 0 {
		h.gaps.Add(out.Lost)
		h.nudge() // the keeper tells
	}
	view := &x.views[r.Shard]
	if code == wire.Applied && !out.Told {
		view.own++
	}
	if size > 0 {
		updates, err := h.core.PullAt(r.Dense, r.Sparse, &x.writer, h.ok)
		if err != nil {
			x.failed(h, err)
			return
		}
		view.pulled(updates)
	}
	x.used = append(x.used, h)
	x.metrics.answers[code].Inc()
	x.writer.Answer(code, out.Finished, out.Next, "")
}

// push handles what a section has before its pull.
func (x *exchanger) push(ctx context.Context, r *wire.ShardRequest, h *held) (out Outcome, err error) {
	if r.Push != nil {
		r.Push.Seen = x.views[r.Shard].seen(r.Push)
		if r.Push.More {
			x.seen[h.core] = struct{}{}
		}
	}
	switch {
	case r.Barrier.Kind != wire.NoBarrier:
		return x.turn(ctx, r, h)
	case r.Push != nil:
		return h.core.Push(x.source, r.Push, h.ok)
	}
	return Outcome{}, nil
}

var errTooMuch = errors.New("pserver: the answer would be larger than a message")

// refusal tells why a shard cannot be asked at all; OK if it can.
func (s *Server) refusal(generation int64, h *held) (wire.Code, string) {
	switch {
	case s.stopping.Load():
		return wire.Paused, "the pserver is stopping"
	case h == nil:
		return wire.WrongOwner, "the shard is not owned here"
	case h.generation != generation:
		return wire.WrongOwner, "the shard has another generation"
	case h.away.Load():
		return wire.Paused, "the shard is being handed over"
	case !h.ok():
		return wire.Paused, "the lease may have ended"
	case !h.serving.Load():
		return wire.Unloaded, "the shard is being restored"
	}
	return wire.OK, ""
}

func (x *exchanger) refuse(code wire.Code, next int64, reason string) {
	x.metrics.answers[code].Inc()
	x.writer.Answer(code, false, next, reason)
}

// failed answers a section whose handling gave an error.
func (x *exchanger) failed(h *held, err error) {
	switch {
	case errors.Is(err, ErrNotOwner):
		x.refuse(wire.Paused, 0, "the lease may have ended, or the shard is being handed over")
	case errors.Is(err, ErrBroken):
		h.nudge() // the keeper fails the job
		x.refuse(wire.Failed, 0, err.Error())
	case errors.Is(err, ErrMemory):
		x.full(h, err)
	default: // ErrInvalid, ErrParts, ErrTooLarge
		x.refuse(wire.Invalid, 0, err.Error())
	}
}

// full answers a push for which there is no memory.
func (x *exchanger) full(h *held, err error) {
	x.mu.Lock()
	due := x.fullness.Due(x.cfg.Clock.Now())
	x.mu.Unlock()
	if due {
		x.logOf(h).WithError(err).Warn("at the memory limit: no new rows; another pserver, or a higher --max-memory, makes room")
	}
	x.refuse(wire.Full, 0, err.Error())
}

func (x *exchanger) close() {
	for core := range x.seen {
		core.DropSource(x.source)
	}
}

// Progress says how far shards are with chunks.
func (s *service) Progress(ctx context.Context, r *pb.ProgressRequest) (*pb.ProgressResponse, error) {
	s.mu.Lock()
	mine := s.job != nil && string(r.Job) == string(s.job.UUID[:])
	s.mu.Unlock()
	for _, c := range r.Chunks {
		if c.GetPass() < 0 || c.GetPass() > ledger.MaxPass || c.GetRank() < 0 || c.GetRank() > ledger.MaxRank {
			return nil, status.Errorf(codes.InvalidArgument, "pserver: there is no pass %d with rank %d", c.GetPass(), c.GetRank())
		}
	}
	table := *s.table.Load()
	res := &pb.ProgressResponse{}
	for _, ref := range r.Shards {
		var h *held
		if mine && int(ref.Shard) < len(table) {
			h = table[ref.Shard]
		}
		res.Shards = append(res.Shards, s.progress(ctx, ref, h, r.Chunks))
	}
	return res, nil
}

// restoreTime is how long a question about progress waits for a shard that is being
// restored, so that trainers go on at once when it is there.
const restoreTime = time.Second

func (s *service) awaitServed(ctx context.Context, generation int64, h *held) {
	if code, _ := s.refusal(generation, h); code != wire.Unloaded {
		return
	}
	timer := s.cfg.Clock.Timer(restoreTime)
	defer timer.Stop()
	select {
	case <-h.served:
	case <-h.ctx.Done():
	case <-timer.C():
	case <-ctx.Done():
	}
}

func (s *service) progress(ctx context.Context, ref *pb.ShardRef, h *held, chunks []*pb.ChunkRef) *pb.ShardProgress {
	p := &pb.ShardProgress{Shard: ref.Shard, Generation: ref.Generation}
	s.awaitServed(ctx, ref.Generation, h)
	code, reason := s.refusal(ref.Generation, h)
	if code == wire.OK {
		for _, c := range chunks {
			finished, next := h.core.Progress(int(c.Pass), c.Rank)
			p.Chunks = append(p.Chunks, &pb.ChunkProgress{Finished: finished, Next: next})
		}
		code, reason = s.refusal(ref.Generation, h) // what was read counts only if it is still owned
	}
	if code != wire.OK {
		p.Code, p.Reason, p.Chunks = uint32(code), reason, nil
	}
	return p
}

// Identify says who answers here.
func (s *service) Identify(context.Context, *pb.IdentifyRequest) (*pb.IdentifyResponse, error) {
	s.mu.Lock()
	r := &pb.IdentifyResponse{Incarnation: s.incarnation, Name: s.cfg.Name, Version: s.cfg.Version}
	if s.job != nil {
		r.Job = s.job.UUID[:]
	}
	s.mu.Unlock()
	for shard, h := range *s.table.Load() {
		if h != nil && h.serving.Load() && h.owns() {
			r.Shards = append(r.Shards, &pb.ShardRef{Shard: uint32(shard), Generation: h.generation})
		}
	}
	return r, nil
}

// Stats reports the sums of the shards that are served here.
func (s *service) Stats(context.Context, *pb.StatsRequest) (*pb.StatsResponse, error) {
	r := &pb.StatsResponse{}
	for _, h := range *s.table.Load() {
		if h == nil || !h.serving.Load() {
			continue
		}
		st := h.core.Stats()
		h.mu.Lock()
		recovered, doing, saving := h.recovered, h.step, h.saving
		h.mu.Unlock()
		out := &pb.ShardStats{
			Doing: doing, CheckpointError: errorText(saving),
			Shard: uint32(h.shard), Generation: h.generation,
			Batches: st.Total.Batches, Skipped: st.Total.Skipped, Lost: st.Total.Lost, Losses: st.Summary.Losses,
			Duplicates: st.Summary.Duplicates, Replayed: st.Summary.Replayed,
			Rows: st.Rows, Bytes: st.Bytes, RecoveredSeconds: recovered.Seconds(), WaitsFor: st.Barrier.waiting(),
		}
		if st.Barrier != nil {
			out.Step = st.Barrier.Step
		}
		for _, p := range st.Summary.Sums {
			out.Passes = append(out.Passes, &pb.PassStats{
				Pass: int64(p.Pass), Batches: p.Batches, Skipped: p.Skipped, Records: p.Records, Loss: p.Loss, Weight: p.Weight, Lost: p.Lost,
			})
		}
		r.Shards = append(r.Shards, out)
	}
	return r, nil
}
