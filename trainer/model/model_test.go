package model_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer/model"
)

// example is one record of a test.
type example struct {
	label  float32
	weight float32
	keys   []uint64
	values []float32
}

// step lays records out as a trainer does, over the given weights.
func step(bias float32, weights map[uint64]float32, examples ...example) *model.Step {
	b := &reader.Batch{Offsets: []int32{0}, LabelWidth: 1}
	t := model.Table{Dim: 1}
	slots := make(map[uint64]uint32)
	for _, e := range examples {
		b.Keys = append(b.Keys, e.keys...)
		b.Values = append(b.Values, e.values...)
		b.Labels = append(b.Labels, e.label)
		b.Weights = append(b.Weights, e.weight)
		b.Offsets = append(b.Offsets, int32(len(b.Keys)))
		for _, k := range e.keys {
			slot, ok := slots[k]
			if !ok {
				slot = uint32(len(t.Keys))
				slots[k] = slot
				t.Keys = append(t.Keys, k)
				t.Rows = append(t.Rows, weights[k])
			}
			t.Slots = append(t.Slots, slot)
		}
	}
	t.Grad = make([]float32, len(t.Rows))
	return &model.Step{Batch: b, Dense: [][]float32{{bias}}, DenseGrad: [][]float32{{0}}, Tables: []model.Table{t}}
}

func specOf(name string) *job.Spec { return &job.Spec{Model: job.Model{Type: name}} }

func newModel(t *testing.T, name string) model.Model {
	t.Helper()
	m, err := model.New(specOf(name))
	require.NoError(t, err)
	return m
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range model.Names() {
		m := newModel(t, name)
		list, err := m.Parameters(&job.Spec{})
		require.NoError(t, err)
		require.Len(t, list, 2)
		_, err = model.New(&job.Spec{Model: job.Model{Type: name, Options: map[string]string{"a": "b"}}})
		require.ErrorIs(t, err, model.ErrSettings)
	}
	_, err := model.New(&job.Spec{Model: job.Model{Type: "fm"}})
	require.ErrorIs(t, err, model.ErrUnknown)
	require.ErrorContains(t, err, `"fm" is not one of count, linear, logistic`)
}

// TestParameters: the names and shapes of contract are what exports show.
func TestParameters(t *testing.T) {
	t.Parallel()
	spec := &job.Spec{Shards: 2, Train: job.Train{Batch: 64, Seed: 7}, Model: job.Model{Bits: 20},
		Optimizer: job.Optimizer{Type: "adagrad", LearningRate: 0.5, Epsilon: 1e-10, Reduction: "mean"}}
	for name, want := range map[string][2]string{
		"linear": {"bias", "weights"}, "logistic": {"bias", "weights"}, "count": {"total", "seen"},
	} {
		list, err := newModel(t, name).Parameters(spec)
		require.NoError(t, err)
		ps, err := job.Resolve(spec, list)
		require.NoError(t, err)
		require.Equal(t, want[0], ps.List[0].Name)
		require.Equal(t, 1, ps.List[0].Elements())
		require.Equal(t, want[1], ps.List[1].Name)
		require.True(t, ps.List[1].Sparse)
		require.Equal(t, 20, ps.List[1].Bits)
		if name == "count" {
			require.Equal(t, "count", ps.List[1].Optimizer.Type)
			require.InDelta(t, 1, ps.List[1].Divisor, 0)
			require.True(t, newModel(t, name).(model.PushOnly).PushOnly())
		} else {
			require.Equal(t, job.OptimizerSettings{Type: "adagrad", LearningRate: 0.5, Epsilon: 1e-10}, ps.List[1].Optimizer)
			require.InDelta(t, 64, ps.List[1].Divisor, 0)
		}
	}
}

