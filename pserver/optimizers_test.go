package pserver

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

// everyOptimizer are settings of each type, with much of what it takes.
func everyOptimizer() []job.OptimizerSettings {
	cosine := job.ScheduleSettings{Type: job.ScheduleCosine, Steps: 40, Final: 0.1, Warmup: 5}
	all := []job.OptimizerSettings{
		job.DefaultOptimizer(job.OptimizerSGD), job.DefaultOptimizer(job.OptimizerMomentum), job.DefaultOptimizer(job.OptimizerNesterov),
		job.DefaultOptimizer(job.OptimizerAdagrad), job.DefaultOptimizer(job.OptimizerAdam), job.DefaultOptimizer(job.OptimizerFTRL),
	}
	for i := range all {
		s := &all[i]
		s.L2, s.ClipNorm = 0.01, 2
		switch s.Type {
		case job.OptimizerFTRL:
			s.L1 = 0.1
		case job.OptimizerAdagrad:
			s.L1, s.Schedule = 0.1, cosine
		default:
			s.Schedule = cosine
		}
	}
	return all
}

// optimizerParameters has a dense parameter of several blocks and a table for
// each optimizer: numbers 2i and 2i+1.
func optimizerParameters(shards int) job.Parameters {
	p := job.Parameters{V: 1, Seed: 3, Shards: shards}
	random := job.Initializer{Kind: job.InitNormal, Stddev: 0.5}
	for _, s := range everyOptimizer() {
		p.List = append(p.List,
			job.Parameter{Name: s.Type + "-dense", Shape: []int{2*job.BlockSize + 7}, Init: random, Optimizer: s, Reduction: "mean", Divisor: 4},
			job.Parameter{Name: s.Type + "-table", Sparse: true, Dim: 1 + len(p.List)%4, Init: random, Optimizer: s, Reduction: "mean", Divisor: 4})
	}
	return p
}

// feed pushes batches for all parameters of a shard, each with its own seed.
func feed(t testing.TB, s *Shard, b *batches, from, to uint64) {
	t.Helper()
	for n := from; n < to; n++ {
		mustPush(t, s, feedBatch(s, b, rand.New(rand.NewPCG(5, n))))
	}
}

func feedBatch(s *Shard, b *batches, rng *rand.Rand) *wire.PushData {
	var dense []wire.DenseBlock
	var sparse []wire.SparseRows
	fill := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	for _, p := range s.params {
		if p.Sparse {
			keys := keysOn(s.number, s.job.Shards, 1+rng.IntN(20), rng.Uint64N(60))
			keys = append(keys, keys[0]) // one comes twice
			sparse = append(sparse, rows(uint16(p.number), keys, fill(len(keys)*p.Dim)...))
			continue
		}
		for _, at := range p.blocks {
			dense = append(dense, block(uint16(p.number), at, fill(p.blockLen(at))...))
		}
	}
	return b.next(dense, sparse...)
}

// Every optimizer's state is saved, and what was restored goes on bit by bit as
// what was not: also the time of its schedule.
func TestEveryOptimizerIsSaved(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		for shard := range shards {
			s, err := NewShard(optimizerParameters(shards), shard, testLanes, ShardOptions{})
			require.NoError(t, err)
			b := &batches{}
			feed(t, s, b, 0, 12)
			r := reload(t, s)
			require.Equal(t, dump(t, s), dump(t, r))
			b2 := *b
			feed(t, s, b, 12, 30)
			feed(t, r, &b2, 12, 30)
			require.Equal(t, dump(t, s), dump(t, r))
		}
	}
}

// Whatever keys a push names, in whatever order and how often, it does what the
// same keys do that come once each with the sum of their gradients: for every
// optimizer, for keys from 0 to the largest, and for none at all.
func TestRepeatedKeysOfEveryOptimizer(t *testing.T) {
	t.Parallel()
	pool := []uint64{0, 1, 2, 3, 1 << 32, math.MaxInt64, 1 << 63, math.MaxUint64 - 1, math.MaxUint64} // as ints some are negative
	all := optimizerParameters(1)
	for i := range all.List {
		all.List[i].Optimizer.ClipNorm = 0 // it depends on the order in which squares are added
	}
	rapid.Check(t, func(rt *rapid.T) {
		repeated, err := NewShard(all, 0, testLanes, ShardOptions{})
		require.NoError(rt, err)
		once, err := NewShard(all, 0, testLanes, ShardOptions{})
		require.NoError(rt, err)
		var b1, b2 batches
		for range 3 {
			keys := rapid.SliceOfN(rapid.SampledFrom(pool), 0, 20).Draw(rt, "keys")
			var distinct []uint64
			for _, k := range keys {
				if !slices.Contains(distinct, k) {
					distinct = append(distinct, k)
				}
			}
			var twice, single []wire.SparseRows
			for _, p := range repeated.params {
				if !p.Sparse {
					continue
				}
				grad, sum := make([]float32, len(keys)*p.Dim), make([]float32, len(distinct)*p.Dim)
				for i, k := range keys {
					for d := range p.Dim {
						g := float32(rapid.IntRange(-4, 4).Draw(rt, "gradient")) // such sums are exact
						grad[i*p.Dim+d] = g
						sum[slices.Index(distinct, k)*p.Dim+d] += g
					}
				}
				twice = append(twice, rows(uint16(p.number), keys, grad...))
				single = append(single, rows(uint16(p.number), distinct, sum...))
			}
			mustPush(t, repeated, b1.next(nil, twice...))
			mustPush(t, once, b2.next(nil, single...))
		}
		require.Equal(rt, dump(t, once), dump(t, repeated))
	})
}

