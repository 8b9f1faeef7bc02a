package optimizer

import "starfish/internal/kernel"

// sgd is plain stochastic gradient descent (Robbins and Monro, A stochastic
// approximation method, 1951):
//
//	w ← w − rate · g
//
// With l1 the result is shrunk by rate · l1 (Duchi, Singer: Efficient online
// and batch learning using forward backward splitting, JMLR 10, 2009).
type sgd struct {
	regular
	l1 float32
}

func (sgd) Words(int) int       { return 0 }
func (sgd) Init(_, _ []float32) {}

func (o sgd) Dense(w, _, grad []float32, step Step) int {
	if o.l1 != 0 {
		return o.plain(w, grad, step, 0)
	}
	c := o.constants(step)
	n, finite := kernel.SGD(w, grad, &c)
	return join(firstBad(finite, w[:n]), o.plain(w, grad, step, n))
}

// plain updates the weights from a place on.
func (o sgd) plain(w, grad []float32, step Step, from int) int {
	bad, by := -1, float32(step.Rate*o.l1)
	grad = grad[:len(w)]
	for i := from; i < len(w); i++ {
		x := w[i] - float32(step.Rate*o.gradient(grad[i], step.Scale, w[i]))
		if by != 0 {
			x = shrink(x, by)
		}
		w[i] = x
		if x-x != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o sgd) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
	bad := -1
	dim := t.Dim
	for i, row := range rows {
		w := t.Weights(t.Row(row))
		if o.Dense(w, nil, grad[i*dim:(i+1)*dim], step) >= 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}
