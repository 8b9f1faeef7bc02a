package model

import (
	"math"

	"starfish/job"
	"starfish/reader"
)

// Metrics collects the predictions of an evaluation. Values are weighted: a
// record of weight w counts as w equal records of weight 1, and one of weight
// 0 not at all. Sums are compensated, so that a metric depends on nothing but
// the records and their order, and is correct to about 1e-12 whatever their
// number.
type Metrics interface {
	// Add takes one record.
	Add(r Scored)
	// Result gives the metrics in the order in which they are shown.
	Result() []Metric
}

// Scored is one record of an evaluation.
type Scored struct {
	// Prediction is what Model.Predict wrote for the record.
	Prediction float64
	// Label and Weight as the reader gives them; a record without weight has 1.
	Label, Weight float32
	// Group says which records belong together, if Grouped. In data that has
	// groups, records without one are the group 0.
	Group   uint64
	Grouped bool
}

// Metric is one value of an evaluation.
type Metric struct {
	Name string
	// Value is nil where the metric does not exist; Reason then says why.
	Value  *float64
	Reason string
}

// AddBatch adds the records of a batch; predictions has one for each. Whoever
// evaluates does it through this function, so that the same records and
// predictions give the same metrics everywhere.
func AddBatch(m Metrics, b *reader.Batch, predictions []float64) {
	width := max(b.LabelWidth, 1)
	for i, p := range predictions {
		r := Scored{Prediction: p, Label: b.Labels[i*width], Weight: b.Weight(i), Grouped: b.Groups != nil}
		if r.Grouped {
			r.Group = b.Groups[i]
		}
		m.Add(r)
	}
}

// TestResult is the result of an evaluation of so many records.
func TestResult(records int64, m Metrics) *job.TestResult {
	r := &job.TestResult{Records: records, Metrics: map[string]*float64{}}
	for _, metric := range m.Result() {
		r.Metrics[metric.Name] = metric.Value
		if metric.Value != nil {
			continue
		}
		if r.Undefined == nil {
			r.Undefined = make(map[string]string)
		}
		r.Undefined[metric.Name] = metric.Reason
	}
	return r
}

// sum adds numbers and keeps what rounding loses (A. Neumaier,
// "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen",
// 1974).
type sum struct{ high, low float64 }

func (s *sum) add(x float64) {
	t := s.high + x
	if math.Abs(s.high) >= math.Abs(x) {
		s.low += (s.high - t) + x
	} else {
		s.low += (x - t) + s.high
	}
	s.high = t
}

func (s *sum) value() float64 {
	if v := s.high + s.low; !math.IsNaN(v) {
		return v
	}
	return s.high // an infinite sum has no error that could be known
}

const (
	noWeight  = "no record has a weight"
	notFinite = "a prediction is not finite"
)

// known is a metric that exists, if it is finite.
func known(name string, value float64) Metric {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return missing(name, notFinite)
	}
	return Metric{Name: name, Value: &value}
}

func missing(name, reason string) Metric { return Metric{Name: name, Reason: reason} }

// squared has the metrics of regression: loss (the mean squared error), rmse.
// A ratio of predictions to labels says nothing where labels have any sign.
type squared struct{ errors, weight sum }

func (m *squared) Add(r Scored) {
	if r.Weight == 0 {
		return
	}
	d := r.Prediction - float64(r.Label)
	m.errors.add(float64(r.Weight) * d * d)
	m.weight.add(float64(r.Weight))
}

func (m *squared) Result() []Metric {
	weight := m.weight.value()
	if weight == 0 {
		return []Metric{missing("loss", noWeight), missing("rmse", noWeight)}
	}
	loss := m.errors.value() / weight
	return []Metric{known("loss", loss), known("rmse", math.Sqrt(loss))}
}
