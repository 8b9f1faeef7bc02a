// Package optimizer holds the update rules that a shard applies to its
// parameters, and the memory of sparse rows that they work on.
//
// An Optimizer is a rule with its settings. It has no state of its own and is
// safe for concurrent use: the state, Slots words for each weight, lies beside
// the weights in the shard. Its methods work on whole batches of rows or whole
// blocks, so that the loop over rows contains no call through an interface.
//
// A gradient comes as the sum over the records of a batch; scale (one over the
// parameter's divisor) makes it the mean. Arithmetic is in float32, with each
// product rounded before it is added, so that no compiler fuses the two and the
// result is the same on every CPU.
//
// Every rule has the same shape: check the gradient first (Check), apply it
// (Rows, Dense), and report the first weight or state word that has become
// non-finite.
package optimizer

import (
	"errors"
	"fmt"
	"math"

	"starfish/job"
)

// ErrUnknown: there is no optimizer of that type.
var ErrUnknown = errors.New("unknown optimizer")

// ErrSettings: a setting has an impossible value.
var ErrSettings = errors.New("impossible optimizer setting")

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

// Optimizer is one update rule.
type Optimizer interface {
	// Slots is the number of state words for each weight.
	Slots() int
	// Init fills the state of new weights; len(state) = weights × Slots.
	Init(state []float32)
	// Check looks for the first kind of fault in a gradient.
	Check(grad []float32) Fault
	// Additive tells whether updating by two gradients in turn is exactly
	// updating by their sum, so that a row may come twice.
	Additive() bool
	// Rows updates rows of a table. rows are row numbers, distinct unless the
	// rule is additive; grad has len(rows) × dim elements. It returns the index in rows of the first row
	// that became non-finite, or -1; rows before and after it are updated.
	Rows(t *Rows, rows []uint32, grad []float32, scale float32) int
	// Dense updates a block. len(grad) = len(w), len(state) = len(w) × Slots.
	// It returns the index of the first element that became non-finite, or -1.
	Dense(w, state, grad []float32, scale float32) int
	// ReadRows writes the values of rows; those numbered None are left out.
	// len(dst) = len(rows) × dim.
	ReadRows(dst []float32, t *Rows, rows []uint32)
	// ReadDense writes a block's values; len(dst) = len(w).
	ReadDense(dst, w, state []float32)
	// AppendText writes the value of weight i in full precision.
	AppendText(dst []byte, w, state []float32, i int) []byte
}

// New returns the optimizer for resolved settings.
func New(s job.OptimizerSettings) (Optimizer, error) {
	lr, eps, start := float32(s.LearningRate), float32(s.Epsilon), float32(s.InitialAccumulator)
	switch s.Type {
	case "sgd":
		return sgd{rate: lr}, positive("learning_rate", lr)
	case "adagrad":
		return adagrad{rate: lr, epsilon: eps, start: start},
			errors.Join(positive("learning_rate", lr), natural("epsilon", eps), natural("initial_accumulator", start))
	case "count":
		return count{}, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknown, s.Type)
}

func positive(name string, x float32) error {
	if x > 0 && finite(x) {
		return nil
	}
	return fmt.Errorf("%w: %s %v is not a positive float32", ErrSettings, name, x)
}

func natural(name string, x float32) error {
	if x >= 0 && finite(x) {
		return nil
	}
	return fmt.Errorf("%w: %s %v is negative or no float32", ErrSettings, name, x)
}

func finite(x float32) bool { return x-x == 0 }

const exponent = 0x7f800000

// checkFinite is the Check of rules that take any real gradient.
func checkFinite(grad []float32) Fault {
	var bad uint32
	for _, g := range grad {
		// The exponent is all ones exactly for infinities and NaN, and only then
		// does adding one to it carry into the sign's place.
		bad |= math.Float32bits(g)&exponent + 1<<23
	}
	if bad&(1<<31) != 0 {
		return NonFinite
	}
	return OK
}
