package pserver

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

func TestPushThenPull(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	out := mustPush(t, s, b.next(
		[]wire.DenseBlock{block(pBias, 0, 8), block(pTotal, 0, 4)},
		rows(pWeights, []uint64{0, math.MaxUint64}, 4, -400), rows(pSeen, []uint64{0, math.MaxUint64}, 1, 3),
	))
	require.Equal(t, Outcome{Verdict: ledger.Applied, Next: 1}, out)
	require.Equal(t, wire.Applied, out.Code())

	// The first step of adagrad is the learning rate, whatever the gradient.
	require.Equal(t, []float32{-0.1}, pullBlock(t, s, pBias, 0))
	require.Equal(t, []float32{-0.1, 0, 0.1}, pullRows(t, s, pWeights, 0, 1, math.MaxUint64))
	require.Equal(t, []float32{1, 3, 0}, pullRows(t, s, pSeen, 0, math.MaxUint64, 1))
	require.Equal(t, []float32{4}, pullBlock(t, s, pTotal, 0))
	require.EqualValues(t, 4, s.Stats().Rows, "a pull creates no row")
	require.Equal(t, ledger.Sums{Batches: 1, Records: 4, Loss: 1}, totals(s))
}

func TestPullOrder(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	mustPush(t, s, b.next([]wire.DenseBlock{block(pTotal, 0, 7)}, rows(pSeen, []uint64{5, 6}, 2, 3)))
	var v values
	dense := []wire.BlockRef{{Param: pTotal}, {Param: pBias}}
	sparse := []wire.KeyRef{{Param: pSeen, Keys: []uint64{6, 1, 5}}, {Param: pWeights, Keys: []uint64{5}}, {Param: pSeen}}
	n, err := s.PullSize(dense, sparse)
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.NoError(t, s.Pull(dense, sparse, &v, nil))
	require.Equal(t, values{7, 0, 3, 0, 2, 0}, v)
	require.NoError(t, s.Pull(nil, nil, &v, nil))
	require.Empty(t, v)
}

// The design's table as a shard answers it; the weights tell what was applied.
func TestLedgerGuardsTheWeights(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	push := func(n, token int64, last, void bool) Outcome {
		return mustPush(t, s, &wire.PushData{
			Meta:  wire.Meta{Rank: 2, N: n, Token: token, Records: 4, Last: last, Void: void},
			Dense: []wire.DenseBlock{block(pTotal, 0, 1)},
		})
	}
	count := func() float32 { return pullBlock(t, s, pTotal, 0)[0] }

	require.Equal(t, Outcome{Verdict: ledger.Applied, Next: 1}, push(0, 5, false, false))
	require.Equal(t, Outcome{Verdict: ledger.Duplicate, Next: 1}, push(0, 6, false, false))
	require.Equal(t, Outcome{Verdict: ledger.Stale, Next: 1}, push(1, 5, false, false))
	require.Equal(t, Outcome{Verdict: ledger.GoBack, Next: 1}, push(2, 6, false, false))
	require.Equal(t, float32(1), count())
	require.Equal(t, Outcome{Verdict: ledger.Skipped, Next: 2}, push(1, 6, false, true))
	require.Equal(t, float32(1), count())
	require.Equal(t, Outcome{Verdict: ledger.Applied, Finished: true}, push(2, 6, true, false))
	require.Equal(t, Outcome{Verdict: ledger.Duplicate, Finished: true}, push(2, 5, true, false))
	require.Equal(t, float32(2), count())
	finished, _ := s.Progress(0, 2)
	require.True(t, finished)
	require.Equal(t, ledger.Sums{Batches: 2, Skipped: 1, Records: 12}, totals(s))
}

