package model

import (
	"math"
	"slices"
)

// Metrics collects the predictions of an evaluation.
type Metrics interface {
	// Add takes one record's prediction, label and weight.
	Add(prediction, label, weight float64)
	// Result gives the metrics in the order in which they are shown.
	Result() []Metric
}

// Metric is one value of an evaluation.
type Metric struct {
	Name string
	// Value is nil where the metric does not exist; Reason then says why.
	Value  *float64
	Reason string
}

// metric makes a Metric of a quotient that may not exist.
func metric(name string, sum, weight float64) Metric {
	switch value := sum / weight; {
	case weight == 0:
		return Metric{Name: name, Reason: "no record has a weight"}
	case math.IsNaN(value) || math.IsInf(value, 0):
		return Metric{Name: name, Reason: "a prediction is not finite"}
	default:
		return Metric{Name: name, Value: &value}
	}
}

// squared has the metrics of regression: loss (the mean squared error), rmse.
type squared struct{ sum, weight float64 }

func (m *squared) Add(prediction, label, weight float64) {
	if weight == 0 {
		return
	}
	d := prediction - label
	m.sum += weight * d * d
	m.weight += weight
}

func (m *squared) Result() []Metric {
	loss := metric("loss", m.sum, m.weight)
	rmse := Metric{Name: "rmse", Reason: loss.Reason}
	if loss.Value != nil {
		root := math.Sqrt(*loss.Value)
		rmse.Value = &root
	}
	return []Metric{loss, rmse}
}

// binary has the metrics of a binary classifier: loss, auc, accuracy. It keeps
// every prediction, because the area under the curve is computed exactly.
type binary struct {
	scored               []scored
	loss, right, weights float64
}

type scored struct {
	prediction, weight float64
	positive           bool
}

func (m *binary) Add(prediction, label, weight float64) {
	if weight == 0 {
		return
	}
	positive := label > 0
	probability := prediction
	if !positive {
		probability = 1 - prediction
	}
	m.loss -= weight * math.Log(clip(probability))
	if (prediction >= 0.5) == positive {
		m.right += weight
	}
	m.weights += weight
	m.scored = append(m.scored, scored{prediction, weight, positive})
}

func (m *binary) Result() []Metric {
	loss := metric("loss", m.loss, m.weights)
	if loss.Value == nil { // then a prediction may be NaN, which has no rank
		return []Metric{loss, {Name: "auc", Reason: loss.Reason}, {Name: "accuracy", Reason: loss.Reason}}
	}
	return []Metric{loss, m.area(), metric("accuracy", m.right, m.weights)}
}

// area is the probability that a positive record is ranked above a negative
// one, ties counted ½ (Hanley and McNeil, "The meaning and use of the area
// under a receiver operating characteristic curve", 1982), by weight.
func (m *binary) area() Metric {
	slices.SortFunc(m.scored, func(a, b scored) int {
		switch {
		case a.prediction < b.prediction:
			return -1
		case a.prediction > b.prediction:
			return 1
		}
		return 0
	})
	var pairs, below, positives float64 // below: the weight of negatives ranked lower
	for i := 0; i < len(m.scored); {
		var up, down float64
		tie := m.scored[i].prediction
		for ; i < len(m.scored) && m.scored[i].prediction == tie; i++ {
			if m.scored[i].positive {
				up += m.scored[i].weight
			} else {
				down += m.scored[i].weight
			}
		}
		pairs += up * (below + down/2)
		below += down
		positives += up
	}
	if below == 0 || positives == 0 {
		return Metric{Name: "auc", Reason: "the test data has records of one class only"}
	}
	return metric("auc", pairs, positives*below)
}