// A block and a row of as many weights are one problem, whatever the optimizer,
// its schedule and its clipping.
func TestDenseAndSparseAreTheSameBits(t *testing.T) {
	t.Parallel()
	for _, o := range everyOptimizer() {
		p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
			{Name: "d", Shape: []int{3}, Optimizer: o, Divisor: 4},
			{Name: "s", Sparse: true, Dim: 3, Optimizer: o, Divisor: 4},
			{Name: "one", Optimizer: o, Divisor: 4},
			{Name: "rows", Sparse: true, Dim: 1, Optimizer: o, Divisor: 4},
		}}
		s, err := NewShard(p, 0, 1, ShardOptions{})
		require.NoError(t, err)
		b, rng := &batches{}, rand.New(rand.NewPCG(6, 7))
		moved := false
		for range 60 {
			g := []float32{float32(rng.NormFloat64()) * 10, 0, float32(rng.NormFloat64())}
			mustPush(t, s, b.next([]wire.DenseBlock{block(0, 0, g...), block(2, 0, g[2])},
				rows(1, []uint64{9}, g...), rows(3, []uint64{4}, g[2])))
			require.Equal(t, pullBlock(t, s, 0, 0), pullRows(t, s, 1, 9), o.Type)
			require.Equal(t, pullBlock(t, s, 2, 0), pullRows(t, s, 3, 4), o.Type)
			moved = moved || pullBlock(t, s, 2, 0)[0] != 0
		}
		require.True(t, moved, o.Type)
	}
}

// The learning rate follows the shard's count of batches: retries do not move
// it, batches that are skipped or name nothing do, and all shards agree.
func TestScheduleCountsBatches(t *testing.T) {
	t.Parallel()
	sgd := job.OptimizerSettings{Type: "sgd", LearningRate: 1, Schedule: job.ScheduleSettings{Type: "linear", Steps: 8, Warmup: 2}}
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
		{Name: "d", Optimizer: sgd, Divisor: 1},
		{Name: "s", Sparse: true, Dim: 1, Optimizer: sgd, Divisor: 1},
	}}
	s, err := NewShard(p, 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	rank, want := int64(0), float32(0)
	send := func(n int64, void, empty bool) Outcome {
		d := &wire.PushData{Meta: wire.Meta{Rank: rank, N: n, Token: 1, Void: void}}
		if !empty {
			d.Dense, d.Sparse = []wire.DenseBlock{block(0, 0, -1)}, []wire.SparseRows{rows(1, []uint64{1}, -1)}
		}
		return mustPush(t, s, d)
	}
	is := func(rate float32) {
		t.Helper()
		want += rate
		require.Equal(t, []float32{want}, pullBlock(t, s, 0, 0))
		require.Equal(t, []float32{want}, pullRows(t, s, 1, 1))
	}
	send(0, false, false)
	is(0.5)
	send(0, false, false) // a retry
	send(3, false, false) // too early
	send(1, false, false)
	is(1)
	send(2, true, false) // void: skipped, and counted
	is(0)
	send(3, false, true) // empty on this shard
	send(4, false, false)
	is(0.75) // 4 batches before it: two of the warm-up, two of eight
	s = reload(t, s)
	rank = 2 // another chunk, the same clock
	send(0, false, false)
	is(0.625)
	for n := range int64(5) {
		send(n+1, false, true)
	}
	send(6, false, false)
	is(0) // the end
}

// What a restore has lost and policy skip gives up has passed as well.
func TestScheduleCountsLostBatches(t *testing.T) {
	t.Parallel()
	sgd := job.OptimizerSettings{Type: "sgd", LearningRate: 1, Schedule: job.ScheduleSettings{Type: "linear", Steps: 4}}
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "d", Optimizer: sgd, Divisor: 1}}}
	s, err := NewShard(p, 0, testLanes, ShardOptions{Policy: ledger.Skip})
	require.NoError(t, err)
	s.MarkRestored()
	mustPush(t, s, &wire.PushData{Meta: wire.Meta{N: 3, Token: 1, Gap: true}, Dense: []wire.DenseBlock{block(0, 0, -1)}})
	require.Equal(t, []float32{0.25}, pullBlock(t, s, 0, 0))
}

