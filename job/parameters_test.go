package job_test

import (
	"encoding/json"
	"math"
	"math/big"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/job"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	spec := parse(t, full)
	ps, err := job.Resolve(spec, []job.Parameter{
		{Name: "bias"},
		{Name: "deep", Shape: []int{300, 200}, Init: job.Initializer{Kind: job.InitUniform, Min: -1, Max: 1},
			Optimizer: job.OptimizerSettings{Type: "sgd", LearningRate: 0.5}, Reduction: "sum"},
		{Name: "seen", Sparse: true, Dim: 3, Bits: 5, Optimizer: job.OptimizerSettings{Type: "count"}},
		{Name: "weights", Sparse: true, Dim: 1},
	})
	require.NoError(t, err)
	adagrad := job.OptimizerSettings{Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10}
	zeros := job.Initializer{Kind: "zeros"}
	require.Equal(t, job.Parameters{V: 1, Seed: 1, Shards: 4, List: []job.Parameter{
		{Name: "bias", Init: zeros, Optimizer: adagrad, Reduction: "mean", Divisor: 64},
		{Name: "deep", Shape: []int{300, 200}, Init: job.Initializer{Kind: "uniform", Min: -1, Max: 1},
			Optimizer: job.OptimizerSettings{Type: "sgd", LearningRate: 0.5}, Reduction: "sum", Divisor: 1},
		{Name: "seen", Sparse: true, Dim: 3, Bits: 5, Init: zeros,
			Optimizer: job.OptimizerSettings{Type: "count"}, Reduction: "sum", Divisor: 1},
		{Name: "weights", Sparse: true, Dim: 1, Bits: 20, Init: zeros, Optimizer: adagrad, Reduction: "mean", Divisor: 64},
	}}, ps)
	text, err := json.Marshal(ps)
	require.NoError(t, err)
	var back job.Parameters
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, ps, back)

	require.Equal(t, 1, ps.List[0].Elements())
	require.Equal(t, 1, ps.List[0].Blocks())
	require.Equal(t, 60000, ps.List[1].Elements())
	require.Equal(t, 4, ps.List[1].Blocks())
	require.Equal(t, 16384, ps.List[1].BlockLen(2))
	require.Equal(t, 60000-3*16384, ps.List[1].BlockLen(3))
}

func TestImpossibleParameters(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		list []job.Parameter
		want string
	}{
		"none":              {nil, "0 of them"},
		"no name":           {[]job.Parameter{{}}, `"" is no name`},
		"a name with a tab": {[]job.Parameter{{Name: "a\tb"}}, `"a\tb" is no name`},
		"a name twice":      {[]job.Parameter{{Name: "a"}, {Name: "a"}}, "given twice"},
		"no dim":            {[]job.Parameter{{Name: "a", Sparse: true}}, "a row of 0 values"},
		"a huge dim":        {[]job.Parameter{{Name: "a", Sparse: true, Dim: 1 << 20}}, "a row of 1048576 values"},
		"both":              {[]job.Parameter{{Name: "a", Sparse: true, Dim: 1, Shape: []int{2}}}, "a dense one a shape"},
		"dense with dim":    {[]job.Parameter{{Name: "a", Dim: 1}}, "a dense one a shape"},
		"an empty axis":     {[]job.Parameter{{Name: "a", Shape: []int{3, 0}}}, "the impossible shape [3 0]"},
		"an overflow":       {[]job.Parameter{{Name: "a", Shape: []int{1 << 32, 1 << 32}}}, "the impossible shape"},
		"bits":              {[]job.Parameter{{Name: "a", Sparse: true, Dim: 1, Bits: 64}}, "a key space of 64 bits"},
		"reduction":         {[]job.Parameter{{Name: "a", Reduction: "max"}}, `the unknown reduction "max"`},
		"initialiser":       {[]job.Parameter{{Name: "a", Init: job.Initializer{Kind: "magic"}}}, `the unknown initialiser "magic"`},
		"optimizer":         {[]job.Parameter{{Name: "a", Optimizer: job.OptimizerSettings{Type: "adamw"}}}, `the unknown optimizer "adamw"`},
		"settings": {[]job.Parameter{{Name: "a", Optimizer: job.OptimizerSettings{Type: "adam", LearningRate: 1, Beta1: 0.9, L1: 2}}},
			"a: optimizer setting beta2: must be above 0 and below 1 (also as a float32), is 0; optimizer setting l1: adam has no such setting"},
		"all at once": {[]job.Parameter{{Name: ""}, {Name: "b", Dim: 3}}, "no name, or one that is given twice\njob: parameters: b: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := job.Resolve(parse(t, full), tc.list)
			require.ErrorContains(t, err, tc.want)
		})
	}
	nan := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "a", Reduction: "sum", Divisor: math.NaN()}}}
	require.ErrorContains(t, nan.Validate(), "the divisor NaN")
}

// TestPlacementGolden pins the placement: it is part of the formats.
func TestPlacementGolden(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint64(0), job.Mix(0))
	require.Equal(t, uint64(0x5692161d100b05e5), job.Mix(1))
	require.Equal(t, uint64(0xb4d055fcf2cbbd7b), job.Mix(1<<64-1))
	var shards []int
	for key := range uint64(16) {
		shards = append(shards, job.ShardOf(key, 4))
	}
	require.Equal(t, []int{0, 1, 3, 0, 2, 2, 3, 0, 3, 2, 0, 0, 0, 3, 0, 0}, shards)
	var blocks []int
	for b := range 6 {
		blocks = append(blocks, job.BlockShard("bias", b, 4))
	}
	first := int(xxhash.Sum64String("bias") % 4)
	require.Equal(t, []int{first, (first + 1) % 4, (first + 2) % 4, (first + 3) % 4, first, (first + 1) % 4}, blocks)
}

// TestPlacement: the definition, computed with large integers.
func TestPlacement(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key, shards := rapid.Uint64().Draw(t, "key"), rapid.IntRange(1, 1024).Draw(t, "shards")
		product := new(big.Int).Mul(new(big.Int).SetUint64(job.Mix(key)), big.NewInt(int64(shards)))
		require.Equal(t, int(product.Rsh(product, 64).Int64()), job.ShardOf(key, shards))
		name, block := rapid.String().Draw(t, "name"), rapid.IntRange(0, 1<<30).Draw(t, "block")
		sum := new(big.Int).Add(new(big.Int).SetUint64(xxhash.Sum64String(name)), big.NewInt(int64(block)))
		sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 64))
		require.Equal(t, int(sum.Mod(sum, big.NewInt(int64(shards))).Int64()), job.BlockShard(name, block, shards))
	})
	counts := make([]int, 7)
	for key := range uint64(70000) {
		counts[job.ShardOf(key, 7)]++
	}
	for _, n := range counts {
		require.InDelta(t, 10000, n, 400, "keys spread evenly")
	}
}