func TestPolicySkipAppliesAfterAGap(t *testing.T) {
	t.Parallel()
	s, err := NewShard(testParameters(1), 0, testLanes, ShardOptions{Policy: ledger.Skip})
	require.NoError(t, err)
	s.MarkRestored()
	out := mustPush(t, s, &wire.PushData{Meta: wire.Meta{N: 3, Token: 1, Gap: true}, Dense: []wire.DenseBlock{block(pTotal, 0, 1)}})
	require.Equal(t, Outcome{Verdict: ledger.AppliedAfterGap, Next: 4, Lost: 3}, out)
	require.Equal(t, wire.Applied, out.Code())
	require.Equal(t, []float32{1}, pullBlock(t, s, pTotal, 0))
	require.EqualValues(t, 3, totals(s).Lost)
}

// Each of these pushes is half right; none of it may be applied.
func TestRefusedPushesChangeNothing(t *testing.T) {
	t.Parallel()
	here, elsewhere := keysOn(1, 3, 2, 0), keysOn(2, 3, 1, 0)[0]
	good := rows(pWeights, here, 1, 1)
	blockElsewhere := uint32(0)
	for job.BlockShard("matrix", int(blockElsewhere), 3) == 1 {
		blockElsewhere++
	}
	blockHere := uint32(0)
	for job.BlockShard("matrix", int(blockHere), 3) != 1 {
		blockHere++
	}
	full := make([]float32, job.BlockSize)
	for name, p := range map[string]wire.PushData{
		"negative n":             {Meta: wire.Meta{N: -1}},
		"unknown parameter":      {Sparse: []wire.SparseRows{good, rows(99, nil)}},
		"unknown dense":          {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{block(6, 0, 1)}},
		"dense as sparse":        {Sparse: []wire.SparseRows{good, rows(pBias, here, 1, 1)}},
		"sparse as dense":        {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{block(pWeights, 0, 1)}},
		"too few values":         {Sparse: []wire.SparseRows{good, rows(pEmbedding, here, 1, 2, 3, 4, 5)}},
		"too many values":        {Sparse: []wire.SparseRows{good, rows(pSeen, here, 1, 2, 3)}},
		"values without keys":    {Sparse: []wire.SparseRows{good, rows(pSeen, nil, 1)}},
		"key of another shard":   {Sparse: []wire.SparseRows{good, rows(pSeen, []uint64{here[0], elsewhere}, 1, 1)}},
		"key beyond the bits":    {Sparse: []wire.SparseRows{good, rows(pEmbedding, keysOn(1, 3, 1, 1<<40), 1, 2, 3)}},
		"block of another shard": {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{{Param: pMatrix, Block: blockElsewhere, Values: full}}},
		"block beyond the end":   {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{{Param: pMatrix, Block: 5, Values: full}}},
		"block number 2^32-1":    {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{{Param: pMatrix, Block: math.MaxUint32, Values: full}}},
		"block too short":        {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{{Param: pMatrix, Block: blockHere, Values: full[:3]}}},
		"block twice": {Sparse: []wire.SparseRows{good}, Dense: []wire.DenseBlock{
			{Param: pMatrix, Block: blockHere, Values: full[:lenOf(blockHere)]}, {Param: pMatrix, Block: blockHere, Values: full[:lenOf(blockHere)]}}},
		"half a count":     {Sparse: []wire.SparseRows{good, rows(pSeen, here, 1, 0.5)}},
		"a negative count": {Sparse: []wire.SparseRows{good, rows(pSeen, here, 1, -1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestShard(t, 1, 3)
			before := dump(t, s)
			_, err := s.Push(1, &p, nil)
			require.ErrorIs(t, err, ErrInvalid)
			require.Equal(t, before, dump(t, s))
			require.NoError(t, s.Err())
			mustPush(t, s, &wire.PushData{Sparse: []wire.SparseRows{good}})
		})
	}
}

func lenOf(block uint32) int { return min(5*(job.BlockSize-1)-int(block)*job.BlockSize, job.BlockSize) }

func TestRefusedPulls(t *testing.T) {
	t.Parallel()
	s := newTestShard(t, 1, 3)
	elsewhere := keysOn(2, 3, 1, 0)
	for name, r := range map[string]struct {
		dense  []wire.BlockRef
		sparse []wire.KeyRef
	}{
		"unknown":              {sparse: []wire.KeyRef{{Param: 17}}},
		"unknown dense":        {dense: []wire.BlockRef{{Param: 17}}},
		"dense as sparse":      {sparse: []wire.KeyRef{{Param: pBias}}},
		"sparse as dense":      {dense: []wire.BlockRef{{Param: pSeen}}},
		"block":                {dense: []wire.BlockRef{{Param: pMatrix, Block: 5}}},
		"key of another shard": {sparse: []wire.KeyRef{{Param: pSeen, Keys: elsewhere}}},
	} {
		require.ErrorIs(t, s.Pull(r.dense, r.sparse, nil, nil), ErrInvalid, name)
	}
}

func TestNotOwner(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	before := dump(t, s)
	no := func() bool { return false }
	_, err := s.Push(1, (&batches{}).next(nil), no)
	require.ErrorIs(t, err, ErrNotOwner)
	require.ErrorIs(t, s.Pull(nil, nil, nil, no), ErrNotOwner)
	require.Equal(t, before, dump(t, s))
}

func TestEmptyPushesCount(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	for range 10 {
		mustPush(t, s, b.next([]wire.DenseBlock{}, rows(pWeights, nil)))
	}
	require.Equal(t, ledger.Sums{Batches: 10, Records: 40, Loss: 10}, totals(s))
	require.Zero(t, s.Stats().Rows)
	finished, _ := s.Progress(0, 0)
	require.True(t, finished)
}

// A gradient that is not finite anywhere is not applied anywhere on the shard.
func TestNonFiniteGradientIsSkipped(t *testing.T) {
	t.Parallel()
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for name, p := range map[string]*wire.PushData{
			"dense":  {Dense: []wire.DenseBlock{block(pTotal, 0, 1), block(pBias, 0, bad)}},
			"sparse": {Dense: []wire.DenseBlock{block(pTotal, 0, 1)}, Sparse: []wire.SparseRows{rows(pWeights, []uint64{1, 2}, 1, bad)}},
			"count":  {Dense: []wire.DenseBlock{block(pTotal, 0, bad)}, Sparse: []wire.SparseRows{rows(pWeights, []uint64{1}, 1)}},
		} {
			s := theShard(t)
			p.Records, p.Loss = 4, 2
			require.Equal(t, Outcome{Verdict: ledger.Skipped, Next: 1}, mustPush(t, s, p), name)
			require.Equal(t, []float32{0}, pullBlock(t, s, pTotal, 0), name)
			require.Zero(t, s.Stats().Rows, name)
			require.Equal(t, ledger.Sums{Skipped: 1, Records: 4, Loss: 2}, totals(s))
		}
	}
}

