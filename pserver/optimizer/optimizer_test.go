package optimizer

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

func make1(t testing.TB, s job.OptimizerSettings) Optimizer {
	t.Helper()
	o, err := New(s)
	require.NoError(t, err)
	return o
}

// at is the step with the settings' own rate.
func at(s job.OptimizerSettings, scale float32) Step {
	return Step{Scale: scale, Rate: float32(s.LearningRate)}
}

func gradients(rng *rand.Rand, n int) []float32 {
	g := make([]float32, n)
	for i := range g {
		switch rng.IntN(5) {
		case 0: // stays 0
		case 1:
			g[i] = float32(rng.NormFloat64() * 1e-4)
		default:
			g[i] = float32(rng.NormFloat64() * 30)
		}
	}
	return g
}

// Rows must do to each row, bit by bit, what Dense does to a block of its size.
func TestRowsAreDenseRowByRow(t *testing.T) {
	t.Parallel()
	all := maps.Clone(settings)
	all["count"] = job.OptimizerSettings{Type: "count"}
	for name, s := range all {
		for _, dim := range []int{1, 2, 3, 8, 20_000} {
			o, rng := make1(t, s), rand.New(rand.NewPCG(3, uint64(dim)))
			table := NewRows(dim, o.Words(dim))
			const n = 9
			want := make([][]float32, n)
			for i := range want {
				_, words := table.Add(uint64(i))
				if name != "count" {
					for k := range dim {
						words[keyWords+k] = float32(rng.NormFloat64())
					}
				}
				o.Init(table.Weights(words), table.State(words))
				want[i] = append([]float32(nil), words[keyWords:]...)
			}
			for range 5 {
				rows := []uint32{7, 0, 3, 8}
				g := gradients(rng, len(rows)*dim)
				if name == "count" {
					for i := range g {
						g[i] = float32(rng.IntN(100))
					}
				}
				require.Equal(t, -1, o.Rows(&table, rows, g, at(s, 0.5)))
				for i, row := range rows {
					w := want[row]
					o.Dense(w[:dim], w[dim:], g[i*dim:(i+1)*dim], at(s, 0.5))
				}
			}
			for i := range want {
				require.Equal(t, want[i], table.Row(uint32(i))[keyWords:], "%s, dim %d, row %d", name, dim, i)
				require.Equal(t, uint64(i), table.Key(uint32(i)))
			}
		}
	}
}

func TestGradientOfZeroChangesNothing(t *testing.T) {
	t.Parallel()
	for name, s := range settings {
		if s.Type == job.OptimizerMomentum || s.Type == job.OptimizerNesterov || s.Type == job.OptimizerAdam ||
			s.Type != job.OptimizerFTRL && s.L1+s.L2 > 0 {
			continue // these move on by what they remember, or by the penalty
		}
		o := make1(t, s)
		w, state := []float32{1.5, -2}, make([]float32, o.Words(2))
		o.Init(w, state)
		require.Equal(t, -1, o.Dense(w, state, []float32{1, 2}, at(s, 1)))
		weights, before := slices.Clone(w), slices.Clone(state)
		require.Equal(t, -1, o.Dense(w, state, []float32{0, 0}, at(s, 1)))
		require.Equal(t, weights, w, name)
		require.Equal(t, before, state, name)
	}
	// The square underflows, and there is no ε to divide by.
	o := make1(t, settings["adagrad, no epsilon"])
	w, state := []float32{1}, []float32{0}
	require.Equal(t, -1, o.Dense(w, state, []float32{1e-30}, Step{1, 0.1}))
	require.Equal(t, []float32{1}, w)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for name, s := range settings {
		o := make1(t, s)
		require.Equal(t, OK, o.Check(nil), name)
		require.Equal(t, OK, o.Check([]float32{0, -1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32}), name)
		for _, bad := range []float32{inf, -inf, nan, math.Float32frombits(0xff800001)} {
			require.Equal(t, NonFinite, o.Check([]float32{1, bad, 1}), "%s: %v", name, bad)
		}
	}
	c := make1(t, job.OptimizerSettings{Type: "count"})
	require.Equal(t, OK, c.Check([]float32{0, 1, 1 << 24}))
	require.Equal(t, NonFinite, c.Check([]float32{nan}))
	for _, bad := range []float32{-1, 0.5, 1<<24 + 2} {
		require.Equal(t, Invalid, c.Check([]float32{1, bad}), "%v", bad)
	}
}

