package model

import (
	"starfish/job"
	"starfish/reader"
)

// count is the audit model: each record adds exactly 1 to the dense scalar
// `total` and, for each of its values, 1 to that key's row of the sparse table
// `seen`, whatever optimizer, weights and mode say. After a job `total` is
// records × passes, or something was lost or doubled.
type count struct{}

// Parameters asks for the optimizer that counts in whole numbers, exact beyond
// what a float32 holds.
func (count) Parameters(*job.Spec) ([]job.Parameter, error) {
	counter := job.OptimizerSettings{Type: job.OptimizerCount}
	return []job.Parameter{
		{Name: "total", Optimizer: counter},
		{Name: "seen", Sparse: true, Dim: 1, Optimizer: counter},
	}, nil
}

func (count) Keys(b *reader.Batch, _ int) []uint64 { return b.Keys }

func (count) Labels() reader.Labels { return reader.LabelAny }

// PushOnly: counting reads nothing.
func (count) PushOnly() bool { return true }

func (count) Gradient(s *Step) float64 {
	s.DenseGrad[0][0] += float32(s.Batch.Records())
	grad := s.Tables[0].Grad
	for _, slot := range s.Tables[0].Slots {
		grad[slot]++
	}
	return 0
}

// Predict has nothing to say.
func (count) Predict(_ *Step, out []float64) { clear(out) }

func (count) NewMetrics() Metrics { return none{} }

type none struct{}

func (none) Add(Scored)       {}
func (none) Result() []Metric { return nil }
