package optimizer

import "math"

// count adds the gradient to a counter of 64 bits, whatever the step: the
// audit of what has been applied. It is exact beyond 2^24, where float32 stops
// counting: the low half of a counter lies in the weight's word, the high half
// in its state word, as bit patterns. A gradient must be a natural number.
type count struct{}

func (count) Additive() bool          { return true }
func (count) Words(n int) int         { return n }
func (count) Init(_, state []float32) { clear(state) }

func (count) Check(grad []float32) Fault {
	if f := checkFinite(grad); f != OK {
		return f
	}
	for _, g := range grad {
		// Beyond 2^24 a float32 cannot tell neighbours apart: such a gradient is
		// no longer the sum that the trainer made.
		if !(g >= 0 && g <= 1<<24) || g != float32(uint32(g)) {
			return Invalid
		}
	}
	return OK
}

func counter(w, state []float32, i int) uint64 {
	return uint64(math.Float32bits(w[i])) | uint64(math.Float32bits(state[i]))<<32
}

func (count) Dense(w, state, grad []float32, _ Step) int {
	state, grad = state[:len(w)], grad[:len(w)]
	for i := range w {
		n := counter(w, state, i) + uint64(grad[i])
		w[i], state[i] = math.Float32frombits(uint32(n)), math.Float32frombits(uint32(n>>32))
	}
	return -1
}

func (o count) Rows(t *Rows, rows []uint32, grad []float32, step Step) int {
	dim := t.Dim
	for i, row := range rows {
		words := t.Row(row)
		o.Dense(t.Weights(words), t.State(words), grad[i*dim:(i+1)*dim], step)
	}
	return -1
}

func (count) ReadDense(dst, w, state []float32) {
	for i := range dst {
		dst[i] = float32(counter(w, state, i))
	}
}

func (o count) ReadRows(dst []float32, t *Rows, rows []uint32) {
	dim := t.Dim
	for i, row := range rows {
		if row != None {
			words := t.Row(row)
			o.ReadDense(dst[i*dim:(i+1)*dim], t.Weights(words), t.State(words))
		}
	}
}

// AppendCounts appends the numbers that the optimizer `count` has counted, in
// full: w and state are the words of a row, or of a block.
func AppendCounts(dst []uint64, w, state []float32) []uint64 {
	for i := range w {
		dst = append(dst, counter(w, state, i))
	}
	return dst
}
