package model_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/reader"
	"starfish/trainer/model"
)

// values of metrics by name; those that do not exist are left out.
func values(metrics []model.Metric) map[string]float64 {
	m := make(map[string]float64)
	for _, x := range metrics {
		if x.Value != nil {
			m[x.Name] = *x.Value
		}
	}
	return m
}

func names(metrics []model.Metric) (names []string) {
	for _, x := range metrics {
		names = append(names, x.Name)
	}
	return names
}

func metricsOf(t require.TestingT, name string, records []model.Scored) []model.Metric {
	m, err := model.New(specOf(name))
	require.NoError(t, err)
	e := m.NewMetrics()
	for _, r := range records {
		e.Add(r)
	}
	return e.Result()
}

func TestBinaryMetrics(t *testing.T) {
	t.Parallel()
	records := []model.Scored{
		{Prediction: 0.9, Label: 1, Weight: 1}, {Prediction: 0.5, Label: 1, Weight: 2}, {Prediction: 0.5, Label: 0, Weight: 1},
		{Prediction: 0.1, Label: 0, Weight: 3}, {Prediction: 0.3, Label: 0, Weight: 0},
	}
	got := metricsOf(t, "logistic", records)
	require.Equal(t, []string{"loss", "auc", "accuracy", "normalized_entropy", "calibration"}, names(got))
	v := values(got)
	loss := -(math.Log(0.9) + 2*math.Log(0.5) + math.Log(0.5) + 3*math.Log(0.9)) / 7
	require.InDelta(t, loss, v["loss"], 1e-12)
	require.InDelta(t, (1*4+2*(3+0.5))/(3.0*4), v["auc"], 1e-12)
	require.InDelta(t, (1+2+3)/7.0, v["accuracy"], 1e-12)
	require.InDelta(t, loss/-(3.0/7*math.Log(3.0/7)+4.0/7*math.Log(4.0/7)), v["normalized_entropy"], 1e-12)
	require.InDelta(t, (0.9+2*0.5+0.5+3*0.1)/3, v["calibration"], 1e-12)
}

// TestGroups: a group of one class is left out and counted; a record of weight
// 0 is in no group.
func TestGroups(t *testing.T) {
	t.Parallel()
	in := func(group uint64, prediction float64, label, weight float32) model.Scored {
		return model.Scored{Prediction: prediction, Label: label, Weight: weight, Group: group, Grouped: true}
	}
	got := metricsOf(t, "logistic", []model.Scored{
		in(7, 0.2, 0, 1), in(9, 0.1, 1, 1), in(7, 0.4, 1, 2), in(9, 0.3, 0, 1), in(3, 0.5, 1, 1), in(4, 0.5, 1, 1), in(4, 0.6, 0, 0),
	})
	require.Equal(t, []string{"loss", "auc", "accuracy", "normalized_entropy", "calibration", "group_auc", "groups", "groups_left_out"}, names(got))
	v := values(got)
	require.InDelta(t, (3*1.0+2*0.0)/5, v["group_auc"], 1e-12)
	require.InDelta(t, 2, v["groups"], 0)
	require.InDelta(t, 2, v["groups_left_out"], 0)

	got = metricsOf(t, "logistic", []model.Scored{in(1, 0.2, 0, 1), in(2, 0.4, 1, 1)})
	require.Nil(t, got[5].Value, "no group has both classes")
	require.NotEmpty(t, got[5].Reason)
	require.InDelta(t, 2, values(got)["groups_left_out"], 0)
}

// naiveArea is the definition, over all pairs.
func naiveArea(records []model.Scored) (area, weight float64) {
	var won, all float64
	for _, p := range records {
		weight += float64(p.Weight)
		for _, n := range records {
			if p.Label != 1 || n.Label != 0 {
				continue
			}
			pair := float64(p.Weight) * float64(n.Weight)
			all += pair
			switch {
			case p.Prediction > n.Prediction:
				won += pair
			case p.Prediction == n.Prediction:
				won += pair / 2
			}
		}
	}
	return won / all, weight
}

// naive has the metrics of a binary classifier, from their definitions.
func naive(records []model.Scored) map[string]float64 {
	var loss, right, predicted, clicks, weight float64
	groups := map[uint64][]model.Scored{}
	for _, r := range records {
		w := float64(r.Weight)
		p := r.Prediction
		predicted += w * p
		if r.Label == 0 {
			p = 1 - p
		} else {
			clicks += w
		}
		loss -= w * math.Log(math.Min(math.Max(p, 1e-15), 1-1e-15))
		if (r.Prediction >= 0.5) == (r.Label == 1) {
			right += w
		}
		weight += w
		groups[r.Group] = append(groups[r.Group], r)
	}
	q := clicks / weight
	area, _ := naiveArea(records)
	var areas, weights, leftOut float64
	for _, g := range groups {
		area, weight := naiveArea(g)
		switch {
		case weight == 0:
		case math.IsNaN(area):
			leftOut++
		default:
			areas, weights = areas+weight*area, weights+weight
		}
	}
	return map[string]float64{
		"loss": loss / weight, "accuracy": right / weight, "auc": area, "calibration": predicted / clicks,
		"normalized_entropy": loss / weight / -(q*math.Log(q) + (1-q)*math.Log(1-q)),
		"group_auc":          areas / weights, "groups_left_out": leftOut,
	}
}

