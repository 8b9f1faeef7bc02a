package optimizer

import "math"

// adagrad is the diagonal AdaGrad (Duchi, Hazan, Singer: Adaptive subgradient
// methods for online learning and stochastic optimization, JMLR 12, 2011), with
// ε outside the root:
//
//	a ← a + g²
//	w ← w − rate · g / (√a + ε)
//
// a starts at the initial accumulator, 0 by default. Where √a + ε is zero there
// is no step: the gradient was zero, or its square underflows and ε is zero.
type adagrad struct {
	plain
	rate, epsilon, start float32
}

func (adagrad) Slots() int                 { return 1 }
func (adagrad) Check(grad []float32) Fault { return checkFinite(grad) }

func (o adagrad) Init(state []float32) {
	for i := range state {
		state[i] = o.start
	}
}

func (o adagrad) Dense(w, state, grad []float32, scale float32) int {
	bad := -1
	state, grad = state[:len(w)], grad[:len(w)]
	for i := range w {
		g := float32(grad[i] * scale)
		a := state[i] + float32(g*g)
		root := sqrt(a) + o.epsilon
		if root == 0 {
			continue
		}
		x := w[i] - float32(o.rate*g)/root
		state[i], w[i] = a, x
		if (x-x)+(a-a) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o adagrad) Rows(t *Rows, rows []uint32, grad []float32, scale float32) int {
	if t.Dim == 1 {
		return o.rows1(t, rows, grad, scale)
	}
	bad := -1
	dim := t.Dim
	for i, row := range rows {
		words := t.Row(row)[head:]
		if o.Dense(words[:dim], words[dim:], grad[i*dim:(i+1)*dim], scale) >= 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

// rows1 is Rows for a dim of 1, the case of linear models: the loop over rows
// is the loop over weights.
func (o adagrad) rows1(t *Rows, rows []uint32, grad []float32, scale float32) int {
	bad := -1
	blocks, shift, stride, mask := t.Blocks, t.Shift&31, t.Stride, uint32(1)<<t.Shift-1
	rate, epsilon := o.rate, o.epsilon
	grad = grad[:len(rows)]
	for i, row := range rows {
		at := int(row&mask) * stride
		words := blocks[row>>shift][at+head : at+head+2 : at+head+2]
		g := float32(grad[i] * scale)
		a := words[1] + float32(g*g)
		root := sqrt(a) + epsilon
		if root == 0 {
			continue
		}
		x := words[0] - float32(rate*g)/root
		words[0], words[1] = x, a
		if (x-x)+(a-a) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

// sqrt compiles to the single-precision instruction.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
