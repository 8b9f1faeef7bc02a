package pserver

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

// cutBits are the key spaces of the tables of a cutShard: hashed ones and flat ones.
var cutBits = []int{0, 8}

// cutShard has a table and a dense parameter of two blocks for each optimizer.
func cutShard(t testing.TB, bits int) *Shard {
	t.Helper()
	p := job.Parameters{V: 1, Seed: 3, Shards: 1}
	for i, o := range append(everyOptimizer(), job.OptimizerSettings{Type: job.OptimizerCount}) {
		var random job.Initializer
		if i%2 == 0 && o.Type != job.OptimizerCount {
			random = job.Initializer{Kind: job.InitUniform, Max: 1}
		}
		p.List = append(p.List,
			job.Parameter{Name: o.Type + "-dense", Shape: []int{job.BlockSize + 3}, Optimizer: o, Divisor: 4},
			job.Parameter{Name: o.Type + "-table", Sparse: true, Bits: bits, Dim: 1 + len(p.List)%5, Init: random, Optimizer: o, Divisor: 4})
	}
	s, err := NewShard(p, 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	return s
}

// cutBatch is the batch n of a chunk, always the same one: some blocks, some
// rows that may be new and may come twice; one in seven is skipped.
func cutBatch(s *Shard, rank, n int64) *wire.PushData {
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
	p := &wire.PushData{Meta: wire.Meta{Rank: rank, N: n, Token: 1, Records: 4, Loss: 0.5, Last: n == 11, Void: rng.IntN(7) == 0}}
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.IntN(4)) // count takes nothing else
		}
		return v
	}
	for _, of := range s.params {
		switch number := uint16(of.number); {
		case rng.IntN(3) == 0:
		case of.Sparse:
			keys := make([]uint64, 1+rng.IntN(12))
			for i := range keys {
				keys[i] = rng.Uint64N(60 + 8*uint64(n))
			}
			p.Sparse = append(p.Sparse, rows(number, keys, fill(len(keys)*of.Dim)...))
		default:
			at := uint32(1) // the short one, mostly
			if rng.IntN(8) == 0 {
				at = 0
			}
			p.Dense = append(p.Dense, block(number, at, fill(of.blockLen(at))...))
		}
	}
	return p
}

// steps returns a function that makes batches of one chunk after the other.
func steps(s *Shard, rank int64) func() *wire.PushData {
	n := int64(-1)
	return func() *wire.PushData {
		if n++; n == 12 {
			rank, n = rank+1, 0
		}
		return cutBatch(s, rank, n)
	}
}

// runsOf makes a cut's runs small, so that small tables have several. Those of a
// flat one have 64 places or more.
func runsOf(c *Cut, shift uint) {
	for _, t := range c.content.tables {
		switch {
		case t == nil:
		case t.flat:
			t.cut.shift = 6
		default:
			t.cut.shift = shift
		}
	}
}

// What a cut writes is the shard at its moment, whatever is pushed before and
// between its blocks, and pushes do to the shard what they do without a cut.
func TestCutUnderPushes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		bits := rapid.SampledFrom(cutBits).Draw(rt, "bits")
		s, calm := cutShard(t, bits), cutShard(t, bits)
		next := steps(s, 0)
		push := func(times int) {
			for range times {
				p := next()
				mustPush(t, s, p)
				mustPush(t, calm, p)
			}
		}
		push(rapid.IntRange(0, 12).Draw(rt, "pushes before"))
		want := sections(t, s)
		c, err := s.Cut()
		require.NoError(t, err)
		runsOf(c, rapid.UintRange(0, 6).Draw(rt, "rows of a run, log 2"))
		often := rapid.IntRange(1, 8).Draw(rt, "blocks between pushes")
		stop := rapid.SampledFrom([]int{1 << 30, 1 << 30, 10, 40}).Draw(rt, "blocks before the end")
		push(rapid.IntRange(0, 3).Draw(rt, "pushes at once"))
		full, blocks := fmt.Errorf("disk full"), 0
		var got []section
		err = c.WriteTo(func(name string, data []byte) error {
			got = append(got, section{name, bytes.Clone(data)})
			if blocks++; blocks%often == 0 {
				push(1)
			}
			if blocks == stop {
				return full
			}
			return nil
		})
		if blocks == stop {
			require.ErrorIs(t, err, full)
		} else {
			require.NoError(t, err)
			require.Equal(t, joined(want), joined(got))
		}
		requireReleased(t, s)
		push(2)
		require.Equal(t, dump(t, calm), dump(t, s))
	})
}

// joined are the sections as wholes: where they are cut does not matter.
func joined(blocks []section) map[string]string {
	all := map[string]string{}
	for _, b := range blocks {
		all[b.name] += string(b.data)
	}
	return all
}

// requireReleased: no cut holds anything any more.
func requireReleased(t *testing.T, s *Shard) {
	t.Helper()
	require.Nil(t, s.content.cut)
	for i := range s.params {
		if table := s.content.tables[i]; table != nil {
			require.Nil(t, table.cut)
		} else {
			require.Nil(t, s.content.dense[i].cut)
		}
	}
}

