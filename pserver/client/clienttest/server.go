// Package clienttest is a pserver for tests: it keeps its shards in plain maps,
// adds what is pushed, and answers as it is told to.
package clienttest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/pb"
)

// Row names a row of a table, or a block of a dense parameter (Key is its number).
type Row struct {
	Param uint16
	Key   uint64
}

// Push is a push as the server applied it.
type Push struct {
	Shard int
	wire.Meta
	Parts int
}

// Server is one pserver. Its fields are set before Start.
type Server struct {
	Name        string
	Incarnation string
	Job         [16]byte
	Parameters  job.Parameters
	// Generations has the generation of each shard that is served here.
	Generations map[int]int64
	// Refuse, if set, may answer a section in the server's place.
	Refuse func(r *wire.ShardRequest) (code wire.Code, next int64, reason string)
	// Hold, if set, is called before each message is handled.
	Hold func(ctx context.Context)

	pb.UnimplementedPServerServer

	mu       sync.Mutex
	rows     map[Row][]float32
	parts    map[int]int
	pushes   []Push
	messages int
	largest  int

	addr net.Addr
	grpc *transport.Server
}

// Start serves until the test ends.
func (s *Server) Start(t testing.TB, n transport.Network, addr string) {
	t.Helper()
	l, err := n.Listen(addr)
	require.NoError(t, err)
	s.rows, s.parts = map[Row][]float32{}, map[int]int{}
	s.addr, s.grpc = l.Addr(), transport.NewServer(s.exchange)
	pb.RegisterPServerServer(s.grpc, s)
	done := make(chan error, 1)
	go func() { done <- s.grpc.Serve(l) }()
	t.Cleanup(func() {
		s.grpc.Stop()
		if err := <-done; err != nil { // stopped before it began
			require.ErrorIs(t, err, grpc.ErrServerStopped)
		}
	})
}

// Stop breaks all connections.
func (s *Server) Stop() { s.grpc.Stop() }

// Owner is the server's entry in a view for a shard.
func (s *Server) Owner(shard int) membership.Owner {
	return membership.Owner{
		Name: s.Name, Incarnation: s.Incarnation, Address: s.addr.String(), Generation: s.Generations[shard],
	}
}

// Set gives a row or block its values; others are 0.
func (s *Server) Set(r Row, values ...float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[r] = values
}

// Rows are all rows and blocks that were set or pushed.
func (s *Server) Rows() map[Row][]float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rows)
}

// Pushes are the pushes in the order of their last parts.
func (s *Server) Pushes() []Push {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Push(nil), s.pushes...)
}

// Messages is the number of messages handled, and the size of the largest one
// of both directions.
func (s *Server) Messages() (n, largest int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages, s.largest
}

// exchange is the loop of a real server: decode, handle, answer, in order.
func (s *Server) exchange(ctx context.Context, stream transport.Stream) error {
	var (
		buffers = wire.NewPool(2)
		request wire.Request
		w       wire.ResponseWriter
	)
	for {
		body, err := stream.Recv()
		if err != nil {
			return err
		}
		if s.Hold != nil {
			s.Hold(ctx)
		}
		if err := request.Decode(body); err != nil {
			return err
		}
		b := buffers.Get()
		w.Start(b, request.Seq)
		for i := range request.Shards {
			s.section(request.Job, &request.Shards[i], &w)
		}
		w.Finish()
		s.mu.Lock()
		s.messages++
		s.largest = max(s.largest, len(body), len(b.Body()))
		s.mu.Unlock()
		if err := stream.Send(b); err != nil {
			return err
		}
	}
}

func (s *Server) section(id [16]byte, r *wire.ShardRequest, w *wire.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Section(r.Shard, s.Generations[r.Shard])
	if code, next, reason := s.check(id, r); code.Refused() {
		w.Answer(code, false, next, reason)
		return
	}
	code := wire.OK
	if r.Push != nil {
		code = s.push(r.Shard, r.Push)
	}
	s.pull(r, w)
	finished := code == wire.Applied && r.Push.Last
	next := int64(0)
	if r.Push != nil && !finished {
		next = r.Push.N + 1
	}
	w.Answer(code, finished, next, "")
}

func (s *Server) check(id [16]byte, r *wire.ShardRequest) (wire.Code, int64, string) {
	if id != s.Job {
		return wire.WrongOwner, 0, "another job"
	}
	if g, ok := s.Generations[r.Shard]; !ok || g != r.Generation {
		return wire.WrongOwner, 0, fmt.Sprintf("generation %d", g)
	}
	if s.Refuse == nil {
		return wire.OK, 0, ""
	}
	return s.Refuse(r)
}

