// Package optimizer holds the update rules that a shard applies to its
// parameters, and the memory of sparse rows that they work on.
//
// An Optimizer is a rule with its settings. It has no state of its own and is
// safe for concurrent use: the state, Slots words for each weight, lies beside
// the weights in the shard. Its methods work on whole batches of rows or whole
// blocks, so that the loop over rows contains no call through an interface.
//
// A gradient comes as the sum over the records of a batch; Step.Scale (one over
// the parameter's divisor, less where the norm is clipped) makes it the mean.
// Then elements are clipped, then l2 times the weight is added: that is the g
// of the rules. Arithmetic is in float32, with each product rounded before it
// is added, so that no compiler fuses the two and the result is the same on
// every CPU.
//
// Every rule has the same shape: check the gradient first (Check), apply it
// (Rows, Dense), and report the first weight or state word that has become
// non-finite. A row of a table and a block of a dense parameter are the same to
// a rule: so many weights, and the words of state behind them.
package optimizer

import (
	"errors"
	"fmt"
	"math"

	"starfish/internal/kernel"
	"starfish/job"
)

// ErrSettings: there is no optimizer of that type, or a setting has an
// impossible value.
var ErrSettings = errors.New("impossible optimizer")

// Fault is what is wrong with a gradient.
type Fault uint8

const (
	// OK: nothing is wrong.
	OK Fault = iota
	// NonFinite: an infinite or NaN element. The batch is skipped.
	NonFinite
	// Invalid: a value that the rule has no meaning for. The push is refused.
	Invalid
)

// Step is what one update is made with.
type Step struct {
	// Scale makes the gradient of a sum of records.
	Scale float32
	// Rate is the learning rate of the moment; not used by ftrl and count.
	Rate float32
}

// Optimizer is one update rule.
type Optimizer interface {
	// Words is the number of state words of a row or block of n weights.
	Words(n int) int
	// Init fills the state of new weights, whose initial values are w;
	// len(state) = Words(len(w)).
	Init(w, state []float32)
	// Check looks for the first kind of fault in a gradient.
	Check(grad []float32) Fault
	// Additive tells whether updating by two gradients in turn is exactly
	// updating by their sum, so that a row may come twice.
	Additive() bool
	// Rows updates rows of a table. rows are row numbers, distinct unless the
	// rule is additive; grad has len(rows) × dim elements. It returns the index in rows of the first row
	// that became non-finite, or -1; rows before and after it are updated.
	Rows(t *Rows, rows []uint32, grad []float32, step Step) int
	// Dense updates a block. len(grad) = len(w), len(state) = Words(len(w)).
	// It returns the index of the first element that became non-finite, or -1.
	Dense(w, state, grad []float32, step Step) int
	// ReadRows writes the values of rows; those numbered None are left out.
	// len(dst) = len(rows) × dim.
	ReadRows(dst []float32, t *Rows, rows []uint32)
	// ReadDense writes a block's values; len(dst) = len(w).
	ReadDense(dst, w, state []float32)
}

// New returns the optimizer for resolved settings.
func New(s job.OptimizerSettings) (Optimizer, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	r := regular{l2: float32(s.L2), clip: bound(s.ClipValue)}
	switch s.Type {
	case job.OptimizerSGD:
		return sgd{regular: r, l1: float32(s.L1)}, nil
	case job.OptimizerMomentum, job.OptimizerNesterov:
		return momentum{regular: r, keep: float32(s.Momentum), ahead: s.Type == job.OptimizerNesterov}, nil
	case job.OptimizerAdagrad:
		return adagrad{
			regular: r, l1: float32(s.L1),
			epsilon: float32(s.Epsilon), start: float32(s.InitialAccumulator),
		}, nil
	case job.OptimizerAdam:
		return newAdam(r, s), nil
	case job.OptimizerFTRL:
		return newFTRL(s), nil
	case job.OptimizerCount:
		return count{}, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrSettings, s.Type)
}

// regular is what rules with a real gradient share.
type regular struct {
	plain
	l2, clip float32
}

// bound is the limit of an element; 0 stands for none.
func bound(x float64) float32 {
	if x == 0 {
		return float32(math.Inf(1))
	}
	return float32(x)
}

// gradient is the g of the rules.
func (r *regular) gradient(sum, scale, w float32) float32 {
	g := float32(sum * scale)
	if g > r.clip {
		g = r.clip
	}
	if g < -r.clip {
		g = -r.clip
	}
	return g + float32(r.l2*w)
}

// constants are those of the kernels.
func (r *regular) constants(step Step) kernel.Constants {
	return kernel.Constants{Scale: step.Scale, Clip: r.clip, Low: -r.clip, L2: r.l2, Rate: step.Rate}
}

// firstBad is the place of the first word that is not finite, in whichever of
// the lists, or -1 if all are.
func firstBad(finite bool, lists ...[]float32) int {
	if finite {
		return -1
	}
	for i := range lists[0] {
		for _, x := range lists {
			if x[i]-x[i] != 0 {
				return i
			}
		}
	}
	return -1
}

// join is the first of two places, or the only one that there is.
func join(first, second int) int {
	if first >= 0 {
		return first
	}
	return second
}

func (regular) Check(grad []float32) Fault { return checkFinite(grad) }

// shrink brings x nearer to 0 by the amount, and not beyond: the proximal step
// of an l1 penalty.
func shrink(x, by float32) float32 {
	switch {
	case x > by:
		return x - by
	case x < -by:
		return x + by
	}
	return x - x // 0, but NaN for NaN
}

const exponent = 0x7f800000

// checkFinite is the Check of rules that take any real gradient.
func checkFinite(grad []float32) Fault {
	n, finite := kernel.Finite(grad)
	if !finite {
		return NonFinite
	}
	var bad uint32
	for _, g := range grad[n:] {
		// The exponent is all ones exactly for infinities and NaN, and only then
		// does adding one to it carry into the sign's place.
		bad |= math.Float32bits(g)&exponent + 1<<23
	}
	if bad&(1<<31) != 0 {
		return NonFinite
	}
	return OK
}
