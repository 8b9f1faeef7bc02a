package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/pserver/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	shards = 4
	bias   = 0 // the parameters' numbers
	table  = 1
	dense  = 2
	wide   = 3
)

// bundle is a client with two pservers that own two shards each.
type bundle struct {
	client  *client.Client
	servers []*clienttest.Server
	view    membership.View
	net     *transport.Memory
	store   *fake.Store
	waiting atomic.Value // the last reason
}

func parameters(dim int) job.Parameters {
	return job.Parameters{V: 1, Shards: shards, List: []job.Parameter{
		{Name: "bias"},
		{Name: "weights", Sparse: true, Dim: 1},
		{Name: "dense", Shape: []int{3, job.BlockSize}},
		{Name: "embedding", Sparse: true, Dim: dim},
	}}
}

func setup(t testing.TB, dim int, adjust func(*clienttest.Server)) *bundle {
	t.Helper()
	b := &bundle{net: transport.NewMemory(clock.System), store: fake.New(fake.Options{Clock: clock.System})}
	id := uuid.New()
	for i := range 2 {
		s := &clienttest.Server{
			Name: fmt.Sprintf("pserver-%d", i), Incarnation: uuid.NewString(), Job: id, Parameters: parameters(dim),
			Generations: map[int]int64{i: int64(10 + i), i + 2: int64(12 + i)},
		}
		if adjust != nil {
			adjust(s)
		}
		s.Start(t, b.net.Host(s.Name), ":0")
		b.servers = append(b.servers, s)
	}
	for shard := range shards {
		b.view.Shards = append(b.view.Shards, b.servers[shard%2].Owner(shard))
	}
	c, err := client.New(client.Config{
		Network: b.net.Host("trainer"), Store: b.store, Job: id, Parameters: parameters(dim), Log: quiet(),
		Waiting: func(reason string) { b.waiting.Store(reason) },
	})
	require.NoError(t, err)
	b.client = c
	return b
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

func (b *bundle) open(t testing.TB) *client.Session {
	t.Helper()
	s, err := b.client.Open(t.Context(), b.view)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// publish writes the owners of all shards but the last `free` ones.
func (b *bundle) publish(t *testing.T, free int) {
	t.Helper()
	v := b.view.Sized(shards)
	for i := range free {
		v.Shards[shards-1-i] = membership.Owner{}
	}
	_, err := b.store.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", v.Encode(), 0)}})
	require.NoError(t, err)
}

func exchange(t testing.TB, s *client.Session, push *client.Batch, m client.PushMeta, pull *client.Batch) *client.Call {
	t.Helper()
	c, err := s.Exchange(t.Context(), push, m, pull)
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	return c
}

// random fills a batch's gradients with small integers, which add exactly.
func random(r *rand.Rand, b *client.Batch) {
	fill := func(x []float32) {
		for i := range x {
			x[i] = float32(r.IntN(100) - 50)
		}
	}
	for _, g := range b.DenseGrad {
		fill(g)
	}
	for _, t := range b.Tables {
		fill(t.Grad)
	}
}

func TestPullAfterPushSeesItsSum(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	s := b.open(t)
	r := rand.New(rand.NewPCG(1, 2))
	one, two := b.client.NewBatch(), b.client.NewBatch()
	// Each batch pulls, in the same message, what the one before it pushes.
	sum := map[clienttest.Row][]float32{}
	for n := range 20 {
		keys := [][]uint64{nil, nil}
		for i := range keys {
			for range r.IntN(50) {
				keys[i] = append(keys[i], r.Uint64N(30))
			}
		}
		two.Prepare(keys)
		c := exchange(t, s, one, client.PushMeta{Pass: 1, Rank: 2, N: int64(n), Token: 5, Last: n == 19, Records: 3, Loss: 0.5}, two)
		for _, a := range c.Answers() {
			require.Equal(t, client.Answer{Code: wire.Applied, Finished: n == 19, Next: next(n)}, a)
		}
		requireValues(t, sum, two)
		random(r, two)
		add(sum, two)
		one, two = two, one
	}
	// Every push reached every shard, empty or not.
	for i, server := range b.servers {
		pushes := server.Pushes()
		require.Len(t, pushes, 2*20)
		for k, p := range pushes {
			require.Equal(t, clienttest.Push{Shard: i + 2*(k%2), Parts: 1, Meta: client.PushMeta{
				Pass: 1, Rank: 2, N: int64(k / 2), Token: 5, Last: k/2 == 19, Records: 3, Loss: 0.5,
			}}, p)
		}
		messages, _ := server.Messages()
		require.Equal(t, 20, messages, "one message for all shards of a pserver")
	}
}

func next(n int) int64 {
	if n == 19 {
		return 0
	}
	return int64(n + 1)
}

// add adds the batch's gradient to the model.
func add(sum map[clienttest.Row][]float32, b *client.Batch) {
	each(b, func(row clienttest.Row, _, grad []float32) {
		if sum[row] == nil {
			sum[row] = make([]float32, len(grad))
		}
		for i, g := range grad {
			sum[row][i] += g
		}
	})
}

func requireValues(t *testing.T, want map[clienttest.Row][]float32, b *client.Batch) {
	t.Helper()
	each(b, func(row clienttest.Row, value, _ []float32) {
		w := want[row]
		if w == nil {
			w = make([]float32, len(value))
		}
		if !slices.Equal(w, value) {
			require.Equal(t, w, value, "%v", row)
		}
	})
}

// each visits the rows and blocks of a batch.
func each(b *client.Batch, f func(row clienttest.Row, value, grad []float32)) {
	for i, param := range []uint16{bias, dense} {
		for block := 0; block*job.BlockSize < len(b.Dense[i]); block++ {
			from := block * job.BlockSize
			to := min(from+job.BlockSize, len(b.Dense[i]))
			f(clienttest.Row{Param: param, Key: uint64(block)}, b.Dense[i][from:to], b.DenseGrad[i][from:to])
		}
	}
	for i, param := range []uint16{table, wide} {
		tb := b.Tables[i]
		for k, key := range tb.Keys {
			from, to := k*tb.Dim, (k+1)*tb.Dim
			f(clienttest.Row{Param: param, Key: key}, tb.Rows[from:to], tb.Grad[from:to])
		}
	}
}

// A batch that is larger than a message travels in parts, both ways.
func TestParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ dim, keys int }{
		"many rows":    {64, 36_000}, // 9.2 MB
		"one huge row": {1_200_000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.dim, nil)
			s := b.open(t)
			keys := make([]uint64, c.keys)
			for i := range keys {
				keys[i] = uint64(i)
			}
			batch, sum := b.client.NewBatch(), map[clienttest.Row][]float32{}
			batch.Prepare([][]uint64{{1, 2, 3}, keys})
			random(rand.New(rand.NewPCG(1, 2)), batch)
			add(sum, batch)
			pulled := b.client.NewBatch()
			pulled.Prepare([][]uint64{{1, 2, 3}, keys})
			answers := exchange(t, s, batch, client.PushMeta{Last: true}, pulled).Answers()
			for _, a := range answers {
				require.Equal(t, client.Answer{Code: wire.Applied, Finished: true}, a)
			}
			requireValues(t, sum, pulled)
			rows := map[clienttest.Row][]float32{}
			for _, server := range b.servers {
				maps.Copy(rows, server.Rows())
				n, largest := server.Messages()
				if c.keys > 1 {
					require.Greater(t, n, 1)
					require.LessOrEqual(t, largest, wire.PartSize)
				}
			}
			require.True(t, maps.EqualFunc(sum, rows, slices.Equal[[]float32]))
			parts := 0
			for _, p := range append(b.servers[0].Pushes(), b.servers[1].Pushes()...) {
				parts = max(parts, p.Parts)
			}
			require.Greater(t, parts, 1)
		})
	}
}

