package client

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/job"
)

// parameters is a model with two dense parameters, one of them of several
// blocks, and two tables.
func parameters(shards int) job.Parameters {
	return job.Parameters{V: 1, Shards: shards, List: []job.Parameter{
		{Name: "bias"},
		{Name: "weights", Sparse: true, Dim: 1},
		{Name: "dense", Shape: []int{3, job.BlockSize}},
		{Name: "embedding", Sparse: true, Dim: 5},
	}}
}

func newTestBatch(t testing.TB, shards int) *Batch {
	t.Helper()
	l, err := newLayout(parameters(shards))
	require.NoError(t, err)
	return newBatch(l)
}

// Whatever batches came before, each key occurrence finds its key, keys are
// distinct and lie shard by shard in order of appearance.
func TestPrepare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		shards := rapid.IntRange(1, 7).Draw(rt, "shards")
		b := newTestBatch(t, shards)
		key := rapid.SampledFrom([]*rapid.Generator[uint64]{
			rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64()),
			rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64Range(0, 1<<32-1)),
			rapid.Uint64Range(1<<32-20, 1<<32+20),
		}).Draw(rt, "kind of key")
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			keys := make([][]uint64, 2)
			for i := range keys {
				keys[i] = rapid.SliceOfN(key, 0, 1000).Draw(rt, "keys")
			}
			b.Prepare(keys)
			for i := range keys {
				requireTable(rt, b, i, keys[i])
			}
		}
	})
}

func requireTable(t require.TestingT, b *Batch, i int, keys []uint64) {
	shards, table := b.layout.shards, b.Tables[i]
	require.Len(t, table.Slots, len(keys))
	var want []uint64
	seen := map[uint64]bool{}
	for _, k := range keys {
		if !seen[k] {
			seen[k] = true
			want = append(want, k)
		}
	}
	var grouped []uint64
	for s := range shards {
		_, from, to := b.part(i, s)
		require.Equal(t, len(grouped), from)
		for _, k := range want {
			if job.ShardOf(k, shards) == s {
				grouped = append(grouped, k)
			}
		}
		require.Equal(t, len(grouped), to)
	}
	require.Equal(t, grouped, append([]uint64(nil), table.Keys...))
	for at, k := range keys {
		require.Equal(t, k, table.Keys[table.Slots[at]])
	}
	require.Len(t, table.Rows, len(table.Keys)*table.Dim)
	require.Len(t, table.Grad, len(table.Keys)*table.Dim)
	for _, g := range table.Grad {
		require.Zero(t, g)
	}
	for at := range table.Grad {
		table.Grad[at] = 1
	}
}

func TestPrepareZeroesDenseGradients(t *testing.T) {
	t.Parallel()
	b := newTestBatch(t, 2)
	b.DenseGrad[0][0], b.DenseGrad[1][40000] = 1, 2
	b.Prepare([][]uint64{nil, nil})
	require.Zero(t, b.DenseGrad[0][0])
	require.Zero(t, b.DenseGrad[1][40000])
	require.Panics(t, func() { b.Prepare([][]uint64{nil}) })
}

// unmix is the inverse of job.Mix.
func unmix(h uint64) uint64 {
	h ^= h>>31 ^ h>>62
	h *= 0x319642b2d24d8ec3
	h ^= h>>27 ^ h>>54
	h *= 0x96de1b173f119089
	return h ^ h>>30 ^ h>>60
}

// Keys whose hashes agree in the upper half and in the slot are told apart.
func TestKeysOfOneSlotAreToldApart(t *testing.T) {
	t.Parallel()
	const upper = 0xabcdef12 << 32
	keys := []uint64{unmix(upper | 5), unmix(upper | 5 | 1<<20), unmix(upper | 5 | 1<<21), unmix(upper | 6)}
	for _, k := range keys {
		require.EqualValues(t, upper>>32, job.Mix(k)>>32)
	}
	batch := []uint64{keys[0], keys[1], keys[0], keys[3], keys[2], keys[1], keys[3], keys[2], keys[0]}
	b := newTestBatch(t, 3)
	b.Prepare([][]uint64{batch, nil})
	requireTable(t, b, 0, batch)
	require.Len(t, b.Tables[0].Keys, 4)
}

func TestPrepareDoesNotAllocate(t *testing.T) {
	b := newTestBatch(t, 4)
	random := rand.New(rand.NewPCG(1, 2))
	batches := make([][][]uint64, 8)
	for i := range batches {
		batches[i] = [][]uint64{make([]uint64, 2000), make([]uint64, 2000)}
		for _, keys := range batches[i] {
			for k := range keys {
				keys[k] = random.Uint64N(3000)
			}
		}
		b.Prepare(batches[i])
	}
	i := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Prepare(batches[i%len(batches)])
		i++
	}))
}

func TestLayoutCoversEveryElementOnce(t *testing.T) {
	t.Parallel()
	l, err := newLayout(parameters(5))
	require.NoError(t, err)
	covered := [][]int{make([]int, 1), make([]int, 3*job.BlockSize)}
	for s, blocks := range l.blocks {
		for _, k := range blocks {
			require.Equal(t, s, job.BlockShard(parameters(5).List[k.param].Name, int(k.block), 5))
			require.Equal(t, int(k.block)*job.BlockSize, k.from)
			for i := k.from; i < k.to; i++ {
				covered[k.dense][i]++
			}
		}
	}
	for _, c := range covered {
		for _, n := range c {
			require.Equal(t, 1, n)
		}
	}
}

func TestImpossibleParameters(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]job.Parameters{
		"no shards":  {Shards: 0},
		"dim 0":      {Shards: 1, List: []job.Parameter{{Name: "x", Sparse: true}}},
		"shape 0":    {Shards: 1, List: []job.Parameter{{Name: "x", Shape: []int{0}}}},
		"shape huge": {Shards: 1, List: []job.Parameter{{Name: "x", Shape: []int{1 << 20, 1 << 20}}}},
	} {
		_, err := newLayout(p)
		require.ErrorIs(t, err, ErrParameters, name)
	}
}

func BenchmarkPrepare(b *testing.B) {
	batch := newTestBatch(b, 4)
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 50, 1<<24)
	batches := make([][]uint64, 16) // so many that no branch is learnt by heart
	for i := range batches {
		batches[i] = make([]uint64, 512*39)
		for k := range batches[i] {
			batches[i][k] = zipf.Uint64()
		}
	}
	n := 0
	for b.Loop() {
		batch.Prepare([][]uint64{batches[n%len(batches)], nil})
		n++
	}
	keys := len(batches[0])
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*keys), "ns/key")
	b.ReportMetric(float64(len(batch.Tables[0].Keys))/float64(keys), "distinct")
}
