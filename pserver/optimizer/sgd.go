package optimizer

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
	bad, by := -1, float32(step.Rate*o.l1)
	grad = grad[:len(w)]
	for i := range w {
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
