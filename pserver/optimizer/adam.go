package optimizer

import (
	"math"
	"math/bits"

	"starfish/internal/kernel"
	"starfish/job"
)

// adam is Adam (Kingma, Ba: Adam, a method for stochastic optimization, ICLR
// 2015, algorithm 1), lazily: t counts the updates of the row (of the block, in
// a dense parameter), and a row that a push does not name stays as it is.
//
//	t ← t + 1
//	m ← m + (1 − β1) (g − m)
//	v ← v + (1 − β2) (g² − v)
//	w ← w − rate · (m / (1 − β1^t)) / (√(v / (1 − β2^t)) + ε)
//
// The means are written as one product each: so they are exact in float32 for
// a constant gradient, whatever β is rounded to. Where the denominator is zero
// there is no step.
//
// The state of n weights is n words m, n words v, and t as a bit pattern.
type adam struct {
	regular
	epsilon      float32
	take1, take2 float32 // 1 − β
	powers1      powers
	powers2      powers
}

// powers has a number's powers with the exponents 1, 2, 4, 8 …
type powers [32]float64

func powersOf(x float64) (p powers) {
	for i := range p {
		p[i] = x
		x *= x
	}
	return p
}

// to is the number to the power of n, the same on every machine.
func (p *powers) to(n uint32) float64 {
	x := 1.0
	for ; n != 0; n &= n - 1 {
		x = float64(x * p[bits.TrailingZeros32(n)&31])
	}
	return x
}

func newAdam(r regular, s job.OptimizerSettings) *adam {
	return &adam{
		regular: r, epsilon: float32(s.Epsilon),
		take1: float32(1 - s.Beta1), take2: float32(1 - s.Beta2),
		powers1: powersOf(s.Beta1), powers2: powersOf(s.Beta2),
	}
}

func (*adam) Words(n int) int         { return 2*n + 1 }
func (*adam) Init(_, state []float32) { clear(state) }

func (o *adam) Dense(w, state, grad []float32, step Step) int {
	n := len(w)
	c := o.begin(&state[2*n], step)
	m, v := state[:n], state[n:2*n]
	done, finite := kernel.Adam(w, m, v, grad, &c)
	return join(firstBad(finite, w[:done], m[:done], v[:done]), o.plain(w, m, v, grad, &c, done))
}

// begin counts an update, and returns what it is made with.
func (o *adam) begin(count *float32, step Step) kernel.Constants {
	t := math.Float32bits(*count)
	t = max(t, t+1) // stays at the largest
	*count = math.Float32frombits(t)
	c := o.constants(step)
	c.Rate = float32(float64(step.Rate) / (1 - o.powers1.to(t)))
	c.Unbias = float32(1 / (1 - o.powers2.to(t)))
	c.Epsilon, c.Take1, c.Take2 = o.epsilon, o.take1, o.take2
	return c
}

// plain updates the weights from a place on.
func (o *adam) plain(w, m, v, grad []float32, c *kernel.Constants, from int) int {
	bad, rate, unbias := -1, c.Rate, c.Unbias
	m, v, grad = m[:len(w)], v[:len(w)], grad[:len(w)]
	for i := from; i < len(w); i++ {
		g := o.gradient(grad[i], c.Scale, w[i])
		m1 := m[i] + float32(o.take1*(g-m[i]))
		v1 := v[i] + float32(o.take2*(float32(g*g)-v[i]))
		m[i], v[i] = m1, v1
		if root := sqrt(float32(v1*unbias)) + o.epsilon; root != 0 {
			w[i] -= float32(rate*m1) / root
		}
		if (w[i]-w[i])+(m1-m1)+(v1-v1) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o *adam) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
	bad := -1
	dim := t.Dim
	for i, row := range rows {
		words := t.Content(t.Row(row))
		if o.Dense(words[:dim], words[dim:], grad[i*dim:(i+1)*dim], step) >= 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}