// drawScored draws records with ties, extremes, zero weights and few groups.
func drawScored(weights *rapid.Generator[float32]) *rapid.Generator[[]model.Scored] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) model.Scored {
		return model.Scored{
			Prediction: rapid.OneOf(
				rapid.Map(rapid.IntRange(0, 10), func(i int) float64 { return float64(i) / 10 }), rapid.Float64Range(0, 1),
			).Draw(t, "prediction"),
			Label:  rapid.SampledFrom([]float32{0, 1}).Draw(t, "label"),
			Weight: weights.Draw(t, "weight"),
			Group:  rapid.Uint64Range(0, 5).Draw(t, "group"), Grouped: true,
		}
	}), 0, 60)
}

// TestMetricsAreTheirDefinitions compares with the naive ones.
func TestMetricsAreTheirDefinitions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := drawScored(rapid.OneOf(rapid.SampledFrom([]float32{0, 1}), rapid.Float32Range(1e-3, 3))).Draw(t, "records")
		got := values(metricsOf(t, "logistic", records))
		for name, want := range naive(records) {
			if v, ok := got[name]; ok {
				require.InDelta(t, want, v, 1e-9*max(1, math.Abs(want)), name)
			} else {
				require.True(t, math.IsNaN(want) || math.IsInf(want, 0) || name == "groups_left_out", "%s is missing and would be %v", name, want)
			}
		}
	})
}

// TestWeightsStandForRepetition: a record of weight w counts as w records.
func TestWeightsStandForRepetition(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"logistic", "linear"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				whole := rapid.Map(rapid.IntRange(0, 4), func(n int) float32 { return float32(n) })
				weighted := drawScored(whole).Draw(t, "records")
				var repeated []model.Scored
				for _, r := range weighted {
					one := r
					one.Weight = 1
					repeated = append(repeated, slices.Repeat([]model.Scored{one}, int(r.Weight))...)
				}
				want, got := values(metricsOf(t, name, repeated)), values(metricsOf(t, name, weighted))
				// Where every record has the weight 0 nobody has said that there are groups.
				if len(repeated) == 0 {
					require.Empty(t, got)
					return
				}
				require.Len(t, got, len(want))
				for k := range want {
					require.InDelta(t, want[k], got[k], 1e-12*max(1, math.Abs(want[k])), k)
				}
			})
		})
	}
}

// TestOrderHardlyMatters: only the last bits depend on the order of the
// records, and equal orders give equal bits.
func TestOrderHardlyMatters(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := drawScored(rapid.Float32Range(1e-3, 3)).Draw(t, "records")
		first := metricsOf(t, "logistic", records)
		require.Equal(t, first, metricsOf(t, "logistic", records))
		other := values(metricsOf(t, "logistic", rapid.Permutation(records).Draw(t, "order")))
		for name, v := range values(first) {
			require.InDelta(t, v, other[name], 1e-12*max(1, math.Abs(v)), name)
		}
	})
}

// TestMetricsOfManyRecords: a plain float64 sum of ten million small losses is
// off by more than 1e-9 of a large one.
func TestMetricsOfManyRecords(t *testing.T) {
	t.Parallel()
	m := newModel(t, "linear").NewMetrics()
	m.Add(model.Scored{Prediction: 1e8, Weight: 1}) // 1e16, where float64 has steps of 2
	const n = 1_000_000
	for range n {
		m.Add(model.Scored{Prediction: 0.5, Weight: 1})
	}
	require.InEpsilon(t, (1e16+n*0.25)/(n+1), *m.Result()[0].Value, 1e-15)
}