// A million rows are more than any message may hold: they come in many.
func TestPullOfAMillionRows(t *testing.T) {
	t.Parallel()
	const dim, n = 17, 1_000_000
	b := setup(t, dim, nil)
	s := b.open(t)
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(i)
	}
	batch := b.client.NewBatch()
	batch.Prepare([][]uint64{nil, keys})
	tb := batch.Tables[1]
	require.Greater(t, 4*len(tb.Rows), wire.MaxMessage)
	last := clienttest.Row{Param: wide, Key: n - 1}
	for _, server := range b.servers {
		server.Set(last, slices.Repeat([]float32{3}, dim)...)
	}
	exchange(t, s, nil, client.PushMeta{}, batch)
	i := slices.Index(tb.Keys, last.Key)
	require.Equal(t, slices.Repeat([]float32{3}, dim), tb.Rows[i*dim:(i+1)*dim])
	for _, server := range b.servers {
		messages, largest := server.Messages()
		require.Greater(t, messages, 4*len(tb.Rows)/2/wire.PartSize)
		require.LessOrEqual(t, largest, wire.PartSize)
	}
}

func TestVoidPushCarriesNoValues(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	s := b.open(t)
	batch := b.client.NewBatch()
	batch.Prepare([][]uint64{{1, 2, 3}, {4}})
	random(rand.New(rand.NewPCG(1, 2)), batch)
	answers := exchange(t, s, batch, client.PushMeta{Void: true}, nil).Answers()
	for i, a := range answers {
		require.Equal(t, wire.Skipped, a.Code)
		require.Empty(t, b.servers[i%2].Rows())
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for code := wire.GoBack; code <= wire.Invalid; code++ {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			var refuse atomic.Bool
			refuse.Store(true)
			b := setup(t, 3, func(s *clienttest.Server) {
				s.Refuse = func(r *wire.ShardRequest) (wire.Code, int64, string) {
					if r.Shard == 3 && refuse.Load() {
						return code, 7, "because"
					}
					return wire.OK, 0, ""
				}
			})
			s := b.open(t)
			push, pull := b.client.NewBatch(), b.client.NewBatch()
			pull.Prepare([][]uint64{{1, 2, 3, 4, 5, 6, 7, 8}, {4}})
			c, err := s.Exchange(t.Context(), push, client.PushMeta{N: 9}, pull)
			require.NoError(t, err)
			var f *client.FaultError
			require.ErrorAs(t, c.Wait(t.Context()), &f)
			require.Equal(t, &client.FaultError{Shard: 3, Pserver: "pserver-1", Code: code, Next: 7, Reason: "because"}, f)
			require.Contains(t, f.Error(), "shard 3 on pserver-1: "+code.String()+": because")

			refuse.Store(false)
			if code != wire.GoBack && code != wire.Stale {
				<-s.Done()
				require.ErrorIs(t, s.Err(), f)
				_, err = s.Exchange(t.Context(), nil, client.PushMeta{}, pull)
				require.ErrorIs(t, err, f)
				return
			}
			// These are about the chunk, not about the view: the session goes on.
			require.NoError(t, s.Err())
			require.Equal(t, wire.Applied, c.Answers()[0].Code)
			require.Equal(t, client.Answer{}, c.Answers()[3])
			exchange(t, s, push, client.PushMeta{N: 7}, pull)
		})
	}
}

