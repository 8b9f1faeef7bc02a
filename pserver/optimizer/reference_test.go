package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// settings are what the tests go over: each rule, alone and with everything
// that it takes.
var settings = map[string]job.OptimizerSettings{
	"sgd":                  {Type: "sgd", LearningRate: 0.3},
	"sgd, l1, l2":          {Type: "sgd", LearningRate: 0.3, L1: 0.01, L2: 0.05},
	"sgd, clipped":         {Type: "sgd", LearningRate: 0.3, ClipValue: 0.2},
	"momentum":             {Type: "momentum", LearningRate: 0.1, Momentum: 0.9},
	"momentum, l2":         {Type: "momentum", LearningRate: 0.1, Momentum: 0.5, L2: 0.1, ClipValue: 0.3},
	"nesterov":             {Type: "nesterov", LearningRate: 0.1, Momentum: 0.9},
	"nesterov, l2":         {Type: "nesterov", LearningRate: 0.1, Momentum: 0.5, L2: 0.1, ClipValue: 0.3},
	"adagrad":              {Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10},
	"adagrad, accumulator": {Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-3, InitialAccumulator: 0.1},
	"adagrad, no epsilon":  {Type: "adagrad", LearningRate: 0.1},
	"adagrad, l1, l2":      {Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10, InitialAccumulator: 1, L1: 0.1, L2: 0.2, ClipValue: 1},
	"adam":                 {Type: "adam", LearningRate: 0.01, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999},
	"adam, l2":             {Type: "adam", LearningRate: 0.01, Epsilon: 1e-4, Beta1: 0.5, Beta2: 0.9, L2: 0.1, ClipValue: 1},
	"ftrl":                 {Type: "ftrl", LearningRate: 0.1, Beta: 1},
	"ftrl, l1, l2":         {Type: "ftrl", LearningRate: 0.5, Beta: 0.3, L1: 0.4, L2: 0.2, ClipValue: 2},
}

// reference is one weight under a rule, in float64, straight from the formulas
// of docs/pserver.md.
type reference struct {
	s       job.OptimizerSettings
	w       float64
	a, b, t float64 // what the rule remembers
}

func newReference(s job.OptimizerSettings, w float64) *reference {
	r := &reference{s: s, w: w}
	switch s.Type {
	case "adagrad":
		r.a = s.InitialAccumulator
	case "ftrl":
		if w != 0 {
			r.a = -w*(s.Beta/s.LearningRate+s.L2) - math.Copysign(s.L1, w)
		}
	}
	return r
}

func soft(x, by float64) float64 {
	return math.Copysign(math.Max(math.Abs(x)-by, 0), x)
}

// step updates by the mean gradient g, under a rate.
func (r *reference) step(g, rate float64) {
	s := r.s
	if s.ClipValue > 0 {
		g = math.Max(-s.ClipValue, math.Min(s.ClipValue, g))
	}
	if s.Type != "ftrl" {
		g += s.L2 * r.w
	}
	switch s.Type {
	case "sgd":
		r.w = soft(r.w-rate*g, rate*s.L1)
	case "momentum":
		r.a = s.Momentum*r.a + g
		r.w -= rate * r.a
	case "nesterov":
		r.a = s.Momentum*r.a + g
		r.w -= rate * (g + s.Momentum*r.a)
	case "adagrad":
		r.a += g * g
		if root := math.Sqrt(r.a) + s.Epsilon; root != 0 {
			r.w = soft(r.w-rate*g/root, rate*s.L1/root)
		}
	case "adam":
		r.t++
		r.a = s.Beta1*r.a + (1-s.Beta1)*g
		r.b = s.Beta2*r.b + (1-s.Beta2)*g*g
		m, v := r.a/(1-math.Pow(s.Beta1, r.t)), r.b/(1-math.Pow(s.Beta2, r.t))
		r.w -= rate * m / (math.Sqrt(v) + s.Epsilon)
	case "ftrl":
		sigma := (math.Sqrt(r.b+g*g) - math.Sqrt(r.b)) / s.LearningRate
		r.a += g - sigma*r.w
		r.b += g * g
		r.w = 0
		if math.Abs(r.a) > s.L1 {
			r.w = -(r.a - math.Copysign(s.L1, r.a)) / ((s.Beta+math.Sqrt(r.b))/s.LearningRate + s.L2)
		}
	}
}

func (r *reference) near(t *testing.T, w float32, what string) {
	t.Helper()
	require.InDelta(t, r.w, w, 3e-5*math.Max(1, math.Abs(r.w)), what)
}

func TestDenseAgainstReference(t *testing.T) {
	t.Parallel()
	for name, s := range settings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, steps, divisor = 37, 200, 64
			o, rng := make1(t, s), rand.New(rand.NewPCG(1, 2))
			w, state := make([]float32, n), make([]float32, o.Words(n))
			ref := make([]*reference, n)
			for i := range ref {
				if i%3 > 0 {
					w[i] = float32(rng.NormFloat64())
				}
				ref[i] = newReference(s, float64(w[i]))
			}
			o.Init(w, state)
			for k := range steps {
				g := gradients(rng, n)
				step := at(s, 1.0/divisor)
				if s.Type != "ftrl" { // as under a schedule
					step.Rate *= 1 - float32(k)/steps
				}
				require.Equal(t, -1, o.Dense(w, state, g, step))
				for i := range ref {
					ref[i].step(float64(g[i])/divisor, float64(step.Rate))
				}
			}
			for i := range ref {
				ref[i].near(t, w[i], fmt.Sprint("element ", i))
			}
		})
	}
}