// TestAddBatch: weights of 1 are the same as none, to the bit; labels may be
// several; groups count where there are some.
func TestAddBatch(t *testing.T) {
	t.Parallel()
	predictions := []float64{0.1, 0.7, 0.8, 0.2}
	result := func(b reader.Batch) []model.Metric {
		m := newModel(t, "logistic").NewMetrics()
		model.AddBatch(m, &b, predictions)
		return m.Result()
	}
	plain := reader.Batch{Labels: []float32{0, 1, 0, 1}, LabelWidth: 1}
	ones, double, grouped := plain, plain, plain
	ones.Weights = []float32{1, 1, 1, 1}
	require.Equal(t, result(plain), result(ones))
	double.Labels, double.LabelWidth = []float32{0, 5, 1, 5, 0, 5, 1, 5}, 2
	require.Equal(t, result(plain), result(double))
	ones.Weights = []float32{1, 1, 0, 1}
	require.InDelta(t, 1, values(result(ones))["auc"], 0)
	grouped.Groups = []uint64{0, 0, 5, 5}
	require.InDelta(t, 0.5, values(result(grouped))["group_auc"], 0)
}

// TestUndefinedMetrics: what does not exist is nil with a reason, never NaN.
func TestUndefinedMetrics(t *testing.T) {
	t.Parallel()
	all := []string{"loss", "auc", "accuracy", "normalized_entropy", "calibration"}
	for name, tc := range map[string]struct {
		model   string
		add     []model.Scored
		missing []string
	}{
		"positives only":    {"logistic", []model.Scored{{0.5, 1, 1, 0, false}, {0.7, 1, 1, 0, false}}, []string{"auc", "normalized_entropy"}},
		"negatives only":    {"logistic", []model.Scored{{0.5, 0, 1, 0, false}}, []string{"auc", "normalized_entropy", "calibration"}},
		"no records":        {"logistic", nil, all},
		"weights of zero":   {"linear", []model.Scored{{1, 2, 0, 0, false}}, []string{"loss", "rmse"}},
		"not a number":      {"logistic", []model.Scored{{math.NaN(), 1, 1, 0, false}, {0.5, 0, 1, 0, false}}, all},
		"no probability":    {"logistic", []model.Scored{{1.5, 1, 1, 0, false}, {0.5, 0, 1, 0, false}}, all},
		"infinite":          {"linear", []model.Scored{{math.Inf(1), 1, 1, 0, false}}, []string{"loss", "rmse"}},
		"nan":               {"linear", []model.Scored{{math.NaN(), 1, 1, 0, false}}, []string{"loss", "rmse"}},
		"nothing's amiss":   {"linear", []model.Scored{{3, 1, 1, 0, false}}, nil},
		"certain but wrong": {"logistic", []model.Scored{{0, 1, 1, 0, false}, {1, 0, 1, 0, false}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var missing []string
			for _, x := range metricsOf(t, tc.model, tc.add) {
				if x.Value == nil {
					missing = append(missing, x.Name)
					require.NotEmpty(t, x.Reason)
					continue
				}
				require.False(t, math.IsNaN(*x.Value) || math.IsInf(*x.Value, 0))
			}
			require.Equal(t, tc.missing, missing)
		})
	}
}

// TestGroupsAreNotBatches: of libsvm text some of whose lines have a qid, the
// metrics are the same however the lines are cut, and those without are the
// group 0.
func TestGroupsAreNotBatches(t *testing.T) {
	t.Parallel()
	newMetrics := newModel(t, "logistic").NewMetrics
	rapid.Check(t, func(t *rapid.T) {
		var lines, explicit []string
		var predictions []float64
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			label, qid := rapid.IntRange(0, 1).Draw(t, "label"), rapid.IntRange(-3, 3).Draw(t, "qid")
			line := fmt.Sprintf("%d 1:1\n", label)
			if qid >= 0 {
				line = fmt.Sprintf("%d qid:%d 1:1\n", label, qid)
			}
			lines, explicit = append(lines, line), append(explicit, fmt.Sprintf("%d qid:%d 1:1\n", label, max(qid, 0)))
			predictions = append(predictions, float64(rapid.IntRange(0, 5).Draw(t, "prediction"))/5)
		}
		cuts := rapid.SliceOf(rapid.IntRange(1, 7)).Draw(t, "cuts")
		result := func(lines []string, cuts []int) []model.Metric {
			m, text, b := newMetrics(), reader.NewText(nil, reader.Options{Labels: reader.LabelBinary}), reader.Batch{}
			for from := 0; from < len(lines); {
				to := len(lines)
				if len(cuts) > 0 {
					to, cuts = min(to, from+cuts[0]), cuts[1:]
				}
				b.Reset() // with the memory of the batch before
				flaws, err := text.Parse([]byte(strings.Join(lines[from:to], "")), &b, nil)
				require.NoError(t, err)
				require.Empty(t, flaws)
				model.AddBatch(m, &b, predictions[from:to])
				from = to
			}
			return m.Result()
		}
		got := result(lines, cuts)
		require.Equal(t, result(lines, nil), got)
		if strings.Contains(strings.Join(lines, ""), "qid") {
			require.Equal(t, result(explicit, nil), got)
		}
	})
}