// Answers of a generation that is not the view's do not count, whoever errs.
func TestAnotherGeneration(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	b.view.Shards[2].Generation++
	s := b.open(t)
	c, err := s.Exchange(t.Context(), b.client.NewBatch(), client.PushMeta{}, nil)
	require.NoError(t, err)
	var f *client.FaultError
	require.ErrorAs(t, c.Wait(t.Context()), &f)
	require.Equal(t, wire.WrongOwner, f.Code)
	require.Equal(t, 2, f.Shard)
	_, err = s.Progress(t.Context(), nil)
	require.ErrorAs(t, err, &f)
	require.Equal(t, 2, f.Shard)
}

func TestServerDies(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	s := b.open(t)
	exchange(t, s, b.client.NewBatch(), client.PushMeta{}, nil)
	b.servers[1].Stop()
	<-s.Done()
	var f *client.FaultError
	require.ErrorAs(t, s.Err(), &f)
	require.Equal(t, "pserver-1", f.Pserver)
	require.Contains(t, f.Error(), "shard 1 on pserver-1: no answer")
	require.Error(t, f.Err)
	_, err := b.client.Open(t.Context(), b.view)
	require.ErrorAs(t, err, &f)
	require.Equal(t, "pserver-1", f.Pserver)
}

// Nobody waits for a slow server longer than their context says.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	b := setup(t, 3, func(s *clienttest.Server) {
		if s.Name == "pserver-1" {
			s.Hold = func(ctx context.Context) {
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
		}
	})
	s := b.open(t)
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), 50*time.Millisecond)
	}
	var calls []*client.Call
	for range 8 { // so many may be under way
		c, err := s.Exchange(t.Context(), b.client.NewBatch(), client.PushMeta{N: int64(len(calls))}, nil)
		require.NoError(t, err)
		calls = append(calls, c)
	}
	full, stop := short()
	defer stop()
	_, err := s.Exchange(full, b.client.NewBatch(), client.PushMeta{}, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel := short()
	defer cancel()
	require.ErrorIs(t, calls[0].Wait(ctx), context.DeadlineExceeded)
	require.NoError(t, s.Err())
	close(release)
	for _, c := range calls {
		require.NoError(t, c.Wait(t.Context()))
	}
	pushes := b.servers[1].Pushes()
	for i := range pushes {
		require.Equal(t, int64(i/2), pushes[i].N, "in order")
	}
	require.Len(t, pushes, 2*len(calls))
}

