package optimizer

import "starfish/job"

// ftrl is FTRL-Proximal with per-coordinate rates (McMahan and others: Ad click
// prediction, a view from the trenches, KDD 2013, algorithm 1):
//
//	σ ← (√(n + g²) − √n) / α
//	z ← z + g − σ w
//	n ← n + g²
//	w ← 0                                                 where |z| ≤ l1
//	w ← −(z − sgn(z) l1) / ((β + √n) / α + l2)            elsewhere
//
// The weight follows from the state; it is kept beside it, so that reading is
// that of every other rule. z starts where the initial weight follows from it.
// √(n + g²) − √n is written as g² / (√(n + g²) + √n), which cancels nothing.
//
// The state of k weights is k words z and k words n.
type ftrl struct {
	regular
	alpha, l1 float32
	// base is the denominator times α, without √n.
	base float32
}

func newFTRL(s job.OptimizerSettings) ftrl {
	return ftrl{
		regular: regular{clip: bound(s.ClipValue)}, // l2 is not in the gradient
		alpha:   float32(s.LearningRate), l1: float32(s.L1),
		base: float32(s.Beta + float64(s.LearningRate*s.L2)),
	}
}

func (ftrl) Words(n int) int { return 2 * n }

func (o ftrl) Init(w, state []float32) {
	clear(state)
	for i, x := range w {
		z := -float32(x*o.base) / o.alpha
		switch {
		case x > 0:
			z -= o.l1
		case x < 0:
			z += o.l1
		}
		state[i] = z
	}
}

// update is the rule for one weight.
func (o *ftrl) update(w, z, n, g float32) (w1, z1, n1 float32) {
	square := float32(g * g)
	n1 = n + square
	root := sqrt(n1)
	z1 = z + g
	if sum := root + sqrt(n); sum != 0 {
		z1 -= float32(square*w) / float32(o.alpha*sum)
	}
	if beyond := shrink(z1, o.l1); beyond != 0 {
		w1 = -float32(o.alpha*beyond) / (o.base + root)
	}
	return w1, z1, n1
}

func (o ftrl) Dense(w, state, grad []float32, step Step) int {
	k, bad := len(w), -1
	z, n, grad := state[:k], state[k:2*k], grad[:k]
	for i := range w {
		g := o.gradient(grad[i], step.Scale, 0)
		x, z1, n1 := o.update(w[i], z[i], n[i], g)
		w[i], z[i], n[i] = x, z1, n1
		if (x-x)+(z1-z1)+(n1-n1) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o ftrl) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
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

// rows1 is Rows for a dim of 1, as that of adagrad.
func (o ftrl) rows1(t *Rows, rows []uint32, grad []float32, step Step) int {
	bad := -1
	blocks, shift, stride, head, mask := t.Blocks, t.Shift&31, t.Stride, t.head, uint32(1)<<t.Shift-1
	grad = grad[:len(rows)]
	for i, row := range rows {
		at := int(row&mask) * stride
		words := blocks[row>>shift][at+head : at+head+3 : at+head+3]
		g := o.gradient(grad[i], step.Scale, 0)
		x, z1, n1 := o.update(words[0], words[1], words[2], g)
		words[0], words[1], words[2] = x, z1, n1
		if (x-x)+(z1-z1)+(n1-n1) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}
