package optimizer

// momentum is gradient descent with a velocity (Polyak: Some methods of
// speeding up the convergence of iteration methods, 1964):
//
//	u ← keep · u + g
//	w ← w − rate · u
//
// ahead makes it Nesterov's method in the form of Sutskever, Martens, Dahl,
// Hinton (On the importance of initialization and momentum in deep learning,
// ICML 2013), written for the weights at the point ahead, where the gradient
// is taken:
//
//	w ← w − rate · (g + keep · u)
//
// The rate stands outside the velocity, so a schedule acts at once.
type momentum struct {
	regular
	keep  float32
	ahead bool
}

func (momentum) Words(n int) int         { return n }
func (momentum) Init(_, state []float32) { clear(state) }

func (o momentum) Dense(w, state, grad []float32, step Step) int {
	bad := -1
	state, grad = state[:len(w)], grad[:len(w)]
	for i := range w {
		g := o.gradient(grad[i], step.Scale, w[i])
		u := float32(o.keep*state[i]) + g
		d := u
		if o.ahead {
			d = g + float32(o.keep*u)
		}
		x := w[i] - float32(step.Rate*d)
		state[i], w[i] = u, x
		if (x-x)+(u-u) != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o momentum) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
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
