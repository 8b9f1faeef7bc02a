package staleness

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestQuantiles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(-2, 1<<19), 1, 200).Draw(t, "values")
		var all, half Counts
		for i, v := range values {
			if i%2 == 0 {
				all.Add(v)
			} else {
				half.Add(v)
			}
		}
		all.Merge(&half)
		slices.Sort(values)
		for _, q := range []float64{0.01, 0.5, 0.99, 1} {
			want := max(values[int(math.Ceil(q*float64(len(values))))-1], 0)
			got, ok := all.Quantile(q)
			require.True(t, ok)
			if want < exact {
				require.Equal(t, want, got)
			} else {
				require.LessOrEqual(t, got, want)
				require.GreaterOrEqual(t, float64(got), float64(want)*(1-1.0/perOct))
			}
		}
		text, err := json.Marshal(all)
		require.NoError(t, err)
		var again Counts
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, all, again)
	})
}

func TestEmptyAndHuge(t *testing.T) {
	t.Parallel()
	var c Counts
	_, ok := c.Quantile(0.5)
	require.False(t, ok)
	c.Add(math.MaxInt64)
	v, ok := c.Quantile(0.5)
	require.True(t, ok)
	require.Greater(t, v, int64(1<<19))
	require.Error(t, json.Unmarshal([]byte(`[[9999,1]]`), &c))
	require.Error(t, json.Unmarshal([]byte(`{}`), &c))
}
