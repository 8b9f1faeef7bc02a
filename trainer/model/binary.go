package model

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// binary has the metrics of a binary classifier:
//
//   - loss: −Σ w·ln(probability of the label, clipped) / Σ w
//   - auc: the area under the ROC curve, exact
//   - accuracy: the part of the weight whose label is that of p ≥ 0.5
//   - normalized_entropy: the loss divided by the entropy of the labels' base
//     rate, which is the loss of whoever always predicts this rate (He et al.,
//     "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014)
//   - calibration: Σ w·p / the weight of the positive records (ibid.)
//   - group_auc, groups, groups_left_out, if the data has groups: see byGroup
//
// It keeps every prediction, because the area is computed exactly: 8 bytes a
// record, 4 more once a weight is not 1, and 8 more in data with groups.
type binary struct {
	scores scores
	// improper: a prediction was no probability.
	improper bool
	// loss and predicted (the probabilities) are added up by weight, the others
	// are weights: of right predictions, of positive and of negative records.
	loss, predicted, right, positives, negatives sum
}

func (m *binary) Add(r Scored) {
	if r.Weight == 0 {
		return
	}
	if !(r.Prediction >= 0 && r.Prediction <= 1) {
		m.improper = true
		return
	}
	w, positive := float64(r.Weight), r.Label > 0
	probability := r.Prediction
	if !positive {
		probability = 1 - r.Prediction
	}
	m.loss.add(-w * math.Log(clip(probability)))
	if (r.Prediction >= 0.5) == positive {
		m.right.add(w)
	}
	if positive {
		m.positives.add(w)
	} else {
		m.negatives.add(w)
	}
	m.predicted.add(w * r.Prediction)
	m.scores.add(r, positive)
}

const oneClass = "the test data has records of one class only"

func (m *binary) Result() []Metric {
	names := []string{"loss", "auc", "accuracy", "normalized_entropy", "calibration"}
	if m.scores.groups != nil {
		names = append(names, "group_auc", "groups", "groups_left_out")
	}
	positives, negatives := m.positives.value(), m.negatives.value()
	weight := positives + negatives
	switch {
	case m.improper:
		return allMissing(names, "a prediction is not between 0 and 1")
	case weight == 0:
		return allMissing(names, noWeight)
	}
	loss := m.loss.value() / weight
	metrics := []Metric{
		known("loss", loss), missing("auc", oneClass), known("accuracy", m.right.value()/weight),
		missing("normalized_entropy", oneClass), missing("calibration", "the test data has no positive record"),
	}
	if positives > 0 && negatives > 0 {
		m.scores.sort(false)
		area, _, _ := m.scores.area(0, m.scores.len())
		p, q := positives/weight, negatives/weight
		entropy := -p*math.Log(p) - q*math.Log(q)
		metrics[1], metrics[3] = known("auc", area), known("normalized_entropy", loss/entropy)
	}
	if positives > 0 {
		metrics[4] = known("calibration", m.predicted.value()/positives)
	}
	if m.scores.groups != nil {
		metrics = append(metrics, m.scores.byGroup()...)
	}
	return metrics
}

func allMissing(names []string, reason string) []Metric {
	var ms []Metric
	for _, name := range names {
		ms = append(ms, missing(name, reason))
	}
	return ms
}

// scores are the predictions of records with their labels, weights and groups,
// in columns, of which two exist only where they say something.
type scores struct {
	// predictions are probabilities; the sign is set for a negative record.
	predictions []float64
	weights     []float32 // nil: all are 1
	groups      []uint64  // nil: there are none
}

func (s *scores) add(r Scored, positive bool) {
	n := len(s.predictions)
	if r.Weight != 1 && s.weights == nil {
		s.weights = make([]float32, n, cap(s.predictions)+1)
		for i := range s.weights {
			s.weights[i] = 1
		}
	}
	if r.Grouped && s.groups == nil {
		s.groups = make([]uint64, n, cap(s.predictions)+1)
	}
	sign := 1.0
	if !positive {
		sign = -1
	}
	s.predictions = append(s.predictions, math.Copysign(r.Prediction, sign))
	if s.weights != nil {
		s.weights = append(s.weights, r.Weight)
	}
	if s.groups != nil {
		s.groups = append(s.groups, r.Group)
	}
}

func (s *scores) len() int { return len(s.predictions) }

func (s *scores) weight(i int) float64 {
	if s.weights == nil {
		return 1
	}
	return float64(s.weights[i])
}

// sort sorts by prediction, or by group and, within a group, by prediction.
func (s *scores) sort(byGroup bool) {
	if s.weights == nil && s.groups == nil {
		slices.SortFunc(s.predictions, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
		return
	}
	sort.Sort(&columns{s, byGroup})
}

// columns sorts scores in place.
type columns struct {
	*scores
	byGroup bool
}

func (c *columns) Len() int { return c.len() }

func (c *columns) Less(i, j int) bool {
	if c.byGroup && c.groups[i] != c.groups[j] {
		return c.groups[i] < c.groups[j]
	}
	return math.Abs(c.predictions[i]) < math.Abs(c.predictions[j])
}

func (c *columns) Swap(i, j int) {
	c.predictions[i], c.predictions[j] = c.predictions[j], c.predictions[i]
	if c.weights != nil {
		c.weights[i], c.weights[j] = c.weights[j], c.weights[i]
	}
	if c.groups != nil {
		c.groups[i], c.groups[j] = c.groups[j], c.groups[i]
	}
}

// area of the sorted records [from, to) is the probability that a positive one
// is ranked above a negative one, ties counted ½ (Hanley and McNeil, "The
// meaning and use of the area under a receiver operating characteristic
// curve", 1982), by weight; ok is false if there is one class only. weight is
// that of all of them.
func (s *scores) area(from, to int) (area, weight float64, ok bool) {
	var pairs, below, above sum // below: negatives ranked lower; above: positives
	for i := from; i < to; {
		var up, down sum
		tie := math.Abs(s.predictions[i])
		for ; i < to && math.Abs(s.predictions[i]) == tie; i++ {
			if math.Signbit(s.predictions[i]) {
				down.add(s.weight(i))
			} else {
				up.add(s.weight(i))
			}
		}
		pairs.add(up.value() * (below.value() + down.value()/2))
		below.add(down.value())
		above.add(up.value())
	}
	negatives, positives := below.value(), above.value()
	if negatives == 0 || positives == 0 {
		return 0, negatives + positives, false
	}
	return pairs.value() / positives / negatives, negatives + positives, true
}

// byGroup is the mean of the groups' areas by the weight (the impressions) of
// each, which a model cannot raise by telling groups apart (Zhu et al.,
// "Optimized Cost per Click in Taobao Display Advertising", KDD 2017). A group
// of one class has no area: it is left out and counted.
func (s *scores) byGroup() []Metric {
	s.sort(true)
	var areas, weights sum
	groups, leftOut := 0, 0
	for from := 0; from < s.len(); {
		to := from
		for to < s.len() && s.groups[to] == s.groups[from] {
			to++
		}
		if area, weight, ok := s.area(from, to); ok {
			areas.add(weight * area)
			weights.add(weight)
			groups++
		} else {
			leftOut++
		}
		from = to
	}
	mean := missing("group_auc", "no group has records of both classes")
	if groups > 0 {
		mean = known("group_auc", areas.value()/weights.value())
	}
	return []Metric{mean, known("groups", float64(groups)), known("groups_left_out", float64(leftOut))}
}
