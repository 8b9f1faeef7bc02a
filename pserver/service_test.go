package pserver_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/pb"
)

// wireClient speaks to a pserver message by message.
type wireClient struct {
	t       *testing.T
	w       *world
	conn    *grpc.ClientConn
	address string
	stream  transport.Stream
	pool    *wire.Pool
	seq     uint64
	cancel  context.CancelFunc
}

func (w *world) dial(p *process) *wireClient {
	w.t.Helper()
	cc, err := transport.NewClient(w.net.Host("raw"), p.Status().Address)
	require.NoError(w.t, err)
	c := &wireClient{t: w.t, w: w, conn: cc, address: p.Status().Address, pool: wire.NewPool(2)}
	w.t.Cleanup(func() { _ = cc.Close() })
	c.open()
	return c
}

func (c *wireClient) open() {
	c.t.Helper()
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(c.t.Context())
	c.t.Cleanup(c.cancel)
	s, err := transport.Open(ctx, c.w.net.Host("raw"), c.address)
	require.NoError(c.t, err)
	c.stream = s
}

// ask sends one message with what write puts into it.
func (c *wireClient) ask(id uuid.UUID, write func(*wire.RequestWriter)) (wire.Response, error) {
	c.t.Helper()
	var rw wire.RequestWriter
	b := c.pool.Get()
	c.seq++
	rw.Start(b, id, c.seq)
	write(&rw)
	rw.Finish()
	require.NoError(c.t, c.stream.Send(b))
	body, err := c.stream.Recv()
	if err != nil {
		return wire.Response{}, err
	}
	var r wire.Response
	require.NoError(c.t, r.Decode(body))
	require.Equal(c.t, c.seq, r.Seq)
	return r, nil
}

func one(t *testing.T, r wire.Response, err error) wire.ShardResponse {
	t.Helper()
	require.NoError(t, err)
	require.Len(t, r.Shards, 1)
	return r.Shards[0]
}

// block is the shard of the dense parameter.
func block() int { return job.BlockShard("total", 0, shards) }

func push(shard int, generation int64, m wire.Meta, gradient float32) func(*wire.RequestWriter) {
	return func(w *wire.RequestWriter) {
		w.Section(shard, generation)
		w.Push(&m, 0)
		w.PushBlock(0, 0, []float32{gradient})
		w.PullBlock(0, 0, 1)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		c := w.dial(p)
		id := w.job.UUID
		ask := func(id uuid.UUID, shard int, generation int64, m wire.Meta) wire.ShardResponse {
			r, err := c.ask(id, push(shard, generation, m, -1))
			return one(t, r, err)
		}
		m := wire.Meta{Rank: 1, Token: 5, Records: 1}

		a := ask(id, block(), 1, m)
		require.Equal(t, wire.Applied, a.Code, a.Reason)
		require.EqualValues(t, 1, a.Next)
		require.EqualValues(t, 1, a.Generation)
		require.Equal(t, []float32{1}, a.Values, "the pull sees the push of the same message")
		require.Equal(t, wire.Duplicate, ask(id, block(), 1, m).Code)

		m.N = 5
		a = ask(id, block(), 1, m)
		require.Equal(t, wire.GoBack, a.Code)
		require.EqualValues(t, 1, a.Next)
		require.Empty(t, a.Values)
		m.N, m.Token = 1, 4
		require.Equal(t, wire.Stale, ask(id, block(), 1, m).Code)
		m.Token = 5
		require.Equal(t, wire.WrongOwner, ask(uuid.New(), block(), 1, m).Code, "another job")
		require.Equal(t, wire.WrongOwner, ask(id, block(), 2, m).Code, "another generation")
		require.Equal(t, wire.WrongOwner, ask(id, 99, 1, m).Code, "no such shard")
		require.Equal(t, wire.Invalid, ask(id, (block()+1)%shards, 1, m).Code, "a block of another shard")

		r, err := c.ask(id, func(w *wire.RequestWriter) {
			w.Section(block(), 1)
			w.PullBlock(0, 0, 1)
			w.Section(0, 7)
			w.PullKeys(1, []uint64{1}, 1)
		})
		require.NoError(t, err)
		require.Equal(t, wire.OK, r.Shards[0].Code)
		require.Equal(t, []float32{1}, r.Shards[0].Values, "nothing of all that has changed it")
		require.Equal(t, wire.WrongOwner, r.Shards[1].Code, "one refusal does not touch its neighbours")

		p.client.Partition(true)
		time.Sleep(3 * time.Second)
		require.Equal(t, wire.Paused, ask(id, block(), 1, m).Code)
		p.client.Partition(false)
	})
}