func TestNonFiniteWeightBreaksTheShard(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		push wire.PushData
		want NonFiniteError
		text string
	}{
		"dense": {
			push: wire.PushData{Dense: []wire.DenseBlock{block(pBias, 0, math.MaxFloat32)}},
			want: NonFiniteError{Parameter: "bias"},
			text: `parameter "bias", element 0 became non-finite in batch 0 of chunk rank 6 of pass 2`,
		},
		"sparse": {
			push: wire.PushData{Sparse: []wire.SparseRows{rows(pWeights, []uint64{8, 9}, 1, math.MaxFloat32)}},
			want: NonFiniteError{Parameter: "weights", Sparse: true, Row: 9},
			text: `parameter "weights", row 9 became non-finite in batch 0 of chunk rank 6 of pass 2`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := theShard(t)
			c.push.Meta = wire.Meta{Pass: 2, Rank: 6, Token: 1}
			c.want.Pass, c.want.Rank = 2, 6
			_, err := s.Push(1, &c.push, nil)
			var e *NonFiniteError
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.want, *e)
			require.EqualError(t, e, c.text)
			require.ErrorIs(t, s.Err(), ErrBroken)
			require.ErrorIs(t, s.Pull(nil, nil, nil, nil), ErrBroken)
			_, err = s.Push(1, (&batches{}).next(nil), nil)
			require.ErrorIs(t, err, ErrBroken)
			_, err = s.Cut()
			require.ErrorIs(t, err, ErrBroken, "what has diverged is not saved")
		})
	}
}