// TestGradients compares with differences of the loss, record by record; the
// reported loss of linear is twice the function whose gradient it is.
func TestGradients(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for name, factor := range map[string]float64{"linear": 0.5, "logistic": 1} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t, name)
			weights := map[uint64]float32{}
			var examples []example
			for i := range 20 {
				e := example{label: float32(i % 2), weight: float32(i%3) + 0.5}
				for range 5 {
					k := rnd.Uint64N(12)
					weights[k] = rnd.Float32() - 0.5
					e.keys = append(e.keys, k)
					e.values = append(e.values, rnd.Float32()*2-1)
				}
				examples = append(examples, e)
			}
			s := step(0.25, weights, examples...)
			loss := func() float64 {
				probe := step(s.Dense[0][0], weights, examples...)
				return factor * m.Gradient(probe)
			}
			m.Gradient(s)
			const h = 1.0 / 256
			for i, k := range s.Tables[0].Keys {
				at := weights[k]
				weights[k] = at + h
				up := loss()
				weights[k] = at - h
				down := loss()
				weights[k] = at
				require.InDelta(t, (up-down)/(2*h), s.Tables[0].Grad[i], 2e-3, "key %d", k)
			}
			at := s.Dense[0][0]
			s.Dense[0][0] = at + h
			up := loss()
			s.Dense[0][0] = at - h
			down := loss()
			require.InDelta(t, (up-down)/(2*h), s.DenseGrad[0][0], 2e-3, "bias")
		})
	}
}

func TestKnownValues(t *testing.T) {
	t.Parallel()
	two := example{label: 1, weight: 1, keys: []uint64{5, 5}, values: []float32{1, 2}}
	t.Run("linear", func(t *testing.T) {
		m := newModel(t, "linear")
		s := step(1, map[uint64]float32{5: 2}, two) // 1 + 2·1 + 2·2 = 7
		require.InDelta(t, 36, m.Gradient(s), 0)
		require.Equal(t, []float32{6}, s.DenseGrad[0])
		require.Equal(t, []float32{18}, s.Tables[0].Grad, "a repeated key adds up")
		out := make([]float64, 1)
		m.Predict(s, out)
		require.Equal(t, []float64{7}, out)
	})
	t.Run("logistic", func(t *testing.T) {
		m := newModel(t, "logistic")
		s := step(0, nil, two)
		require.InDelta(t, math.Ln2, m.Gradient(s), 1e-12)
		require.Equal(t, []float32{-0.5}, s.DenseGrad[0])
		require.Equal(t, []float32{-1.5}, s.Tables[0].Grad)
		out := make([]float64, 1)
		m.Predict(s, out)
		require.Equal(t, []float64{0.5}, out)
	})
	t.Run("the loss of logistic is clipped", func(t *testing.T) {
		s := step(-1000, nil, two)
		require.InDelta(t, -math.Log(1e-15), newModel(t, "logistic").Gradient(s), 1e-9)
		require.Equal(t, []float32{-1}, s.DenseGrad[0])
	})
	t.Run("weight 0 changes nothing", func(t *testing.T) {
		for _, name := range []string{"linear", "logistic"} {
			off := two
			off.weight = 0
			s := step(1, map[uint64]float32{5: 2}, off)
			for _, at := range []float32{2, float32(math.NaN())} {
				s.Tables[0].Rows[0] = at
				require.InDelta(t, 0, newModel(t, name).Gradient(s), 0)
				require.Equal(t, []float32{0}, s.DenseGrad[0])
				require.Equal(t, []float32{0}, s.Tables[0].Grad)
			}
		}
	})
	t.Run("a diverged model says so", func(t *testing.T) {
		nan := float32(math.NaN())
		for _, name := range []string{"linear", "logistic"} {
			require.True(t, math.IsNaN(newModel(t, name).Gradient(step(nan, nil, two))))
		}
	})
	t.Run("count", func(t *testing.T) {
		m := newModel(t, "count")
		off := example{weight: 0, keys: []uint64{7, 5}, values: []float32{0, 9}}
		s := step(0, nil, two, off)
		require.InDelta(t, 0, m.Gradient(s), 0)
		require.Equal(t, []float32{2}, s.DenseGrad[0], "records, whatever their weight")
		require.Equal(t, []uint64{5, 7}, s.Tables[0].Keys)
		require.Equal(t, []float32{3, 1}, s.Tables[0].Grad, "values, whatever they are")
		require.Empty(t, m.NewMetrics().Result())
	})
}

func BenchmarkLogistic(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var examples []example
	for range 512 {
		e := example{label: float32(rnd.IntN(2)), weight: 1}
		for range 39 {
			e.keys = append(e.keys, rnd.Uint64N(1<<14))
			e.values = append(e.values, 1)
		}
		examples = append(examples, e)
	}
	s := step(0, nil, examples...)
	m, err := model.New(&job.Spec{Model: job.Model{Type: "logistic"}})
	require.NoError(b, err)
	for b.Loop() {
		m.Gradient(s)
	}
	b.ReportMetric(float64(b.N)*512/b.Elapsed().Seconds(), "records/s")
}
