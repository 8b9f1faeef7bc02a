package optimizer

import "math"

// Squares is the sum of a gradient's squares. In float64 each square is exact,
// so it is the same on every CPU; of zeros it is zero.
func Squares(grad []float32) float64 {
	sum := 0.0
	for _, g := range grad {
		x := float64(g)
		sum += x * x
	}
	return sum
}

// Clipped is the step whose scale brings a gradient with such a sum of squares
// to at most the norm (Pascanu, Mikolov, Bengio: On the difficulty of training
// recurrent neural networks, ICML 2013). A norm of 0 is no bound.
func (s Step) Clipped(norm, squares float64) Step {
	if norm == 0 {
		return s
	}
	if have := float64(s.Scale) * math.Sqrt(squares); have > norm {
		s.Scale = float32(float64(s.Scale) * (norm / have))
	}
	return s
}