func TestCloseAndAbortEndEverything(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, func(s *clienttest.Server) { s.Hold = func(ctx context.Context) { <-ctx.Done() } })
	moved := errors.New("the view has changed")
	for name, c := range map[string]struct {
		end  func(*client.Session)
		want error
	}{
		"close": {(*client.Session).Close, client.ErrClosed},
		"abort": {func(s *client.Session) { s.Abort(moved) }, moved},
	} {
		s := b.open(t)
		call, err := s.Exchange(t.Context(), b.client.NewBatch(), client.PushMeta{}, nil)
		require.NoError(t, err, name)
		c.end(s)
		require.ErrorIs(t, call.Wait(t.Context()), c.want)
		_, err = s.Exchange(t.Context(), nil, client.PushMeta{}, nil)
		require.ErrorIs(t, err, c.want)
		_, err = s.Progress(t.Context(), nil)
		require.ErrorIs(t, err, c.want)
		s.Close()
		require.ErrorIs(t, s.Err(), c.want)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	s := b.open(t)
	batch := b.client.NewBatch()
	exchange(t, s, batch, client.PushMeta{Pass: 1, Rank: 5, N: 0}, nil)
	exchange(t, s, batch, client.PushMeta{Pass: 1, Rank: 6, N: 0, Last: true}, nil)
	got, err := s.Progress(t.Context(), []client.Chunk{{Pass: 1, Rank: 5}, {Pass: 1, Rank: 6}, {Pass: 2, Rank: 5}})
	require.NoError(t, err)
	require.Equal(t, [][]client.Progress{
		slices.Repeat([]client.Progress{{Next: 1}}, shards),
		slices.Repeat([]client.Progress{{Next: 1, Finished: true}}, shards),
		slices.Repeat([]client.Progress{{}}, shards),
	}, got)
}

func TestSums(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	s := b.open(t)
	batch := b.client.NewBatch()
	exchange(t, s, batch, client.PushMeta{Pass: 1, Rank: 5, Records: 4, Loss: 1.5, Weight: 3}, nil)
	exchange(t, s, batch, client.PushMeta{Pass: 1, Rank: 6, Records: 4, Loss: 1, Weight: 2, Last: true}, nil)
	exchange(t, s, batch, client.PushMeta{Pass: 2, Rank: 6, Records: 4, Loss: 1, Weight: 2}, nil)
	got, err := s.Sums(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]client.Sums{{Batches: 2, Records: 8, Loss: 2.5, Weight: 5}}, shards), got)
	got, err = s.Sums(t.Context(), 7)
	require.NoError(t, err)
	require.Equal(t, make([]client.Sums, shards), got)

	old := b.view.Sized(shards)
	old.Shards = slices.Clone(old.Shards)
	old.Shards[1].Generation--
	stale, err := b.client.Open(t.Context(), old)
	require.NoError(t, err)
	defer stale.Close()
	_, err = stale.Sums(t.Context(), 1)
	var fault *client.FaultError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, 1, fault.Shard)
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	id, err := client.Identify(t.Context(), b.net.Host("trainer"), b.view.Shards[0].Address)
	require.NoError(t, err)
	require.Equal(t, client.Identity{
		Incarnation: b.servers[0].Incarnation, Name: "pserver-0", Version: "test", Job: b.servers[0].Job,
		Shards: b.servers[0].Generations,
	}, id)
	_, err = client.Identify(t.Context(), b.net.Host("trainer"), "nobody:1")
	require.Error(t, err)
}
