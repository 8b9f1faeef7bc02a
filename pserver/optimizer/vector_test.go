package optimizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// patterns are the bits of some words: what == says of them is not enough, of
// zeros and NaN.
func patterns(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i := range x {
		b[i] = math.Float32bits(x[i])
	}
	return b
}

// odd is a number of a kind that arithmetic may treat in its own way: denormal,
// zero of either sign, or very large.
func odd(rng *rand.Rand) float32 {
	switch rng.IntN(8) {
	case 0:
		return 0
	case 1:
		return float32(math.Copysign(0, -1))
	case 2:
		return math.Float32frombits(rng.Uint32()&(1<<31) | rng.Uint32N(1<<23))
	case 3:
		return float32(rng.NormFloat64() * 1e-22) // whose square is denormal
	}
	return float32(rng.NormFloat64())
}

// twin is Dense without the vector unit.
func twin(o Optimizer, w, state, grad []float32, step Step) int {
	switch o := o.(type) {
	case sgd:
		return o.plain(w, grad, step, 0)
	case adagrad:
		return o.plain(w, state, grad, step, 0)
	case *adam:
		n := len(w)
		c := o.begin(&state[2*n], step)
		return o.plain(w, state[:n], state[n:2*n], grad, &c, 0)
	}
	panic(fmt.Sprintf("%T has no vectors", o))
}

// With vectors and without, an update gives the same bits, also where it ends in
// what is not finite, and says the same of it.
func TestVectorsAreThePlainLoop(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]job.OptimizerSettings{
		"sgd":                    {Type: job.OptimizerSGD, LearningRate: 0.3},
		"sgd, l2, clipped":       {Type: job.OptimizerSGD, LearningRate: 0.3, L2: 0.01, ClipValue: 0.5},
		"sgd, l1":                {Type: job.OptimizerSGD, LearningRate: 0.3, L1: 0.01},
		"adagrad":                {Type: job.OptimizerAdagrad, LearningRate: 0.1, Epsilon: 1e-10},
		"adagrad, l2, clipped":   {Type: job.OptimizerAdagrad, LearningRate: 0.1, L2: 0.01, ClipValue: 0.5, InitialAccumulator: 0.1},
		"adagrad, no ε":          {Type: job.OptimizerAdagrad, LearningRate: 0.1},
		"adagrad, l1":            {Type: job.OptimizerAdagrad, LearningRate: 0.1, L1: 0.01, Epsilon: 1e-10},
		"adam":                   {Type: job.OptimizerAdam, LearningRate: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
		"adam, no ε, l2":         {Type: job.OptimizerAdam, LearningRate: 0.01, Beta1: 0.9, Beta2: 0.999, L2: 0.1},
		"adam, clipped, β2 near": {Type: job.OptimizerAdam, LearningRate: 0.01, Beta1: 0.5, Beta2: 0.6, Epsilon: 1e-3, ClipValue: 0.1},
	} {
		o, rng := make1(t, s), rand.New(rand.NewPCG(5, 6))
		for n := range 70 {
			words := n + o.Words(n)
			memory := make([]float32, words+1)
			mine := memory[n%2 : n%2+words] // not always aligned
			for i := range n {
				mine[i] = odd(rng)
			}
			o.Init(mine[:n], mine[n:])
			plain := slices.Clone(mine)
			for round := range 4 {
				g := make([]float32, n)
				for i := range g {
					g[i] = odd(rng)
				}
				if round == 3 && n > 0 { // the gradient overflows, or its square alone
					for range 1 + rng.IntN(2) {
						g[rng.IntN(n)] = []float32{math.MaxFloat32, 1e25}[rng.IntN(2)]
					}
				}
				step := Step{Scale: 4, Rate: float32(s.LearningRate)}
				want := twin(o, plain[:n], plain[n:], g, step)
				require.Equal(t, want, o.Dense(mine[:n], mine[n:], g, step), "%s, n %d, round %d", name, n, round)
				require.Equal(t, patterns(plain), patterns(mine), "%s, n %d, round %d", name, n, round)
			}
		}
	}
}

// Wherever it is, what is not finite is found.
func TestCheckLooksAtEveryElement(t *testing.T) {
	t.Parallel()
	for n := range 80 {
		g := make([]float32, n)
		require.Equal(t, OK, checkFinite(g))
		for i := range g {
			for _, x := range []uint32{0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f800001} {
				g[i] = math.Float32frombits(x)
				require.Equal(t, NonFinite, checkFinite(g), "%d of %d", i, n)
			}
			g[i] = -math.MaxFloat32
		}
		require.Equal(t, OK, checkFinite(g))
	}
}