func (s *Server) push(shard int, p *wire.PushData) wire.Code {
	if p.Part != s.parts[shard] {
		panic(fmt.Sprintf("shard %d gets part %d instead of %d", shard, p.Part, s.parts[shard]))
	}
	for _, d := range p.Dense {
		s.add(Row{d.Param, uint64(d.Block)}, d.Values)
	}
	for _, rows := range p.Sparse {
		dim := s.Parameters.List[rows.Param].Dim
		for i, k := range rows.Keys {
			s.add(Row{rows.Param, k}, rows.Values[i*dim:(i+1)*dim])
		}
	}
	s.parts[shard]++
	if p.More {
		return wire.Staged
	}
	s.pushes = append(s.pushes, Push{Shard: shard, Meta: p.Meta, Parts: s.parts[shard]})
	s.parts[shard] = 0
	if p.Void {
		return wire.Skipped
	}
	return wire.Applied
}

func (s *Server) add(r Row, values []float32) {
	if s.rows[r] == nil {
		s.rows[r] = make([]float32, len(values))
	}
	for i, v := range values {
		s.rows[r][i] += v
	}
}

func (s *Server) pull(r *wire.ShardRequest, to wire.Sink) {
	for _, d := range r.Dense {
		s.get(Row{d.Param, uint64(d.Block)}, to.Values(s.Parameters.List[d.Param].BlockLen(int(d.Block))))
	}
	for _, k := range r.Sparse {
		for _, key := range k.Keys {
			s.get(Row{k.Param, key}, to.Values(s.Parameters.List[k.Param].Dim))
		}
	}
}

func (s *Server) get(r Row, dst []float32) {
	clear(dst[copy(dst, s.rows[r]):])
}

// Progress tells of each chunk the next batch, from the pushes that came.
func (s *Server) Progress(_ context.Context, r *pb.ProgressRequest) (*pb.ProgressResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &pb.ProgressResponse{}
	for _, ref := range r.Shards {
		a := &pb.ShardProgress{Shard: ref.Shard, Generation: s.Generations[int(ref.Shard)]}
		code, _, reason := s.check([16]byte(r.Job), &wire.ShardRequest{Shard: int(ref.Shard), Generation: ref.Generation})
		a.Code, a.Reason = uint32(code), reason
		for _, c := range r.Chunks {
			if !code.Refused() {
				a.Chunks = append(a.Chunks, s.progress(int(ref.Shard), c))
			}
		}
		out.Shards = append(out.Shards, a)
	}
	return out, nil
}

func (s *Server) progress(shard int, c *pb.ChunkRef) *pb.ChunkProgress {
	var p pb.ChunkProgress
	for _, x := range s.pushes {
		if x.Shard == shard && int64(x.Pass) == c.Pass && x.Rank == c.Rank {
			p.Next = x.N + 1
			p.Finished = p.Finished || x.Last
		}
	}
	return &p
}

// Stats adds up the pushes that came, by shard and pass.
func (s *Server) Stats(context.Context, *pb.StatsRequest) (*pb.StatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &pb.StatsResponse{}
	for shard, generation := range s.Generations {
		st := &pb.ShardStats{Shard: uint32(shard), Generation: generation}
		sums := map[int]*pb.PassStats{}
		for _, p := range s.pushes {
			if p.Shard != shard {
				continue
			}
			sum := sums[p.Pass]
			if sum == nil {
				sum = &pb.PassStats{Pass: int64(p.Pass)}
				sums[p.Pass] = sum
				st.Passes = append(st.Passes, sum)
			}
			sum.Batches++
			sum.Records += int64(p.Records)
			sum.Loss += p.Loss
			sum.Weight += p.Weight
		}
		r.Shards = append(r.Shards, st)
	}
	return r, nil
}

// Identify says who the server is.
func (s *Server) Identify(context.Context, *pb.IdentifyRequest) (*pb.IdentifyResponse, error) {
	r := &pb.IdentifyResponse{Incarnation: s.Incarnation, Name: s.Name, Job: s.Job[:], Version: "test"}
	for shard, g := range s.Generations {
		r.Shards = append(r.Shards, &pb.ShardRef{Shard: uint32(shard), Generation: g})
	}
	return r, nil
}