// A message that makes no sense ends its stream and nothing else.
func TestMalformedMessage(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		c := w.dial(p)
		b := c.pool.Get()
		require.NoError(t, c.stream.Send(b)) // empty
		_, err := c.stream.Recv()
		require.ErrorIs(t, err, transport.ErrRefused)
		require.ErrorContains(t, err, wire.ErrFormat.Error())
		c.open()
		r, err := c.ask(w.job.UUID, push(block(), 1, wire.Meta{Token: 1}, -1))
		require.Equal(t, wire.Applied, one(t, r, err).Code)

		// The same to a client that speaks gRPC only.
		g, err := pb.NewPServerClient(c.conn).Exchange(t.Context())
		require.NoError(t, err)
		require.NoError(t, g.Send(&pb.Frame{}))
		_, err = g.Recv()
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		g, err = pb.NewPServerClient(c.conn).Exchange(t.Context())
		require.NoError(t, err)
		var rw wire.RequestWriter
		b = c.pool.Get()
		rw.Start(b, w.job.UUID, 7)
		push(block(), 1, wire.Meta{Token: 1, N: 1}, -1)(&rw)
		rw.Finish()
		require.NoError(t, g.Send(&pb.Frame{Body: b.Body()}))
		f, err := g.Recv()
		require.NoError(t, err)
		require.NoError(t, r.Decode(append(wire.Aligned(0), f.Body...)))
		require.Equal(t, wire.Applied, one(t, r, nil).Code)
	})
}

// What a stream has staged is forgotten with the stream.
func TestPartsEndWithTheirStream(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		c := w.dial(p)
		m := wire.Meta{Token: 1, Records: 1}
		part := func(n int, more bool) func(*wire.RequestWriter) {
			return func(w *wire.RequestWriter) {
				w.Section(block(), 1)
				w.Push(&m, n)
				w.PushBlock(0, 0, []float32{-1})
				if more {
					w.More()
				}
			}
		}
		r, err := c.ask(w.job.UUID, part(0, true))
		require.Equal(t, wire.Staged, one(t, r, err).Code)
		require.Positive(t, p.Status().StagedBytes)
		c.cancel()
		w.eventually("it is forgotten", func() bool { return p.Status().StagedBytes == 0 })
		c.open()
		r, err = c.ask(w.job.UUID, part(1, false))
		require.Equal(t, wire.Invalid, one(t, r, err).Code)
		r, err = c.ask(w.job.UUID, part(0, false))
		require.Equal(t, wire.Applied, one(t, r, err).Code)
	})
}

// The lease ends between the work and the answer: the answer is withheld.
func TestAnswerIsWithheld(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		c := w.dial(p)
		w.store.ExpireAll()
		synctest.Wait()
		r, err := c.ask(w.job.UUID, push(block(), 1, wire.Meta{Token: 1}, -1))
		if err == nil {
			require.True(t, one(t, r, err).Code.Refused())
		}
	})
}

func TestUnaryCalls(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		c := pb.NewPServerClient(w.dial(p).conn)
		who, err := c.Identify(t.Context(), &pb.IdentifyRequest{})
		require.NoError(t, err)
		require.Equal(t, p.Status().Incarnation, who.Incarnation)
		require.Equal(t, w.job.UUID[:], who.Job)
		require.Len(t, who.Shards, shards)

		w.until(2)
		st, err := c.Stats(t.Context(), &pb.StatsRequest{})
		require.NoError(t, err)
		require.Len(t, st.Shards, shards)
		require.GreaterOrEqual(t, st.Shards[0].Batches, int64(2*batches))
		require.Len(t, st.Shards[0].Passes, 1)
		require.Equal(t, "serving", st.Shards[0].Doing)
		require.Empty(t, st.Shards[0].CheckpointError)

		lanes, _, _, err := w.queue.Lanes(t.Context(), 0)
		require.NoError(t, err)
		var done int64 = -1
		for lane, l := range lanes {
			if pos, ok := l.Complete.Min(); ok {
				done = pos*int64(len(lanes)) + int64(lane)
			}
		}
		req := &pb.ProgressRequest{Job: w.job.UUID[:],
			Shards: []*pb.ShardRef{{Shard: 0, Generation: 1}, {Shard: 1, Generation: 8}, {Shard: 77, Generation: 1}},
			Chunks: []*pb.ChunkRef{{Rank: done}, {Pass: 1}}}
		r, err := c.Progress(t.Context(), req)
		require.NoError(t, err)
		require.True(t, r.Shards[0].Chunks[0].Finished)
		require.False(t, r.Shards[0].Chunks[1].Finished)
		require.Equal(t, uint32(wire.WrongOwner), r.Shards[1].Code)
		require.Equal(t, uint32(wire.WrongOwner), r.Shards[2].Code)
		req.Job[0]++
		r, err = c.Progress(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, uint32(wire.WrongOwner), r.Shards[0].Code)
		req.Chunks[0].Rank = -1
		_, err = c.Progress(t.Context(), req)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	})
}
