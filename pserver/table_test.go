package pserver

import (
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

func testTable(t testing.TB, shard, shards int) *hashed {
	t.Helper()
	p, err := newParameters(testParameters(shards), shard)
	require.NoError(t, err)
	return newTable(p[pWeights]).index.(*hashed)
}

// The table is a map from keys to rows numbered in the order of creation.
func TestTableIsAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, err := newParameters(testParameters(1), 0)
		require.NoError(t, err)
		tab, model := newTable(p[pWeights]).index.(*hashed), map[uint64]uint32{}
		// Few keys, so that they repeat; all low bits of the hash equal, so that
		// they collide; and the ends of the range.
		key := rapid.OneOf(
			rapid.Uint64Range(0, 200),
			rapid.Map(rapid.Uint64Range(0, 200), func(i uint64) uint64 { return unmix(i << 40) }),
			rapid.Map(rapid.Uint64Range(0, 200), func(i uint64) uint64 { return unmix(i) }),
			rapid.Uint64Range(math.MaxUint64-3, math.MaxUint64),
		)
		for range rapid.IntRange(1, 8).Draw(t, "pushes") {
			keys := rapid.SliceOfN(key, 0, 60).Draw(t, "keys")
			found := make([]uint32, len(keys))
			require.Equal(t, -1, tab.find(keys, found))
			for i, k := range keys {
				row, known := model[k]
				if !known {
					row = optimizer.None
				}
				require.Equal(t, row, found[i])
			}
			// However much of it is remembered, what is recalled is what is found.
			known := slices.Clone(found)
			for i := range known {
				if rapid.Bool().Draw(t, "forgotten") {
					known[i] = optimizer.None
				}
			}
			tab.recall(keys, known)
			require.Equal(t, found, known)
			tab.create(keys, found)
			for i, k := range keys {
				if _, known := model[k]; !known {
					model[k] = uint32(len(model))
				}
				require.Equal(t, model[k], found[i])
				require.Equal(t, k, tab.rows.Key(found[i]))
			}
		}
		require.Equal(t, len(model), tab.rows.N)
	})
}

// unmix is the inverse of job.Mix: a key with a hash of our choice.
func unmix(h uint64) uint64 {
	h ^= h>>31 ^ h>>62
	h *= 0x319642b2d24d8ec3
	h ^= h>>27 ^ h>>54
	h *= 0x96de1b173f119089
	return h ^ h>>30 ^ h>>60
}

func TestUnmix(t *testing.T) {
	t.Parallel()
	for _, h := range []uint64{0, 1, 1 << 40, math.MaxUint64, 0x123456789abcdef} {
		require.Equal(t, h, job.Mix(unmix(h)))
	}
}

// The table's notion of where a key lies is the job's.
func TestTablePlacement(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2, 3, 7, 1000} {
		tables := map[int]*hashed{}
		for _, k := range []uint64{0, 1, 2, 3, 1 << 63, math.MaxUint64, 12345} {
			home := job.ShardOf(k, shards)
			for _, shard := range []int{home, (home + 1) % shards} {
				if tables[shard] == nil {
					tables[shard] = testTable(t, shard, shards)
				}
				bad := tables[shard].find([]uint64{k}, make([]uint32, 1))
				require.Equal(t, shard != home, bad == 0, "key %d, shard %d of %d", k, shard, shards)
			}
		}
	}
}

func TestTableGrowth(t *testing.T) {
	t.Parallel()
	tab := testTable(t, 0, 1)
	require.Len(t, tab.slots, firstSlots)
	const n = 100_000
	keys, found := make([]uint64, n), make([]uint32, n)
	for i := range keys {
		keys[i] = uint64(i) * 3
	}
	tab.create(keys, nones(found))
	require.GreaterOrEqual(t, len(tab.slots), n*8/5)
	require.Less(t, len(tab.slots), n*4)
	require.Equal(t, -1, tab.find(keys, found))
	for i, row := range found {
		require.Equal(t, uint32(i), row)
	}
	before := len(tab.slots)
	tab.create(keys, found)
	require.Len(t, tab.slots, before, "rows that exist need no room")
}

// An index that grows moves a few rows at a time, is never too full, and is
// complete at every moment.
func TestIndexGrowsOnTheWay(t *testing.T) {
	t.Parallel()
	tab := testTable(t, 0, 1)
	const n, more = 60_000, 30
	keys, found := make([]uint64, n), make([]uint32, n)
	for i := range keys {
		keys[i] = uint64(i)
	}
	grown, slots := 0, len(tab.slots)
	for at := 0; at < n; at += more {
		moved := tab.moved
		tab.create(keys[at:at+more], nones(found[at:at+more]))
		if len(tab.slots) != slots {
			grown, slots = grown+1, len(tab.slots)
			require.Nil(t, tab.next)
		}
		require.LessOrEqual(t, tab.rows.N, slots/4*3)
		require.LessOrEqual(t, slots, max(firstSlots, 4*tab.rows.N))
		if tab.rows.N > 100*more { // below, a push may be too large to grow on the way
			require.LessOrEqual(t, tab.moved-min(moved, tab.moved), movedPerRow*more)
		}
		if at%(50*more) == 0 {
			require.Equal(t, -1, tab.find(keys, found))
			for i, row := range found {
				want := uint32(i)
				if i >= at+more {
					want = optimizer.None
				}
				require.Equal(t, want, row)
			}
		}
	}
	require.Greater(t, grown, 8)
}

