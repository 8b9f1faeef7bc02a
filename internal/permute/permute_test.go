package permute

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGolden pins the permutations: they decide which records make a batch, in
// every job that was ever started. If this test fails, the code is wrong.
func TestGolden(t *testing.T) {
	t.Parallel()
	first := func(n int64, seeds ...uint64) []int64 {
		p := New(n, seeds...)
		values := make([]int64, min(n, 8))
		for i := range values {
			values[i] = p.At(int64(i))
		}
		return values
	}
	require.Equal(t, []int64{}, first(0))
	require.Equal(t, []int64{0}, first(1, 9))
	require.Equal(t, []int64{1, 0}, first(2, 1))
	require.Equal(t, []int64{2, 4, 7, 0, 5, 3, 8, 9}, first(10))
	require.Equal(t, []int64{13, 10, 19, 18, 22, 32, 6, 7}, first(36, 1, 0))
	require.Equal(t, []int64{27, 22, 11, 7, 19, 28, 34, 23}, first(36, 1, 1))
	require.Equal(t, []int64{3102, 5124, 9524, 15728, 7574, 13194, 5185, 4455}, first(16384, 1, 0, 17))
	require.Equal(t, []int64{620212, 364644, 664035, 33639, 394132, 428170, 566051, 709466}, first(1000000, 42, 3))
	require.Equal(t, []int64{74846063, 91550934, 60231937, 75657475, 82859879, 4759398, 52087107, 68488013}, first(100000000, 1, 0))
	require.Equal(t, []int64{226154881197, 704534250536, 264277505765, 151278308865, 560186003743, 1073231608039, 809506806479, 718053884519}, first(1099511627776, 7))
}

// TestBijection: every element comes exactly once, and Inverse finds it.
func TestBijection(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{1, 2, 3, 36, 63, 64, 65, 255, 256, 257, 1000, 16384} {
		for seed := range uint64(3) {
			p := New(n, seed, 1)
			require.Equal(t, n, p.Len())
			seen := make([]bool, n)
			for i := range n {
				j := p.At(i)
				require.False(t, seen[j], "n %d seed %d: %d comes twice", n, seed, j)
				seen[j] = true
				require.Equal(t, i, p.Inverse(j))
			}
		}
	}
}

func TestLargeSizesInvert(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, math.MaxInt64).Draw(t, "n")
		i := rapid.Int64Range(0, n-1).Draw(t, "i")
		p := New(n, rapid.Uint64().Draw(t, "seed"))
		j := p.At(i)
		require.True(t, j >= 0 && j < n)
		require.Equal(t, i, p.Inverse(j))
	})
}

// TestSeedsMatter: value, place and number of the seeds select the permutation.
func TestSeedsMatter(t *testing.T) {
	t.Parallel()
	all := [][]uint64{nil, {0}, {1}, {2}, {0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {2, 1}, {1, 2, 0}, {math.MaxUint64}}
	orders := make(map[[36]int64][]uint64)
	for _, seeds := range all {
		p := New(36, seeds...)
		var order [36]int64
		for i := range order {
			order[i] = p.At(int64(i))
		}
		require.NotContains(t, orders, order, "%v and %v", seeds, orders[order])
		orders[order] = seeds
	}
}

// TestUniform: over many seeds each place gets each element about equally often
// (chi square with 35² degrees of freedom, far below its 1 in 10⁹ value).
func TestUniform(t *testing.T) {
	t.Parallel()
	const n, seeds = 36, 7200
	var count [n][n]float64
	for seed := range uint64(seeds) {
		p := New(n, 1, seed)
		for i := range int64(n) {
			count[i][p.At(i)]++
		}
	}
	chi := 0.0
	for i := range count {
		for j := range count[i] {
			d := count[i][j] - seeds/n
			chi += d * d / (seeds / n)
		}
	}
	require.Less(t, chi, 1550.0)
	require.Greater(t, chi, 950.0)
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { New(-1) })
	p := New(10)
	require.Panics(t, func() { p.At(10) })
	require.Panics(t, func() { p.At(-1) })
	require.Panics(t, func() { p.Inverse(10) })
	var zero P
	require.Panics(t, func() { zero.At(0) })
}

func BenchmarkAt(b *testing.B) {
	p := New(16384, 1, 2, 3)
	i := int64(0)
	for b.Loop() {
		i = p.At(i)
	}
}
