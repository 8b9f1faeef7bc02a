package optimizer

import (
	"math"

	"starfish/internal/kernel"
)

// adagrad is the diagonal AdaGrad (Duchi, Hazan, Singer: Adaptive subgradient
// methods for online learning and stochastic optimization, JMLR 12, 2011), with
// ε outside the root:
//
//	a ← a + g²
//	w ← w − rate · g / (√a + ε)
//
// a starts at the initial accumulator, 0 by default. Where √a + ε is zero there
// is no step: the gradient was zero, or its square underflows and ε is zero.
//
// With l1 the result is shrunk by rate · l1 / (√a + ε), the composite mirror
// descent of the paper's section 5.
type adagrad struct {
	regular
	l1, epsilon, start float32
}

func (adagrad) Words(n int) int { return n }

func (o adagrad) Init(_, state []float32) {
	for i := range state {
		state[i] = o.start
	}
}

func (o adagrad) Dense(w, state, grad []float32, step Step) int {
	if o.l1 != 0 {
		return o.plain(w, state, grad, step, 0)
	}
	c := o.constants(step)
	c.Epsilon = o.epsilon
	n, finite := kernel.Adagrad(w, state, grad, &c)
	return join(firstBad(finite, w[:n], state[:n]), o.plain(w, state, grad, step, n))
}

// plain updates the weights from a place on.
func (o adagrad) plain(w, state, grad []float32, step Step, from int) int {
	bad, by := -1, float32(step.Rate*o.l1)
	state, grad = state[:len(w)], grad[:len(w)]
	for i := from; i < len(w); i++ {
		g := o.gradient(grad[i], step.Scale, w[i])
		a := state[i] + float32(g*g)
		root := sqrt(a) + o.epsilon
		if root == 0 {
			continue
		}
		x := w[i] - float32(step.Rate*g)/root
		if by != 0 {
			x = shrink(x, by/root)
		}
		state[i], w[i] = a, x
		if (x-x)+(a-a) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o adagrad) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
	if t.Dim == 1 {
		return o.rows1(t, rows, grad, step)
	}
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

// rows1 is Rows for a dim of 1, the case of linear models: rows are gathered,
// updated as a block is, and put back.
func (o adagrad) rows1(t *Rows, rows []uint32, grad []float32, step Step) int {
	bad := -1
	var w, a [gathered]float32
	for first := 0; first < len(rows); first += gathered {
		n := min(gathered, len(rows)-first)
		some := rows[first : first+n]
		t.gather2(some, w[:n], a[:n])
		if i := o.Dense(w[:n], a[:n], grad[first:first+n], step); i >= 0 && bad < 0 {
			bad = first + i
		}
		t.scatter2(some, w[:n], a[:n])
	}
	return bad
}

// sqrt compiles to the single-precision instruction.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