// A key that comes twice in one push, or a table that does, gets one update by
// the sum, like a scalar reference that adds up first.
func TestRepeatedKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const param = pWeights
		keys := rapid.SliceOfN(rapid.SampledFrom([]uint64{0, 1, 2, 1 << 63, math.MaxUint64}), 0, 12).Draw(t, "keys")
		sums, grad := map[uint64]float32{}, make([]float32, len(keys))
		for i, k := range keys {
			grad[i] = float32(rapid.IntRange(-8, 8).Draw(t, "gradient"))
			sums[k] += grad[i]
		}
		cut := rapid.IntRange(0, len(keys)).Draw(t, "cut")
		s, err := NewShard(testParameters(1), 0, testLanes, ShardOptions{})
		require.NoError(t, err)
		b := &batches{}
		for range 2 {
			_, err := s.Push(1, b.next(nil, rows(param, keys[:cut], grad[:cut]...), rows(param, keys[cut:], grad[cut:]...)), nil)
			require.NoError(t, err)
		}
		for k, g := range sums {
			var v values
			require.NoError(t, s.Pull(nil, []wire.KeyRef{{Param: param, Keys: []uint64{k}}}, &v, nil))
			want := 0.0
			if g != 0 {
				want = -0.1 * (1 + 1/math.Sqrt2) * float64(g) / math.Abs(float64(g))
			}
			require.InDelta(t, want, v[0], 1e-6)
		}
		require.EqualValues(t, len(sums), s.Stats().Rows)
	})
}

// count adds repeated keys up beyond what a float32 can.
func TestRepeatedKeysOfCount(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	mustPush(t, s, b.next(nil, rows(pSeen, []uint64{4, 4, 4}, 1<<24, 1, 1)))
	for r := range s.Export(pSeen) {
		require.Equal(t, []uint64{16777218}, r.Counts)
	}
}

// Random traffic against a reference in float64 with Go maps.
func TestAgainstReference(t *testing.T) {
	t.Parallel()
	const shards = 2
	s, b, rng := newTestShard(t, 1, shards), &batches{}, rand.New(rand.NewPCG(5, 6))
	keys := append(keysOn(1, shards, 3000, 0), keysOn(1, shards, 3000, math.MaxUint64-20_000)...)
	type weight struct{ w, a float64 }
	want := map[uint64]*weight{}
	seen := map[uint64]uint64{}
	for range 300 {
		picked := map[uint64]bool{}
		var push []uint64
		var grad, ones []float32
		for range rng.IntN(200) {
			k := keys[rng.IntN(len(keys))]
			if picked[k] {
				continue
			}
			picked[k] = true
			push, grad, ones = append(push, k), append(grad, float32(rng.NormFloat64())), append(ones, 1)
			if want[k] == nil {
				want[k] = &weight{}
			}
			g := float64(grad[len(grad)-1]) / 4
			want[k].a += g * g
			want[k].w -= 0.1 * g / (math.Sqrt(want[k].a) + 1e-10)
			seen[k]++
		}
		mustPush(t, s, b.next(nil, rows(pWeights, push, grad...), rows(pSeen, push, ones...)))
	}
	got, counts := pullRows(t, s, pWeights, keys...), pullRows(t, s, pSeen, keys...)
	for i, k := range keys {
		w := want[k]
		if w == nil {
			w = &weight{}
		}
		require.InDelta(t, w.w, got[i], 1e-5)
		require.Equal(t, float32(seen[k]), counts[i])
	}
	require.EqualValues(t, 2*len(want), s.Stats().Rows)
}

