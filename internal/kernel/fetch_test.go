package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The groups are all of the index, each once and in order, whatever it points to.
func TestFetch(t *testing.T) {
	t.Parallel()
	x := []float64{1, 2, 3}
	blocks := [][]float32{make([]float32, 8), make([]float32, 8)}
	for _, n := range []int{0, 1, group - 1, group, group + 1, 2*group - 1, 2 * group, 2*group + 1, 1000} {
		narrow, wide := make([]uint32, n), make([]uint64, n)
		for i := range narrow {
			narrow[i], wide[i] = rand.Uint32(), rand.Uint64()
		}
		if n > 2 {
			narrow[n-1], wide[n-1], narrow[0] = math.MaxUint32, math.MaxUint64, 3
		}
		before, wideBefore := slices.Clone(narrow), slices.Clone(wide)
		for name, fetch := range map[string]func(from int) int{
			"32":      func(from int) int { return Fetch(x, narrow, 1, from) },
			"64":      func(from int) int { return Fetch(x, wide, 5, from) },
			"nothing": func(from int) int { return Fetch([]float64(nil), wide, 0, from) },
			"rows":    func(from int) int { return FetchRows(blocks, narrow, 2, 2, from) },
			"no rows": func(from int) int { return FetchRows(nil, narrow, 2, 2, from) },
		} {
			for from, to := 0, 0; from < n; from = to {
				to = fetch(from)
				require.Equal(t, min(from+group, n), to, name)
			}
		}
		require.Equal(t, before, narrow)
		require.Equal(t, wideBefore, wide)
	}
	require.Equal(t, []float64{1, 2, 3}, x)
}

// What is asked for: with the group at the beginning that one and the next, with
// each later one only the next.
func TestSpan(t *testing.T) {
	t.Parallel()
	for n := range 3*group + 2 {
		asked := 0
		for from, to := 0, 0; from < n; from = to {
			var first, end int
			first, to, end = span(n, from)
			require.Equal(t, asked, first)
			require.Equal(t, min(from+2*group, n), end)
			asked = end
		}
		require.Equal(t, n, asked)
	}
}