// An infinite or NaN weight or state word is reported, with its place.
func TestNonFiniteIsReported(t *testing.T) {
	t.Parallel()
	for _, s := range plainSettings() {
		o := make1(t, s)
		for _, dim := range []int{1, 2} {
			w, state := make([]float32, 3), make([]float32, o.Words(3))
			w[1], w[2] = -math.MaxFloat32, -math.MaxFloat32
			g := []float32{1, math.MaxFloat32, math.MaxFloat32}
			require.Equal(t, 1, o.Dense(w, state, g, Step{1, 1}), s.Type)

			table := NewRows(dim, o.Words(dim))
			for k := range uint64(4) {
				_, words := table.Add(k)
				table.Weights(words)[dim-1] = -math.MaxFloat32
			}
			g = make([]float32, 3*dim)
			g[2*dim-1], g[3*dim-1] = math.MaxFloat32, math.MaxFloat32
			require.Equal(t, 1, o.Rows(&table, []uint32{0, 2, 3}, g, Step{1, 1}), "%s, dim %d", s.Type, dim)
		}
	}
}

// plainSettings are the defaults of each type.
func plainSettings() (all []job.OptimizerSettings) {
	for _, kind := range []string{"sgd", "momentum", "nesterov", "adagrad", "adam", "ftrl"} {
		all = append(all, job.DefaultOptimizer(kind))
	}
	return all
}

// float32 stops counting at 2^24, float64 at 2^53.
func TestCountIsExact(t *testing.T) {
	t.Parallel()
	o := make1(t, job.OptimizerSettings{Type: "count"})
	table := NewRows(1, o.Words(1))
	row, _ := table.Add(5)
	want := uint64(0)
	add := func(times int, g float32) {
		for range times {
			require.Equal(t, -1, o.Rows(&table, []uint32{row}, []float32{g}, Step{0.25, 7}))
			want += uint64(g)
		}
	}
	counted := func() []uint64 {
		words := table.Row(row)
		return AppendCounts(nil, table.Weights(words), table.State(words))
	}
	add(1, 1<<24)
	add(3, 1)
	require.Equal(t, []uint64{16777219}, counted())
	add(3000, 1<<24)
	add(5, 1)
	require.Equal(t, want, counter(table.Weights(table.Row(row)), table.State(table.Row(row)), 0))
	require.Greater(t, want, uint64(math.MaxUint32))

	// From a counter whose halves are the bits of NaN.
	words := table.Row(row)
	words[keyWords], words[keyWords+1] = math.Float32frombits(0x7fa00000), math.Float32frombits(0xffb00001)
	add(2, 3)
	require.Equal(t, []uint64{18424226082008858630}, counted())
	got := []float32{0}
	o.ReadRows(got, &table, []uint32{row})
	require.Equal(t, float32(18424226082008858630), got[0])
}

// A row may come twice to an additive rule.
func TestCountIsAdditive(t *testing.T) {
	t.Parallel()
	o := make1(t, job.OptimizerSettings{Type: "count"})
	require.True(t, o.Additive())
	table := NewRows(1, o.Words(1))
	row, _ := table.Add(5)
	o.Rows(&table, []uint32{row, row}, []float32{1 << 24, 1}, Step{1, 1})
	require.Equal(t, []uint64{16777217}, AppendCounts(nil, table.Row(row)[2:3], table.Row(row)[3:4]))
	require.False(t, make1(t, settings["sgd"]).Additive())
}

