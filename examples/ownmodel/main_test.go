package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/reader"
	"starfish/trainer/model"
)

func step() *model.Step {
	return &model.Step{
		Batch: &reader.Batch{
			Offsets: []int32{0, 2, 3}, Keys: []uint64{7, 9, 7}, Values: []float32{1, 0.5, 2}, Labels: []float32{3, 0}, LabelWidth: 1,
		},
		Dense: [][]float32{{0.1}}, DenseGrad: [][]float32{{0}},
		Tables: []model.Table{{
			Dim: 1, Keys: []uint64{7, 9}, Slots: []uint32{0, 1, 0}, Rows: []float32{0.2, -0.3}, Grad: []float32{0, 0},
		}},
	}
}

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	t.Parallel()
	s := step()
	poisson{}.Gradient(s)
	slope := func(at func(*model.Step) *float32) float64 {
		const h = 1e-3
		up, down := step(), step()
		*at(up) += h
		*at(down) -= h
		return (poisson{}.Gradient(up) - poisson{}.Gradient(down)) / (2 * h)
	}
	require.InDelta(t, slope(func(s *model.Step) *float32 { return &s.Dense[0][0] }), s.DenseGrad[0][0], 1e-3)
	for i := range 2 {
		require.InDelta(t, slope(func(s *model.Step) *float32 { return &s.Tables[0].Rows[i] }), s.Tables[0].Grad[i], 1e-3)
	}
}

func TestPredictAndDeviance(t *testing.T) {
	t.Parallel()
	out := make([]float64, 2)
	poisson{}.Predict(step(), out)
	require.InDelta(t, math.Exp(0.1+0.2-0.15), out[0], 1e-6)
	require.InDelta(t, math.Exp(0.1+0.4), out[1], 1e-6)

	m := poisson{}.NewMetrics()
	m.Add(model.Scored{Prediction: 3, Label: 3, Weight: 1})
	require.InDelta(t, 0, *m.Result()[0].Value, 1e-12, "a perfect prediction")
	require.Nil(t, poisson{}.NewMetrics().Result()[0].Value)
}