// Initial values depend on seed, name and place, not on the number of shards.
func TestInitialValuesDoNotDependOnTheShards(t *testing.T) {
	t.Parallel()
	whole := theShard(t)
	matrix := make([]float32, 5*(job.BlockSize-1))
	whole.params[pMatrix].init.Elements(matrix, 0)
	for b := range uint32(5) {
		require.Equal(t, matrix[b*job.BlockSize:][:lenOf(b)], pullBlock(t, whole, pMatrix, b))
	}
	const shards = 3
	elements := 0
	for i := range shards {
		s := newTestShard(t, i, shards)
		for b := range uint32(5) {
			if job.BlockShard("matrix", int(b), shards) == i {
				require.Equal(t, pullBlock(t, whole, pMatrix, b), pullBlock(t, s, pMatrix, b))
				elements += len(pullBlock(t, s, pMatrix, b))
			}
		}
		keys := keysOn(i, shards, 10, 1000)
		require.Equal(t, pullRows(t, whole, pEmbedding, keys...), pullRows(t, s, pEmbedding, keys...))
	}
	require.Equal(t, 5*(job.BlockSize-1), elements)
}

// What a pull answers for a missing row is what a push starts from.
func TestPushStartsFromTheInitialValue(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	before := pullRows(t, s, pEmbedding, 77)
	mustPush(t, s, b.next(nil, rows(pEmbedding, []uint64{77}, 0, 0, 2)))
	require.Equal(t, []float32{before[0], before[1], before[2] - 1}, pullRows(t, s, pEmbedding, 77))
}

// The same pushes make the same bits, whatever is pulled between, and however
// they are cut into parts.
func TestDeterminism(t *testing.T) {
	t.Parallel()
	train := func(parts bool) string {
		s, b, rng := theShard(t), &batches{}, rand.New(rand.NewPCG(1, 1))
		for range 40 {
			keys, grad := []uint64{}, []float32{}
			for _, k := range rng.Perm(50) {
				keys, grad = append(keys, uint64(k)), append(grad, float32(rng.NormFloat64()))
			}
			p := b.next([]wire.DenseBlock{block(pBias, 0, grad[0])}, rows(pWeights, keys, grad...))
			if !parts {
				pullRows(t, s, pWeights, 1, 2, 1000)
				mustPush(t, s, p)
				continue
			}
			first, second := *p, *p
			first.More, first.Sparse = true, []wire.SparseRows{rows(pWeights, keys[:20], grad[:20]...)}
			second.Part, second.Dense, second.Sparse = 1, nil, []wire.SparseRows{rows(pWeights, keys[20:], grad[20:]...)}
			require.True(t, mustPush(t, s, &first).Staged)
			require.Equal(t, ledger.Applied, mustPush(t, s, &second).Verdict)
		}
		return dump(t, s)
	}
	require.Equal(t, train(false), train(false))
	require.Equal(t, train(false), train(true))
}

func TestCompareThroughTheShard(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	mustPush(t, s, &wire.PushData{Meta: wire.Meta{Rank: 4, Last: true}})
	require.Equal(t, "0", s.Missing(0, 0, ranges.Of(0, 1)).String())
	s.Reopened(0, 0, ranges.Of(0, 0))
	mustPush(t, s, &wire.PushData{Meta: wire.Meta{Rank: 0, Last: true}})
	require.EqualValues(t, 1, s.Stats().Summary.Replayed)
	require.Zero(t, s.Unreckoned())
	lanes := []ledger.Lane{{Complete: ranges.Of(0, 1)}, {Complete: ranges.Of(0, 0)}, {}, {}}
	require.Zero(t, s.Reckon(0, lanes), "that is for the policy skip")
	mustPush(t, s, &wire.PushData{Meta: wire.Meta{Rank: 1, Last: true}})
	require.True(t, s.Covers(0, lanes))
	require.NoError(t, s.Collapse(0, 3, lanes))
	require.Equal(t, 1, s.Stats().Summary.Passes)
	s.SetGeneration(4)
	require.EqualValues(t, 4, s.Stats().Generation)
}