// The norm is that of the parameter's whole gradient in the push: all blocks,
// all rows, a row that comes twice by its sum, and however the push was cut.
func TestClipNorm(t *testing.T) {
	t.Parallel()
	sgd := job.OptimizerSettings{Type: "sgd", LearningRate: 1, ClipNorm: 1}
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
		{Name: "d", Shape: []int{job.BlockSize + 1}, Optimizer: sgd, Divisor: 2},
		{Name: "s", Sparse: true, Dim: 2, Optimizer: sgd, Divisor: 2},
		{Name: "other", Optimizer: sgd, Divisor: 2},
	}}
	for _, parts := range []bool{false, true} {
		s, err := NewShard(p, 0, testLanes, ShardOptions{})
		require.NoError(t, err)
		first := make([]float32, job.BlockSize)
		first[5] = -6
		dense := []wire.DenseBlock{block(0, 0, first...), block(2, 0, -1), block(0, 1, 8)}
		sparse := []wire.SparseRows{rows(1, []uint64{3, 8, 3}, -5, 1, 0, -8, -1, -1)}
		if parts {
			mustPush(t, s, &wire.PushData{Meta: wire.Meta{Token: 1}, More: true, Dense: dense[:2], Sparse: []wire.SparseRows{rows(1, []uint64{3, 8}, -5, 1, 0, -8)}})
			mustPush(t, s, &wire.PushData{Meta: wire.Meta{Token: 1}, Part: 1, Dense: dense[2:], Sparse: []wire.SparseRows{rows(1, []uint64{3}, -1, -1)}})
		} else {
			mustPush(t, s, &wire.PushData{Meta: wire.Meta{Token: 1}, Dense: dense, Sparse: sparse})
		}
		require.InDelta(t, 0.6, pullBlock(t, s, 0, 0)[5], 1e-6)
		require.InDelta(t, -0.8, pullBlock(t, s, 0, 1)[0], 1e-6)
		require.Equal(t, []float32{0.5}, pullBlock(t, s, 2, 0), "another parameter has its own norm")
		require.InDeltaSlice(t, []float32{0.6, 0, 0, 0.8}, pullRows(t, s, 1, 3, 8), 1e-6)
	}
}

// A push in parts is the same update as a whole one, for each optimizer.
func TestPartsAreTheSameBits(t *testing.T) {
	t.Parallel()
	whole, err := NewShard(optimizerParameters(1), 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	cut, err := NewShard(optimizerParameters(1), 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	b := &batches{}
	for n := range uint64(8) {
		p := feedBatch(whole, b, rand.New(rand.NewPCG(1, n)))
		mustPush(t, whole, p)
		first, second := *p, *p
		first.More, second.Part = true, 1
		first.Dense, second.Dense = p.Dense[:7], p.Dense[7:]
		first.Sparse, second.Sparse = p.Sparse[:1], p.Sparse[1:]
		mustPush(t, cut, &first)
		mustPush(t, cut, &second)
	}
	require.Equal(t, dump(t, whole), dump(t, cut))
}

// The text of ftrl is the weight that follows from its state.
func TestFTRLExport(t *testing.T) {
	t.Parallel()
	o := job.OptimizerSettings{Type: job.OptimizerFTRL, LearningRate: 0.5, Beta: 0.25, L1: 0.5, L2: 0.125}
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "s", Sparse: true, Dim: 1, Optimizer: o, Divisor: 1}}}
	s, err := NewShard(p, 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	b := &batches{}
	for _, g := range []float32{3, -1, 2} {
		mustPush(t, s, b.next(nil, rows(0, []uint64{1, 2}, g, 0.01)))
	}
	s = reload(t, s)
	words := s.content.tables[0].rows.Row(0)
	z, n := float64(words[3]), float64(words[4])
	var got []float32
	for r := range s.Export(0) {
		require.Equal(t, []uint64{1, 2}, r.Keys)
		got = append(got, r.Floats...)
	}
	require.Zero(t, got[1], "l1 has kept it at 0")
	require.InDelta(t, 14, n, 0)
	require.InEpsilon(t, -(z-0.5)/((0.25+math.Sqrt(n))/0.5+0.125), got[0], 1e-6)
	require.Equal(t, pullRows(t, s, 0, 1)[0], got[0])
}

func TestNoOptimizerAllocates(t *testing.T) {
	s, err := NewShard(optimizerParameters(1), 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	b := &batches{}
	p := feedBatch(s, b, rand.New(rand.NewPCG(1, 2)))
	for i := range p.Sparse { // a row that comes twice is merged, with memory of its own
		v := &p.Sparse[i]
		v.Keys = v.Keys[:len(v.Keys)-1]
		v.Values = v.Values[:len(v.Keys)*s.params[v.Param].Dim]
	}
	p.Last = false
	require.Zero(t, testing.AllocsPerRun(20, func() {
		if _, err := s.Push(1, p, nil); err != nil {
			t.Fatal(err)
		}
		p.N++
	}))
	require.EqualValues(t, 21, totals(s).Batches)
}
