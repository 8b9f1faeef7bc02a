package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/pserver/pb"
)

// answering is a pserver that answers each message by what respond writes.
type answering func(q *wire.Request, w *wire.ResponseWriter)

func (a answering) exchange(_ context.Context, stream transport.Stream) error {
	var (
		buffers = wire.NewPool(4)
		request wire.Request
		w       wire.ResponseWriter
	)
	for {
		body, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := request.Decode(body); err != nil {
			return err
		}
		b := buffers.Get()
		w.Start(b, request.Seq)
		a(&request, &w)
		w.Finish()
		if err := stream.Send(b); err != nil {
			return err
		}
	}
}

// zeroes answers every pull of single values and applies nothing.
func zeroes(q *wire.Request, w *wire.ResponseWriter) {
	for i := range q.Shards {
		s := &q.Shards[i]
		w.Section(s.Shard, s.Generation)
		clear(w.Values(len(s.Dense)))
		for _, k := range s.Sparse {
			clear(w.Values(len(k.Keys)))
		}
		code := wire.OK
		if s.Push != nil {
			code = wire.Applied
		}
		w.Answer(code, false, 0, "")
	}
}

// logistic is a client of the model "logistic" over n pservers that answer
// with respond over real connections.
func logistic(t testing.TB, n int, respond func(*wire.Request, *wire.ResponseWriter)) (*client.Client, *client.Session) {
	t.Helper()
	c, err := client.New(client.Config{
		Store: fake.New(fake.Options{Clock: clock.System}), Job: uuid.New(), Log: quiet(),
		Parameters: job.Parameters{V: 1, Shards: shards, List: []job.Parameter{{Name: "bias"}, {Name: "weights", Sparse: true, Dim: 1}}},
	})
	require.NoError(t, err)
	var v membership.View
	var owners []membership.Owner
	for i := range n {
		l, err := transport.TCP.Listen("127.0.0.1:0")
		require.NoError(t, err)
		s := transport.NewServer(answering(respond).exchange)
		pb.RegisterPServerServer(s, pb.UnimplementedPServerServer{})
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		t.Cleanup(func() {
			s.Stop()
			require.NoError(t, <-done)
		})
		owners = append(owners, membership.Owner{
			Name: fmt.Sprint("pserver-", i), Incarnation: fmt.Sprint(i), Address: l.Addr().String(), Generation: 1,
		})
	}
	for s := range shards {
		v.Shards = append(v.Shards, owners[s%n])
	}
	s, err := c.Open(t.Context(), v)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return c, s
}

// clicks are batches of skewed keys.
func clicks(batches, keys int) [][]uint64 {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 50, 1<<24)
	all := make([][]uint64, batches)
	for i := range all {
		all[i] = make([]uint64, keys)
		for k := range all[i] {
			all[i][k] = zipf.Uint64()
		}
	}
	return all
}

// pipeline runs exchanges as a trainer does: message k pulls batch k and
// pushes batch k-2, while the one before, with batches k-1 and k-3, is under way.
type pipeline struct {
	session *client.Session
	batches [4]*client.Batch
	call    *client.Call
	k       int
}

func newPipeline(c *client.Client, s *client.Session) *pipeline {
	p := &pipeline{session: s}
	for i := range p.batches {
		p.batches[i] = c.NewBatch()
		p.batches[i].Prepare([][]uint64{nil})
	}
	return p
}

func (p *pipeline) step(t testing.TB, keys [][]uint64) {
	pull, push := p.batches[p.k%4], p.batches[(p.k+2)%4]
	pull.Prepare(keys)
	call, err := p.session.Exchange(t.Context(), push, client.PushMeta{N: int64(p.k)}, pull)
	require.NoError(t, err)
	p.finish(t)
	p.call = call
	p.k++
}

func (p *pipeline) finish(t testing.TB) {
	if p.call != nil {
		require.NoError(t, p.call.Wait(t.Context()))
	}
}

