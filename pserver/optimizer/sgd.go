package optimizer

// sgd is plain stochastic gradient descent (Robbins and Monro, A stochastic
// approximation method, 1951):
//
//	w ← w − rate · g
type sgd struct {
	plain
	rate float32
}

func (sgd) Slots() int                 { return 0 }
func (sgd) Init([]float32)             {}
func (sgd) Check(grad []float32) Fault { return checkFinite(grad) }

func (o sgd) Dense(w, _, grad []float32, scale float32) int {
	bad := -1
	grad = grad[:len(w)]
	for i := range w {
		x := w[i] - float32(o.rate*float32(grad[i]*scale))
		w[i] = x
		if x-x != 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}

func (o sgd) Rows(t *Rows, rows []uint32, grad []float32, scale float32) int {
	bad := -1
	dim := t.Dim
	for i, row := range rows {
		w := t.Weights(t.Row(row))
		if o.Dense(w, nil, grad[i*dim:(i+1)*dim], scale) >= 0 && bad < 0 {
			bad = i
		}
	}
	return bad
}
