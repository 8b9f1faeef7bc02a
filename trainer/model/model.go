package model

import (
	"errors"

	"starfish/job"
	"starfish/reader"
)

// Step is one batch with the parameters it needs.
type Step struct {
	Batch *reader.Batch
	// Dense[i] is the whole value of the i-th dense parameter; DenseGrad[i]
	// its gradient, zero at the start.
	Dense, DenseGrad [][]float32
	// Tables[i] is what the batch needs of the i-th sparse parameter.
	Tables []Table
}

// Table is the part of a sparse table that one batch uses.
type Table struct {
	// Dim is the length of a row.
	Dim int
	// Keys are the distinct keys.
	Keys []uint64
	// Slots: for each entry of what Model.Keys returned its row.
	Slots []uint32
	// Rows and their gradient Grad (zero at the start): len(Keys) × Dim.
	Rows, Grad []float32
}

// Model is what a trainer trains.
type Model interface {
	// Parameters lists what the model needs, in the order of Step.
	Parameters(spec *job.Spec) ([]job.Parameter, error)
	// Keys gives the key of each entry of table (the i-th sparse parameter)
	// that the batch uses.
	Keys(b *reader.Batch, table int) []uint64
	// Gradient adds the sums over the records of weight × gradient and returns
	// the sum of weight × loss.
	Gradient(s *Step) (lossSum float64)
	// Predict writes one prediction for each record.
	Predict(s *Step, out []float64)
	// Labels is what the model accepts as a label.
	Labels() reader.Labels
	// NewMetrics starts an evaluation.
	NewMetrics() Metrics
}

// Metrics collects an evaluation.
type Metrics interface {
	Add(pred, label, weight float64)
	// Result gives the metrics in the order in which they are shown.
	Result() []Metric
}

// Metric is one value of an evaluation.
type Metric struct {
	Name string
	// Value is nil where the metric is undefined; Reason then says why.
	Value  *float64
	Reason string
}

// PushOnly is implemented by models that read no parameter value.
type PushOnly interface{ PushOnly() bool }

// ErrUnknown: no built-in model has this name.
var ErrUnknown = errors.New("model: unknown model")

// New makes the built-in model that the spec names.
func New(spec *job.Spec) (Model, error) { return nil, ErrUnknown }

// Names lists the built-in models.
func Names() []string { return []string{"count", "linear", "logistic"} }
