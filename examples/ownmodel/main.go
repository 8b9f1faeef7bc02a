// Command ownmodel is a trainer with a model of its own: Poisson regression,
// for labels that are counts (how often somebody visits in a week). It shows
// all that a model of one's own needs; the pservers need nothing.
//
//	go build -o bin/ownmodel ./examples/ownmodel
//	bin/starfish run -f examples/ownmodel/visits.yaml --trainer-binary bin/ownmodel
//
// What `--export` has written predict.LoadWith(file, newPoisson) loads into a Go
// program; run_test.go shows how.
package main

import (
	"math"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer"
	"starfish/trainer/model"
)

func main() {
	trainer.Main(map[string]trainer.Builder{"poisson": newPoisson})
}

func newPoisson(*job.Spec) (model.Model, error) { return poisson{}, nil }

// poisson expects exp(bias + Σ weights[key]·value) visits. The loss is the
// negative log-likelihood without the term that does not depend on the model:
// exp(z) − y·z. See McCullagh and Nelder, Generalized Linear Models, 1989.
type poisson struct{}

// Parameters are what the pservers hold. Initial values, optimizer and
// reduction that a parameter leaves open are those of the spec.
func (poisson) Parameters(*job.Spec) ([]job.Parameter, error) {
	return []job.Parameter{
		{Name: "bias"},                          // dense, one value
		{Name: "weights", Sparse: true, Dim: 1}, // a row of one value under each key
	}, nil
}

// Keys are the rows of table 0 that a batch needs: one for each value.
func (poisson) Keys(b *reader.Batch, _ int) []uint64 { return b.Keys }

// Labels may be any finite number; a negative count is the data's fault, not
// this example's.
func (poisson) Labels() reader.Labels { return reader.LabelReal }

func (m poisson) score(s *model.Step, i int) float64 {
	z := float64(s.Dense[0][0])
	table := &s.Tables[0]
	for k := s.Batch.Offsets[i]; k < s.Batch.Offsets[i+1]; k++ {
		z += float64(table.Rows[table.Slots[k]]) * float64(s.Batch.Values[k])
	}
	return z
}

// Gradient adds the sums over the records, by weight; the pservers divide them
// by the batch size.
func (m poisson) Gradient(s *model.Step) (loss float64) {
	table := &s.Tables[0]
	for i := range s.Batch.Records() {
		z, y := m.score(s, i), float64(s.Batch.Labels[i])
		mean, weight := math.Exp(z), s.Batch.Weight(i)
		loss += float64(weight) * (mean - y*z)
		d := weight * float32(mean-y)
		s.DenseGrad[0][0] += d
		for k := s.Batch.Offsets[i]; k < s.Batch.Offsets[i+1]; k++ {
			table.Grad[table.Slots[k]] += d * s.Batch.Values[k]
		}
	}
	return loss
}

// Predict is the expected number of visits.
func (m poisson) Predict(s *model.Step, out []float64) {
	for i := range s.Batch.Records() {
		out[i] = math.Exp(m.score(s, i))
	}
}

// NewMetrics begins an evaluation.
func (poisson) NewMetrics() model.Metrics { return &deviance{} }

// deviance is the mean deviance of the predictions: 0 is perfect.
type deviance struct{ sum, n float64 }

func (d *deviance) Add(r model.Scored) {
	label, weight := float64(r.Label), float64(r.Weight)
	t := r.Prediction - label
	if label > 0 {
		t += label * math.Log(label/r.Prediction)
	}
	d.sum += 2 * weight * t
	d.n += weight
}

func (d *deviance) Result() []model.Metric {
	if d.n == 0 {
		return []model.Metric{{Name: "deviance", Reason: "there is no test record"}}
	}
	mean := d.sum / d.n
	return []model.Metric{{Name: "deviance", Value: &mean}}
}
