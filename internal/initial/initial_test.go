package initial

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

func initialOf(t *testing.T, in job.Initializer, seed uint64, name string) Values {
	t.Helper()
	r, err := New(in, seed, name)
	require.NoError(t, err)
	return r
}

// The values are part of the formats: a model must not change because a
// program was built anew.
func TestInitialValuesArePinned(t *testing.T) {
	t.Parallel()
	u := initialOf(t, job.Initializer{Kind: job.InitUniform, Min: -1, Max: 1}, 7, "embedding")
	n := initialOf(t, job.Initializer{Kind: job.InitNormal, Mean: 1, Stddev: 2}, 7, "embedding")
	got := make([]float32, 3)
	u.Row(got, 0)
	require.Equal(t, []float32{-0.989168, -0.09983256, 0.65391827}, got)
	u.Elements(got, 5)
	require.Equal(t, []float32{-0.3795747, 0.3353685, -0.6778283}, got)
	n.Row(got, math.MaxUint64)
	require.InDeltaSlice(t, []float32{2.83829, 0.7520664, 2.4779387}, got, 1e-6)
}

func TestInitialValuesDependOnSeedNameAndPlaceOnly(t *testing.T) {
	t.Parallel()
	in := job.Initializer{Kind: job.InitUniform, Max: 1}
	value := func(seed uint64, name string, key uint64) float32 {
		v := []float32{0}
		r := initialOf(t, in, seed, name)
		r.Row(v, key)
		return v[0]
	}
	base := value(1, "a", 0)
	require.Equal(t, base, value(1, "a", 0))
	require.NotEqual(t, base, value(2, "a", 0))
	require.NotEqual(t, base, value(1, "b", 0))
	require.NotEqual(t, base, value(1, "a", 1))

	// A dense parameter may be filled from anywhere.
	r := initialOf(t, job.Initializer{Kind: job.InitNormal, Stddev: 1}, 1, "a")
	whole, part := make([]float32, 100), make([]float32, 30)
	r.Elements(whole, 0)
	r.Elements(part, 50)
	require.Equal(t, whole[50:80], part)
}

func TestInitialDistributions(t *testing.T) {
	t.Parallel()
	moments := func(in job.Initializer) (mean, dev, low, high float64) {
		r := initialOf(t, in, 3, "x")
		v := make([]float32, 200_000)
		r.Elements(v, 0)
		low, high = math.Inf(1), math.Inf(-1)
		for _, x := range v {
			mean += float64(x) / float64(len(v))
			low, high = min(low, float64(x)), max(high, float64(x))
		}
		for _, x := range v {
			dev += (float64(x) - mean) * (float64(x) - mean) / float64(len(v))
		}
		return mean, math.Sqrt(dev), low, high
	}
	mean, dev, low, high := moments(job.Initializer{Kind: job.InitUniform, Min: 2, Max: 4})
	require.InDelta(t, 3, mean, 0.01)
	require.InDelta(t, 2/math.Sqrt(12), dev, 0.01)
	require.GreaterOrEqual(t, low, 2.0)
	require.Less(t, high, 4.0)

	mean, dev, _, high = moments(job.Initializer{Kind: job.InitNormal, Mean: -1, Stddev: 0.5})
	require.InDelta(t, -1, mean, 0.01)
	require.InDelta(t, 0.5, dev, 0.01)
	require.Greater(t, high, 0.5, "it has tails")

	mean, dev, _, _ = moments(job.Initializer{Kind: job.InitConstant, Value: 0.25})
	require.InDelta(t, 0.25, mean, 1e-9)
	require.InDelta(t, 0, dev, 1e-9)
	mean, dev, _, _ = moments(job.Initializer{})
	require.Zero(t, mean)
	require.Zero(t, dev)
}

func TestUniformStaysBelowItsMaximum(t *testing.T) {
	t.Parallel()
	r := initialOf(t, job.Initializer{Kind: job.InitUniform, Min: 0, Max: 1}, 1, "x")
	require.Equal(t, math.Nextafter32(1, 0), r.uniform(math.MaxUint64))
	require.Equal(t, float32(0), r.uniform(0))
	same := initialOf(t, job.Initializer{Kind: job.InitUniform, Min: 3, Max: 3}, 1, "x")
	require.Equal(t, float32(3), same.uniform(5))
}