func TestReadLeavesMissingRowsOut(t *testing.T) {
	t.Parallel()
	for _, s := range append(plainSettings(), job.OptimizerSettings{Type: "count"}) {
		for _, dim := range []int{1, 2} {
			o := make1(t, s)
			table := NewRows(dim, o.Words(dim))
			_, words := table.Add(1)
			o.Dense(table.Weights(words), table.State(words), make([]float32, dim), Step{1, 1})
			dst := make([]float32, 2*dim)
			for i := range dst {
				dst[i] = 9
			}
			o.ReadRows(dst, &table, []uint32{None, 0})
			require.Equal(t, float32(9), dst[dim-1])
			require.Equal(t, float32(0), dst[2*dim-1])
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]job.OptimizerSettings{
		"unknown":              {Type: "adamw"},
		"none":                 {},
		"no rate":              {Type: "sgd"},
		"negative rate":        {Type: "adagrad", LearningRate: -1},
		"rate not a number":    {Type: "sgd", LearningRate: math.NaN()},
		"rate too large":       {Type: "sgd", LearningRate: 1e39},
		"rate too small":       {Type: "sgd", LearningRate: 1e-60},
		"negative epsilon":     {Type: "adagrad", LearningRate: 1, Epsilon: -1},
		"negative accumulator": {Type: "adagrad", LearningRate: 1, InitialAccumulator: -1},
		"foreign":              {Type: "sgd", LearningRate: 1, Momentum: 0.9},
		"no momentum":          {Type: "momentum", LearningRate: 1},
		"no means":             {Type: "adam", LearningRate: 1},
		"no beta":              {Type: "ftrl", LearningRate: 1},
		"l1":                   {Type: "momentum", LearningRate: 1, Momentum: 0.9, L1: 1},
		"schedule":             {Type: "ftrl", LearningRate: 1, Beta: 1, Schedule: job.ScheduleSettings{Warmup: 3}},
	} {
		_, err := New(s)
		require.ErrorIs(t, err, ErrSettings, name)
	}
}

func TestRowsMemory(t *testing.T) {
	t.Parallel()
	table := NewRows(1, 1)
	require.Equal(t, 4096, 1<<table.Shift)
	for k := range uint64(5000) {
		row, words := table.Add(^k)
		require.Equal(t, uint32(k), row)
		require.Len(t, words, 4)
	}
	require.Len(t, table.Blocks, 2)
	some := table.Append(nil, 4000, 300) // over the edge of a block
	require.Len(t, some, 4*300)
	for i := range uint64(300) {
		require.Equal(t, ^(4000 + i), KeyOf(some[4*i:]))
	}
	require.Equal(t, ^uint64(4999), table.Key(4999))
	large := NewRows(100_000, 100_000)
	require.Equal(t, 1, 1<<large.Shift)
	large.Add(3)
	require.Len(t, large.Append(nil, 0, 1), 200_002)
}

func BenchmarkRows(b *testing.B) {
	for _, s := range plainSettings() {
		b.Run(s.Type, func(b *testing.B) {
			o := make1(b, s)
			table := NewRows(1, o.Words(1))
			rows, g := make([]uint32, 3000), make([]float32, 3000)
			for i := range rows {
				rows[i], _ = table.Add(uint64(i))
				g[i] = float32(i%7) - 3
			}
			for b.Loop() {
				o.Rows(&table, rows, g, at(s, 1.0/64))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/3000, "ns/row")
		})
	}
}

// Rows are where they were made, also when blocks come out of slabs.
func TestSlabs(t *testing.T) {
	t.Parallel()
	const n = 600_000
	r := NewRows(1, 1)
	for i := range uint64(n) {
		row, words := r.Add(i * 3)
		words[2] = float32(row)
	}
	for row := range uint32(n) {
		if r.Key(row) != uint64(row)*3 || r.Row(row)[2] != float32(row) || r.Row(row)[3] != 0 {
			require.Equal(t, uint64(row)*3, r.Key(row))
			require.Equal(t, []float32{float32(row), 0}, r.Content(r.Row(row)))
		}
	}
	require.Greater(t, len(r.Blocks), 2*slabFrom)
	require.GreaterOrEqual(t, r.Bytes(), int64(16*n))
	require.Less(t, r.Bytes(), int64(16*n+4*slabWords+4*blockWords))
}
