package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func randomMatrix(rng *rand.Rand, rows, cols int) Matrix {
	m := Matrix{Rows: rows, Cols: cols, Stride: cols + rng.IntN(3)}
	m.Data = make([]float32, rows*m.Stride)
	for i := range m.Data {
		m.Data[i] = float32(rng.NormFloat64())
	}
	return m
}

func (m *Matrix) at(i, j int) float64 {
	if m.Transposed {
		i, j = j, i
	}
	return float64(m.Data[i*m.Stride+j])
}

// with runs f for each of the innermost loops that this processor has.
func with(t *testing.T, f func(t *testing.T)) {
	shapes := []tileShape{plain}
	if hasAVX2 {
		shapes = append(shapes, avx2)
	}
	if hasAVX512 {
		shapes = append(shapes, wide)
	}
	defer func(before tileShape) { shape = before }(shape)
	for _, s := range shapes {
		shape = s
		t.Run(fmt.Sprint(s), f)
	}
}

// A product is that of the definition, computed in float64, as near as the order
// of the additions allows: |error| ≤ (k + 3) ε Σ |a b|. What lies between the rows
// of c stays as it is.
func TestMul(t *testing.T) {
	with(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		var x Multiplier
		sizes := []int{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 65}
		for range 300 {
			m, n, k := sizes[rng.IntN(len(sizes))], sizes[rng.IntN(len(sizes))], sizes[rng.IntN(len(sizes))]
			checkMul(t, &x, rng, m, n, k, rng.IntN(4))
		}
		checkMul(t, &x, rng, 3, 5, 2*depth+1, 0)
		checkMul(t, &x, rng, height+9, 3, 4, 1)
		checkMul(t, &x, rng, 2, 3, depth, 2)
	})
}

func checkMul(t *testing.T, x *Multiplier, rng *rand.Rand, m, n, k, transposed int) {
	t.Helper()
	a, b, c := randomMatrix(rng, m, k), randomMatrix(rng, k, n), randomMatrix(rng, m, n)
	if transposed&1 != 0 {
		a = randomMatrix(rng, k, m).T()
	}
	if transposed&2 != 0 {
		b = randomMatrix(rng, n, k).T()
	}
	alpha := float32(rng.NormFloat64())
	before := append([]float32(nil), c.Data...)
	x.Mul(c, alpha, a, b)
	for i := range m {
		for j := range c.Stride {
			at := i*c.Stride + j
			if j >= n {
				require.Equal(t, before[at], c.Data[at], "between the rows")
				continue
			}
			want, size := float64(before[at]), math.Abs(float64(before[at]))
			for p := range k {
				product := float64(alpha) * a.at(i, p) * b.at(p, j)
				want, size = want+product, size+math.Abs(product)
			}
			require.InDelta(t, want, c.Data[at], float64(k+3)*0x1p-24*size, "%d × %d × %d, transposed %d, element %d, %d", m, k, n, transposed, i, j)
		}
	}
}

// Numbers whose products and sums are exact come out exact, whatever the order.
func TestMulOfWholeNumbers(t *testing.T) {
	with(t, func(t *testing.T) {
		const n = 70
		a, b, c := Dense(n, n, make([]float32, n*n)), Dense(n, n, make([]float32, n*n)), Dense(n, n, make([]float32, n*n))
		rng := rand.New(rand.NewPCG(3, 4))
		for i := range a.Data {
			a.Data[i], b.Data[i] = float32(rng.IntN(64)-32), float32(rng.IntN(64)-32)
		}
		var x Multiplier
		x.Mul(c, 2, a, b.T())
		for i := range n {
			for j := range n {
				sum := 0.0
				for p := range n {
					sum += 2 * a.at(i, p) * b.at(j, p)
				}
				require.Equal(t, float32(sum), c.Data[i*n+j])
			}
		}
	})
}

func TestMulOfNothing(t *testing.T) {
	var x Multiplier
	c := Dense(2, 2, []float32{1, 2, 3, 4})
	x.Mul(c, 1, Dense(2, 0, nil), Dense(0, 2, nil))
	require.Equal(t, []float32{1, 2, 3, 4}, c.Data)
	x.Mul(Dense(0, 2, nil), 1, Dense(0, 2, nil), Dense(2, 2, c.Data))
	x.Mul(Dense(2, 0, nil), 1, Dense(2, 2, c.Data), Dense(2, 0, nil))
}

func TestMulRefusesWhatDoesNotFit(t *testing.T) {
	var x Multiplier
	d := make([]float32, 12)
	for name, f := range map[string]func(){
		"inner":      func() { x.Mul(Dense(3, 3, d), 1, Dense(3, 4, d), Dense(3, 3, d)) },
		"outer":      func() { x.Mul(Dense(3, 3, d), 1, Dense(2, 4, d), Dense(4, 3, d)) },
		"short":      func() { x.Mul(Dense(3, 4, d[:11]), 1, Dense(3, 4, d), Dense(4, 4, make([]float32, 16))) },
		"short a":    func() { x.Mul(Dense(3, 4, d), 1, Dense(3, 4, d[:11]), Dense(4, 4, make([]float32, 16))) },
		"stride":     func() { x.Mul(Matrix{Rows: 3, Cols: 4, Stride: 3, Data: d}, 1, Dense(3, 1, d), Dense(1, 4, d)) },
		"transposed": func() { x.Mul(Dense(3, 4, d).T(), 1, Dense(3, 1, d), Dense(1, 4, d)) },
	} {
		require.Panics(t, f, name)
	}
}

// In steady state nothing is allocated.
func TestMulAllocatesNothing(t *testing.T) {
	n := 50
	c := Dense(n, n, make([]float32, n*n))
	var x Multiplier
	require.Zero(t, testing.AllocsPerRun(5, func() { x.Mul(c, 1, c, c) }))
}
