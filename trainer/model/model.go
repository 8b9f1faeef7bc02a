// Package model holds what a trainer trains: the interface that every model
// implements, also those of users, and the built-in models.
//
// A model lists its parameters once (Parameters). For each batch the trainer
// asks which rows of each sparse table the batch uses (Keys), fetches them and
// all dense parameters into a Step, and calls Gradient, which adds up the
// gradients of the batch's records. What becomes of a gradient (mean or sum,
// learning rate, optimizer) is not the model's business. The evaluation calls
// Predict on such steps and feeds Metrics.
//
// Conventions. A batch's gradient is the SUM over its records of weight ×
// gradient, its loss the sum of weight × loss; a record of weight 0 counts but
// changes nothing. A row that does not exist yet has its initial value. Of
// one model, calls of Keys never overlap with each other, nor do those of
// Gradient and Predict; but Keys is called for later batches while Gradient is
// under way, and Parameters, Labels and NewMetrics may be called at any time. A
// process may make several models of a spec. A model keeps no parameter values
// between calls.
//
// Built in are linear (least squares), logistic (binary logistic regression)
// and count (the audit model: it counts records and values).
package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"starfish/job"
	"starfish/reader"
)

// Step is one batch with the values of the parameters that it needs.
type Step struct {
	Batch *reader.Batch
	// Dense[i] is the whole value of the i-th dense parameter, DenseGrad[i] its
	// gradient, of the same length, zero before Gradient.
	Dense, DenseGrad [][]float32
	// Tables[i] is what the batch needs of the i-th sparse parameter.
	Tables []Table
}

// Table is the part of a sparse table that one batch uses.
type Table struct {
	// Dim is the number of values of a row.
	Dim int
	// Keys are the distinct keys, in no particular order.
	Keys []uint64
	// Slots[k] is the row of the k-th entry of what Model.Keys returned.
	Slots []uint32
	// Rows and their gradient Grad (zero before Gradient), row after row; their
	// length is that of Keys × Dim.
	Rows, Grad []float32
}

// Model is what a trainer trains.
type Model interface {
	// Parameters lists what the model needs. Dense and sparse parameters are
	// numbered separately, in this order.
	Parameters(spec *job.Spec) ([]job.Parameter, error)
	// Keys gives the keys of the rows of the table-th sparse parameter that the
	// batch uses, repeated ones included, usually Batch.Keys itself. It is
	// valid until the next call or the batch's reuse.
	Keys(b *reader.Batch, table int) []uint64
	// Gradient adds the sums of weight × gradient to DenseGrad and Grad, and
	// returns the sum of weight × loss.
	Gradient(s *Step) (lossSum float64)
	// Predict writes one prediction for each record to out.
	Predict(s *Step, out []float64)
	// Labels is what the model accepts as a label.
	Labels() reader.Labels
	// NewMetrics starts an evaluation.
	NewMetrics() Metrics
}

// PushOnly is implemented by models that may read no parameter values: for
// them nothing is fetched while training, and Rows and Dense are not filled.
type PushOnly interface{ PushOnly() bool }

// Baseliner is implemented by models that know the loss of predicting nothing,
// which is what they begin with: it is the measure by which a trainer tells
// that training diverges. For other models the trainer has none.
type Baseliner interface {
	// Baseline returns the sum of weight × loss of a model that knows nothing
	// of the batch's records. Calls never overlap with those of Gradient.
	Baseline(b *reader.Batch) (lossSum float64)
}

var (
	// ErrUnknown: no built-in model has this name.
	ErrUnknown = errors.New("unknown model")
	// ErrSettings: the model has no such settings.
	ErrSettings = errors.New("wrong settings of the model")
)

// Names lists the built-in models.
func Names() []string { return []string{Count, Linear, Logistic} }

// The names of the built-in models.
const (
	Count    = "count"
	Linear   = "linear"
	Logistic = "logistic"
)

// New makes the built-in model that a spec names.
func New(spec *job.Spec) (Model, error) {
	if len(spec.Model.Options) > 0 && slices.Contains(Names(), spec.Model.Type) {
		return nil, fmt.Errorf("model.options: %s has none: %w", spec.Model.Type, ErrSettings)
	}
	switch spec.Model.Type {
	case Count:
		return count{}, nil
	case Linear:
		return linear{}, nil
	case Logistic:
		return logistic{}, nil
	default:
		return nil, fmt.Errorf("model.type: %q is not one of %s: %w",
			spec.Model.Type, strings.Join(Names(), ", "), ErrUnknown)
	}
}
