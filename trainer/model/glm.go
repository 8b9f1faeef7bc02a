package model

import (
	"math"

	"starfish/job"
	"starfish/reader"
)

// glm is what linear and logistic share: the score bias + Σ weights[key]·value,
// over a dense scalar `bias` and a sparse table `weights` of single values,
// all zero at the start.
type glm struct{}

func (glm) Parameters(*job.Spec) ([]job.Parameter, error) {
	return []job.Parameter{{Name: "bias"}, {Name: "weights", Sparse: true, Dim: 1}}, nil
}

func (glm) Keys(b *reader.Batch, _ int) []uint64 { return b.Keys }

// score of record i. A key that occurs more than once adds up.
func score(s *Step, i int) float32 {
	from, to := s.Batch.Offsets[i], s.Batch.Offsets[i+1]
	rows, slots := s.Tables[0].Rows, s.Tables[0].Slots[from:to]
	values := s.Batch.Values[from:to][:len(slots)]
	z := s.Dense[0][0]
	for k, slot := range slots {
		z += rows[slot] * values[k]
	}
	return z
}

// spread adds g, the loss's derivative by the score of record i, to the
// gradient of every weight that took part.
func spread(s *Step, i int, g float32) {
	from, to := s.Batch.Offsets[i], s.Batch.Offsets[i+1]
	grad, slots := s.Tables[0].Grad, s.Tables[0].Slots[from:to]
	values := s.Batch.Values[from:to][:len(slots)]
	for k, slot := range slots {
		grad[slot] += g * values[k]
	}
}

// linear is least squares: the gradient is that of ½(ŷ−y)², the reported loss
// (ŷ−y)².
type linear struct{ glm }

func (linear) Labels() reader.Labels { return reader.LabelReal }

func (linear) Gradient(s *Step) (lossSum float64) {
	var bias float64
	for i := range s.Batch.Records() {
		w := float64(s.Batch.Weight(i))
		if w == 0 {
			continue
		}
		d := float64(score(s, i)) - float64(s.Batch.Labels[i])
		lossSum += w * d * d
		bias += w * d
		spread(s, i, float32(w*d))
	}
	s.DenseGrad[0][0] += float32(bias)
	return lossSum
}

// Baseline is the loss of predicting 0.
func (linear) Baseline(b *reader.Batch) (lossSum float64) {
	for i := range b.Records() {
		y := float64(b.Labels[i])
		lossSum += float64(b.Weight(i)) * y * y
	}
	return lossSum
}

func (linear) Predict(s *Step, out []float64) {
	for i := range s.Batch.Records() {
		out[i] = float64(score(s, i))
	}
}

func (linear) NewMetrics() Metrics { return new(squared) }

// logistic is binary logistic regression with labels 0 and 1; the loss is the
// negative natural logarithm of the label's probability, clipped.
type logistic struct{ glm }

func (logistic) Labels() reader.Labels { return reader.LabelBinary }

// Gradient takes the logarithm of the product of many probabilities, which costs
// less than the logarithm of each.
func (logistic) Gradient(s *Step) (lossSum float64) {
	const small = 1e-200 // so that no product with a clipped probability is 0
	var bias float64
	product := 1.0
	for i := range s.Batch.Records() {
		w := float64(s.Batch.Weight(i))
		if w == 0 {
			continue
		}
		one, zero := probabilities(float64(score(s, i)))
		g, right := one, zero // the label is 0
		if s.Batch.Labels[i] > 0 {
			g, right = -zero, one
		}
		if right = clip(right); w != 1 {
			lossSum -= w * math.Log(right)
		} else if product *= right; product < small {
			lossSum -= math.Log(product)
			product = 1
		}
		bias += w * g
		spread(s, i, float32(w*g))
	}
	s.DenseGrad[0][0] += float32(bias)
	return lossSum - math.Log(product)
}

// Baseline is the loss of predicting ½.
func (logistic) Baseline(b *reader.Batch) (lossSum float64) { return b.WeightSum() * math.Ln2 }

func (logistic) Predict(s *Step, out []float64) {
	for i := range s.Batch.Records() {
		out[i], _ = probabilities(float64(score(s, i)))
	}
}

func (logistic) NewMetrics() Metrics { return new(binary) }

// probabilities of 1 and of 0 for a score, each to full precision.
func probabilities(z float64) (one, zero float64) {
	e := math.Exp(-math.Abs(z))
	large, small := 1/(1+e), e/(1+e)
	if z < 0 {
		return small, large
	}
	return large, small // NaN stays NaN
}

// clip keeps a probability away from 0 and 1, so that its logarithm is finite.
func clip(p float64) float64 {
	const least = 1e-15
	if p != p { // NaN says that training diverged; it must not be hidden
		return p
	}
	return min(max(p, least), 1-least)
}