// Rows that come now and then: each is a problem of its own, with its own time.
func TestRowsAgainstReference(t *testing.T) {
	t.Parallel()
	for name, s := range settings {
		for _, dim := range []int{1, 3} {
			t.Run(fmt.Sprint(name, ", dim ", dim), func(t *testing.T) {
				t.Parallel()
				const n, steps, divisor = 23, 300, 64
				o, rng := make1(t, s), rand.New(rand.NewPCG(4, 2))
				table := NewRows(dim, o.Words(dim))
				ref := make([]*reference, n*dim)
				for i := range n {
					_, words := table.Add(uint64(i))
					for k := range dim {
						if i%3 > 0 {
							words[keyWords+k] = float32(rng.NormFloat64())
						}
						ref[i*dim+k] = newReference(s, float64(words[keyWords+k]))
					}
					o.Init(table.Weights(words), table.State(words))
				}
				for range steps {
					var rows []uint32
					for i := range uint32(n) {
						if rng.IntN(int(i)+1) == 0 { // the first often, the last seldom
							rows = append(rows, i)
						}
					}
					g := gradients(rng, len(rows)*dim)
					require.Equal(t, -1, o.Rows(&table, rows, g, at(s, 1.0/divisor)))
					for i, row := range rows {
						for k := range dim {
							ref[int(row)*dim+k].step(float64(g[i*dim+k])/divisor, s.LearningRate)
						}
					}
				}
				got, all := make([]float32, n*dim), make([]uint32, n)
				for i := range all {
					all[i] = uint32(i)
				}
				o.ReadRows(got, &table, all)
				for i := range ref {
					ref[i].near(t, got[i], fmt.Sprint("weight ", i))
				}
			})
		}
	}
}

// A new weight of ftrl is what its z says, and a push of nothing leaves it.
func TestFTRLStartsAtTheInitialValue(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ftrl", "ftrl, l1, l2"} {
		o := make1(t, settings[name])
		w := []float32{0, 0.3, -2}
		state := make([]float32, o.Words(3))
		o.Init(w, state)
		require.Equal(t, []float32{0, 0.3, -2}, w)
		require.Equal(t, -1, o.Dense(w, state, make([]float32, 3), Step{Scale: 1}))
		require.InDeltaSlice(t, []float32{0, 0.3, -2}, w, 1e-6)
	}
}

// l1 makes zeros, and small gradients do not move them.
func TestL1MakesZeros(t *testing.T) {
	t.Parallel()
	for _, s := range []job.OptimizerSettings{
		{Type: "sgd", LearningRate: 0.1, L1: 0.5},
		{Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10, InitialAccumulator: 1, L1: 0.5},
	} {
		o := make1(t, s)
		w, state := []float32{0.5, -0.5, 0}, make([]float32, o.Words(3))
		o.Init(w, state)
		for i := range 200 {
			g := float32(0.1)
			if i%2 == 0 {
				g = -g
			}
			require.Equal(t, -1, o.Dense(w, state, []float32{g + 0.05*w[0], g + 0.05*w[1], g}, at(s, 1)))
		}
		require.Equal(t, []float32{0, 0, 0}, w, s.Type)
	}
	s := job.OptimizerSettings{Type: "ftrl", LearningRate: 0.1, Beta: 1, L1: 1}
	o := make1(t, s)
	w, state := []float32{0, 0}, make([]float32, o.Words(2))
	o.Init(w, state)
	require.Equal(t, -1, o.Dense(w, state, []float32{0.9, 1.1}, at(s, 1)))
	require.Equal(t, float32(0), w[0])
	require.Negative(t, w[1])
}

// The correction of adam's means: exact powers for small counts, 0 for large
// ones, and the count does not overflow.
func TestAdamCounts(t *testing.T) {
	t.Parallel()
	p := powersOf(0.999)
	for _, n := range []uint32{1, 2, 3, 100, 12345, 1 << 20, math.MaxUint32} {
		require.InEpsilon(t, 1+math.Pow(0.999, float64(n)), 1+p.to(n), 1e-13)
	}
	o := make1(t, settings["adam"])
	w, state := []float32{0, 0}, make([]float32, o.Words(2))
	require.Len(t, state, 5)
	for range 3 {
		require.Equal(t, -1, o.Dense(w, state, []float32{1, -1}, at(settings["adam"], 1)))
	}
	require.Equal(t, uint32(3), math.Float32bits(state[4]))
	require.InDeltaSlice(t, []float32{-0.03, 0.03}, w, 1e-7) // a constant gradient moves by the rate
	state[4] = math.Float32frombits(math.MaxUint32)
	require.Equal(t, -1, o.Dense(w, state, []float32{1, -1}, at(settings["adam"], 1)))
	require.Equal(t, uint32(math.MaxUint32), math.Float32bits(state[4]))
}

func TestClipped(t *testing.T) {
	t.Parallel()
	g := []float32{3, -4, 0}
	require.InDelta(t, 25, Squares(g), 0)
	s := Step{Scale: 0.5, Rate: 9}
	require.Equal(t, s, s.Clipped(0, Squares(g)))
	require.Equal(t, s, s.Clipped(2.5, Squares(g)), "just within")
	require.Equal(t, Step{Scale: 0.2, Rate: 9}, s.Clipped(1, Squares(g)))
	require.Equal(t, s, s.Clipped(1, 0))
	huge := []float32{math.MaxFloat32, math.MaxFloat32}
	small := Step{Scale: 1}.Clipped(1, Squares(huge))
	require.InEpsilon(t, 1/math.Sqrt2, float64(small.Scale)*math.MaxFloat32, 1e-3)
}