func TestStats(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	before := s.Stats()
	require.EqualValues(t, 5*(job.BlockSize-1)+2, before.Elements)
	keys, grad := keysOn(0, 1, 100_000, 0), make([]float32, 100_000)
	mustPush(t, s, b.next(nil, rows(pWeights, keys, grad...)))
	st := s.Stats()
	require.EqualValues(t, 100_000, st.Rows)
	perRow := float64(st.Bytes-before.Bytes) / 100_000
	require.InDelta(t, 16+8*2.6, perRow, 10, "bytes a row")
}

func TestParametersAreChecked(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*job.Parameters){
		"no shards":            func(p *job.Parameters) { p.Shards = 0 },
		"shard beyond":         func(p *job.Parameters) { p.Shards = 1 },
		"name twice":           func(p *job.Parameters) { p.List[1].Name = "bias" },
		"optimizer":            func(p *job.Parameters) { p.List[0].Optimizer.Type = "magic" },
		"rate":                 func(p *job.Parameters) { p.List[0].Optimizer.LearningRate = 0 },
		"initializer":          func(p *job.Parameters) { p.List[0].Init.Kind = "magic" },
		"uniform":              func(p *job.Parameters) { p.List[0].Init = job.Initializer{Kind: "uniform", Min: 2, Max: 1} },
		"normal":               func(p *job.Parameters) { p.List[0].Init = job.Initializer{Kind: "normal", Stddev: -1} },
		"infinite":             func(p *job.Parameters) { p.List[0].Init = job.Initializer{Kind: "constant", Value: 1e300} },
		"divisor":              func(p *job.Parameters) { p.List[0].Divisor = 0 },
		"dim":                  func(p *job.Parameters) { p.List[2].Dim = 0 },
		"bits":                 func(p *job.Parameters) { p.List[2].Bits = 65 },
		"shape":                func(p *job.Parameters) { p.List[1].Shape = []int{3, 0} },
		"shape that overflows": func(p *job.Parameters) { p.List[1].Shape = []int{1 << 32, 1 << 32} },
		"shape too large":      func(p *job.Parameters) { p.List[1].Shape = []int{1 << 50} },
		"too many":             func(p *job.Parameters) { p.List = make([]job.Parameter, 1<<16+1) },
	} {
		p := testParameters(2)
		spoil(&p)
		_, err := NewShard(p, 1, testLanes, ShardOptions{})
		require.Error(t, err, name)
	}
	_, err := NewShard(testParameters(2), 1, 0, ShardOptions{})
	require.Error(t, err)
}

// Two rows on five shards: most tables are empty, and everything still works.
func TestMoreShardsThanRows(t *testing.T) {
	t.Parallel()
	for i := range 5 {
		s := newTestShard(t, i, 5)
		for _, k := range []uint64{0, 1} {
			if job.ShardOf(k, 5) == i {
				mustPush(t, s, (&batches{rank: int64(k)}).next(nil, rows(pSeen, []uint64{k}, 1)))
			}
		}
		r := reload(t, s)
		require.Equal(t, s.Stats().Rows, r.Stats().Rows)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	const trainers, each = 4, 50
	var wg sync.WaitGroup
	for i := range trainers {
		wg.Go(func() {
			var v values
			for n := range int64(each) {
				p := &wire.PushData{
					Meta:   wire.Meta{Rank: int64(i), N: n, Token: 1},
					Dense:  []wire.DenseBlock{block(pTotal, 0, 1)},
					Sparse: []wire.SparseRows{rows(pSeen, []uint64{uint64(n), 1000}, 1, 1)},
				}
				if _, err := s.Push(uint64(i), p, func() bool { return true }); err != nil {
					panic(err)
				}
				if err := s.Pull([]wire.BlockRef{{Param: pTotal}}, []wire.KeyRef{{Param: pSeen, Keys: []uint64{1000}}}, &v, nil); err != nil {
					panic(err)
				}
				if v[0] != v[1] {
					panic(fmt.Sprint("torn: ", v))
				}
				if n%16 == 0 {
					if c, err := s.Cut(); err == nil {
						c.Close()
					} else if !errors.Is(err, ErrCutting) {
						panic(err)
					}
					s.Stats()
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, []float32{trainers * each}, pullBlock(t, s, pTotal, 0))
}