// Trainers push all the time, new rows too, while the shard is cut again and
// again. Each cut is what a calm shard holds that got the batches that the
// cut's ledger counts, in the order in which they were applied, and no others.
func TestCutIsOneMoment(t *testing.T) {
	t.Parallel()
	for _, bits := range cutBits {
		testCutIsOneMoment(t, bits)
	}
}

func testCutIsOneMoment(t *testing.T, bits int) {
	t.Helper()
	const pushers, each, cuts = 4, 36, 6
	s := cutShard(t, bits)
	type batch struct{ rank, n int64 }
	var order []batch // written under the shard's lock
	var pushing sync.WaitGroup
	for i := range int64(pushers) {
		pushing.Go(func() {
			next := steps(s, 10*i)
			for range each {
				p := next()
				out, err := s.Push(uint64(i), p, func() bool {
					order = append(order, batch{p.Rank, p.N})
					return true
				})
				if err != nil || out.Verdict != ledger.Applied && out.Verdict != ledger.Skipped {
					panic(fmt.Sprint(out, err))
				}
			}
		})
	}
	restored := make([]*Shard, cuts)
	var counted []int64
	for i := range restored {
		c, err := s.Cut()
		require.NoError(t, err)
		_, err = s.Cut()
		require.ErrorIs(t, err, ErrCutting)
		summary := c.Ledger()
		total := summary.Total()
		counted = append(counted, total.Batches+total.Skipped)
		restored[i] = cutShard(t, bits)
		l := restored[i].NewLoader()
		require.NoError(t, c.WriteTo(l.Add))
		require.NoError(t, l.Finish())
	}
	pushing.Wait()
	require.Len(t, order, pushers*each)
	require.True(t, slices.IsSorted(counted))
	calm, at := cutShard(t, bits), int64(0)
	for i, n := range counted {
		for ; at < n; at++ {
			mustPush(t, calm, cutBatch(calm, order[at].rank, order[at].n))
		}
		require.Equal(t, dump(t, calm), dump(t, restored[i]), "cut %d of the first %d batches", i, n)
	}
}

// The bound that docs/pserver.md states: all words once, a bit for each row,
// and what is left empty of one piece in each run.
func TestMemoryOfACut(t *testing.T) {
	t.Parallel()
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
		{Name: "d", Shape: []int{3 * job.BlockSize}, Optimizer: adagrad(), Divisor: 1},
		{Name: "t", Sparse: true, Dim: 1, Optimizer: adagrad(), Divisor: 1},
	}}
	s, err := NewShard(p, 0, 1, ShardOptions{})
	require.NoError(t, err)
	keys := make([]uint64, 200_000)
	for i := range keys {
		keys[i] = uint64(i)
	}
	everything := func(n int64) {
		mustPush(t, s, &wire.PushData{
			Meta: wire.Meta{N: n, Token: 1},
			Dense: []wire.DenseBlock{
				{Block: 0, Values: make([]float32, job.BlockSize)},
				{Block: 1, Values: make([]float32, job.BlockSize)},
				{Block: 2, Values: make([]float32, job.BlockSize)},
			},
			Sparse: []wire.SparseRows{rows(1, keys, make([]float32, len(keys))...)},
		})
	}
	everything(0)
	c, err := s.Cut()
	require.NoError(t, err)
	require.Zero(t, keptBytes(c))
	everything(1)
	most := keptBytes(c)
	require.GreaterOrEqual(t, most, 3*job.BlockSize*8+12*len(keys))
	require.LessOrEqual(t, most, 3*job.BlockSize*8+12*len(keys)+len(keys)/8+13*(4<<10+1<<10))
	everything(2)
	require.Equal(t, most, keptBytes(c), "a row is put aside once")
	require.NoError(t, c.WriteTo(func(section string, data []byte) error {
		now := keptBytes(c)
		if section == "dense/d" || section == "sparse/t" {
			require.Less(t, now, most, "what is written is let go")
		}
		most = now
		everything(3)
		require.LessOrEqual(t, keptBytes(c), most, "what is written is not put aside again")
		return nil
	}))
	requireReleased(t, s)
}

// keptBytes is the memory of what a cut has put aside.
func keptBytes(c *Cut) (n int) {
	for i := range c.params {
		if d := c.content.dense[i]; d != nil && d.cut != nil {
			for _, words := range d.cut.kept {
				n += 4 * cap(words)
			}
		}
		if t := c.content.tables[i]; t != nil && t.cut != nil {
			for _, r := range t.cut.runs {
				if r == nil {
					continue
				}
				n += 8*cap(r.kept) + int(unsafe.Sizeof(*r))
				for _, piece := range r.before {
					n += 4 * cap(piece)
				}
			}
		}
	}
	return n
}

// A cut that is given up, at any moment, leaves nothing behind.
func TestAbandonedCut(t *testing.T) {
	t.Parallel()
	s := cutShard(t, 0)
	next := steps(s, 0)
	mustPush(t, s, next())
	c, err := s.Cut()
	require.NoError(t, err)
	mustPush(t, s, next())
	c.Close()
	requireReleased(t, s)
	again, err := s.Cut()
	require.NoError(t, err)
	c.Close()
	_, err = s.Cut()
	require.ErrorIs(t, err, ErrCutting, "closing twice does not close another one's cut")
	again.Close()
	requireReleased(t, s)
}