// What one exchange allocates, on both sides of the connection: nothing that
// grows with the batch.
func TestExchangeAllocatesLittle(t *testing.T) {
	c, s := logistic(t, 1, zeroes)
	p := newPipeline(c, s)
	keys := clicks(4, 5_000)
	step := func() { p.step(t, [][]uint64{keys[p.k%len(keys)]}) }
	for range 20 {
		step()
	}
	allocs := testing.AllocsPerRun(100, step)
	p.finish(t)
	t.Logf("%.0f allocations an exchange, client, server and gRPC together", allocs)
	require.Less(t, allocs, 150.0)
}

func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{64 * 14, 512 * 39} {
		for _, n := range []int{1, 2} {
			b.Run(fmt.Sprintf("keys=%d/pservers=%d", size, n), func(b *testing.B) {
				c, s := logistic(b, n, zeroes)
				p := newPipeline(c, s)
				keys := clicks(8, size)
				b.ReportAllocs()
				for b.Loop() {
					p.step(b, [][]uint64{keys[p.k%len(keys)]})
				}
				p.finish(b)
				b.ReportMetric(float64(b.N)*float64(size)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
			})
		}
	}
}

// A server that does not answer what was asked is a fault, never a panic or a
// wrong value.
func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	section := func(w *wire.ResponseWriter, q *wire.Request, i, values int, code wire.Code) {
		w.Section(q.Shards[i].Shard, q.Shards[i].Generation)
		clear(w.Values(values))
		w.Answer(code, false, 0, "")
	}
	// wanted is the number of values that a section asks for.
	wanted := func(q *wire.Request, i int) int {
		n := len(q.Shards[i].Dense)
		for _, k := range q.Shards[i].Sparse {
			n += len(k.Keys)
		}
		return n
	}
	for name, respond := range map[string]func(q *wire.Request, w *wire.ResponseWriter){
		"nothing":      func(*wire.Request, *wire.ResponseWriter) {},
		"one section":  func(q *wire.Request, w *wire.ResponseWriter) { section(w, q, 0, wanted(q, 0), wire.Applied) },
		"other shards": func(q *wire.Request, w *wire.ResponseWriter) { q.Shards[0].Shard = 9; zeroes(q, w) },
		"no verdict": func(q *wire.Request, w *wire.ResponseWriter) {
			for i := range q.Shards {
				section(w, q, i, wanted(q, i), wire.OK)
			}
		},
		"staged for ever": func(q *wire.Request, w *wire.ResponseWriter) {
			for i := range q.Shards {
				section(w, q, i, wanted(q, i), wire.Staged)
			}
		},
		"too few values": func(q *wire.Request, w *wire.ResponseWriter) {
			for i := range q.Shards {
				section(w, q, i, max(0, wanted(q, i)-1), wire.Applied)
			}
		},
		"too many values": func(q *wire.Request, w *wire.ResponseWriter) {
			for i := range q.Shards {
				section(w, q, i, wanted(q, i)+1, wire.Applied)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := logistic(t, 1, respond)
			push, pull := c.NewBatch(), c.NewBatch()
			pull.Prepare([][]uint64{{1, 2, 3, 4, 5, 6, 7, 8, 9}})
			call, err := s.Exchange(t.Context(), push, client.PushMeta{}, pull)
			require.NoError(t, err)
			var f *client.FaultError
			require.ErrorAs(t, call.Wait(t.Context()), &f)
			require.Equal(t, wire.OK, f.Code)
			require.Error(t, errors.Unwrap(f))
		})
	}
}

// An answer counts only if the view's generation gave it, whatever it says.
func TestAnswerOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	c, s := logistic(t, 1, func(q *wire.Request, w *wire.ResponseWriter) {
		q.Shards[2].Generation++
		zeroes(q, w)
	})
	call, err := s.Exchange(t.Context(), c.NewBatch(), client.PushMeta{}, nil)
	require.NoError(t, err)
	var f *client.FaultError
	require.ErrorAs(t, call.Wait(t.Context()), &f)
	require.Equal(t, 2, f.Shard)
	require.Equal(t, wire.WrongOwner, f.Code)
	require.Equal(t, "generation 2 answers instead of 1", f.Reason)
}