func nones(rows []uint32) []uint32 {
	for i := range rows {
		rows[i] = optimizer.None
	}
	return rows
}

// traffic is a steady state: messages of 3000 distinct keys of one shard of
// four, drawn from a table with so many rows and a key space of so many bits.
func traffic(tb testing.TB, rows, messages, bits int) (*Shard, [][]uint64, []float32) {
	tb.Helper()
	const perMessage = 3000
	p := testParameters(4)
	p.List[pWeights].Bits = bits
	s, err := NewShard(p, 1, testLanes, ShardOptions{})
	require.NoError(tb, err)
	all, rng := keysOn(1, 4, rows, 0), rand.New(rand.NewPCG(1, 2))
	grad := make([]float32, perMessage)
	for i := range grad {
		grad[i] = float32(rng.NormFloat64())
	}
	b := &batches{}
	for from := 0; from < rows; from += perMessage {
		keys := all[from:min(from+perMessage, rows)]
		mustPush(tb, s, b.next(nil, wire.SparseRows{Param: pWeights, Keys: keys, Values: grad[:len(keys)]}))
	}
	var out [][]uint64
	for range messages {
		picked, keys := map[int]bool{}, []uint64(nil)
		for len(keys) < perMessage {
			if i := rng.IntN(rows); !picked[i] {
				picked[i] = true
				keys = append(keys, all[i])
			}
		}
		out = append(out, keys)
	}
	return s, out, grad
}

// exchange is what a message of a trainer does to a shard: a push and a pull.
func exchange(tb testing.TB, s *Shard, p *wire.PushData, refs []wire.KeyRef, sink *values) {
	if out, err := s.Push(1, p, nil); err != nil || out.Verdict != 0 {
		tb.Fatal(out, err)
	}
	if err := s.Pull(nil, refs, sink, nil); err != nil {
		tb.Fatal(err)
	}
}

func TestNoAllocationInSteadyState(t *testing.T) {
	for _, bits := range []int{0, 24} {
		testNoAllocation(t, bits)
	}
}

func testNoAllocation(t *testing.T, bits int) {
	t.Helper()
	s, messages, grad := traffic(t, 20_000, 2, bits)
	p := &wire.PushData{
		Meta:   wire.Meta{Rank: 1 << 40, Token: 1},
		Sparse: []wire.SparseRows{{Param: pWeights, Keys: messages[0], Values: grad}},
	}
	refs, sink := []wire.KeyRef{{Param: pWeights, Keys: messages[0]}}, &values{}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		exchange(t, s, p, refs, sink)
		p.N++
	}))
	// Parts are copied, into memory that is used again.
	first, second := *p, *p
	first.More, second.Part, second.Sparse = true, 1, nil
	parts := []*wire.PushData{&first, &second}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		for _, part := range parts {
			part.N = p.N
			if _, err := s.Push(1, part, nil); err != nil {
				t.Fatal(err)
			}
		}
		p.N++
	}))
}

// cpuTime is the process's processor time, which says more than the wall
// clock on a machine that does other things as well.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// One key costs a push and a pull of a weight with adagrad, in a hashed and in a
// flat table.
func BenchmarkExchange(b *testing.B) {
	for _, c := range []struct {
		name       string
		rows, bits int
	}{
		{"10k rows", 10_000, 0}, {"10k rows, flat", 10_000, 24},
		{"300k rows", 300_000, 0}, {"300k rows, flat", 300_000, 24},
		{"3M rows", 3_000_000, 0}, {"3M rows, flat", 3_000_000, 24},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, messages, grad := traffic(b, c.rows, 64, c.bits)
			p := &wire.PushData{Meta: wire.Meta{Rank: 1 << 40, Token: 1}, Sparse: []wire.SparseRows{{Param: pWeights, Values: grad}}}
			refs, sink := []wire.KeyRef{{Param: pWeights}}, &values{}
			b.ReportAllocs()
			i, before := 0, cpuTime()
			for b.Loop() {
				p.Sparse[0].Keys, refs[0].Keys = messages[i%64], messages[(i+1)%64]
				exchange(b, s, p, refs, sink)
				p.N++
				i++
			}
			b.ReportMetric(float64(cpuTime()-before)/float64(b.N)/3000, "cpu-ns/key")
		})
	}
}
