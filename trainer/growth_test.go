package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer/data"
	"starfish/trainer/model"
)

// toy trains a model with one weight a key in a map: the losses of its batches
// are those of a real job with fresh values.
type toy struct {
	model.Model
	optimizer string
	rate      float32
	batch     int
	bias      [2]float32            // value, state
	weights   map[uint64][2]float32 // the same
}

func (x *toy) update(v [2]float32, g float32) [2]float32 {
	g /= float32(x.batch)
	switch x.optimizer {
	case job.OptimizerAdagrad:
		if v[1] += g * g; v[1] > 0 {
			v[0] -= x.rate * g / float32(math.Sqrt(float64(v[1])))
		}
	case job.OptimizerMomentum:
		v[1] = 0.9*v[1] + g
		v[0] -= x.rate * v[1]
	default:
		v[0] -= x.rate * g
	}
	return v
}

func (x *toy) step(b *reader.Batch) (loss float64) {
	table := model.Table{Dim: 1}
	at := make(map[uint64]uint32)
	for _, k := range b.Keys {
		if _, ok := at[k]; !ok {
			at[k] = uint32(len(table.Keys))
			table.Keys = append(table.Keys, k)
			table.Rows = append(table.Rows, x.weights[k][0])
		}
		table.Slots = append(table.Slots, at[k])
	}
	table.Grad = make([]float32, len(table.Rows))
	s := model.Step{Batch: b, Dense: [][]float32{{x.bias[0]}}, DenseGrad: [][]float32{{0}}, Tables: []model.Table{table}}
	loss = x.Gradient(&s)
	x.bias = x.update(x.bias, s.DenseGrad[0][0])
	for i, k := range table.Keys {
		x.weights[k] = x.update(x.weights[k], table.Grad[i])
	}
	return loss
}

// train shows the losses of a whole training to g. It returns the sum's highest
// value, after how many records it was enough (0: never), and the mean ratio to
// predicting nothing of the last tenth.
func (x *toy) train(t *testing.T, p *reader.Plan, passes int, g *growth) (peak float64, found int, tail float64) {
	x.weights = make(map[uint64][2]float32)
	var records int
	var ratios []float64
	for pass := range passes {
		for c := range p.Chunks() {
			o := reader.Options{Batch: x.batch, Shuffle: true, Seed: 1, Pass: pass, Labels: x.Labels()}
			r, err := p.Open(t.Context(), c, o)
			require.NoError(t, err)
			var b reader.Batch
			for !b.Last {
				require.NoError(t, r.Next(&b))
				nothing := x.Model.(model.Baseliner).Baseline(&b)
				loss := x.step(&b)
				records += b.Records()
				if g.add(loss, nothing, b.Records()) && found == 0 {
					found = records
				}
				peak = max(peak, g.sum)
				ratios = append(ratios, loss/nothing)
			}
			require.NoError(t, r.Close())
		}
	}
	ratios = ratios[len(ratios)*9/10:]
	for _, r := range ratios {
		tail += r / float64(len(ratios))
	}
	return peak, found, tail
}

// dataSets are what the series of losses come from.
func dataSets(t *testing.T) map[string]*reader.Plan {
	t.Helper()
	write := func(name string, n int, line func(rng *rand.Rand) string) *reader.Plan {
		rng := rand.New(rand.NewPCG(1, 2))
		var b strings.Builder
		for range n {
			b.WriteString(line(rng) + "\n")
		}
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
		p, err := reader.NewPlan([]string{file}, reader.Libsvm, 64<<10)
		require.NoError(t, err)
		return p
	}
	a9a, err := reader.NewPlan([]string{"../examples/adult/a9a"}, reader.Libsvm, 64<<10)
	require.NoError(t, err)
	text, err := os.ReadFile("../examples/census/census.yaml")
	require.NoError(t, err)
	spec, err := job.ParseSpec(text, "../examples/census", nil)
	require.NoError(t, err)
	census, err := data.NewPlan(spec, spec.Data.Train)
	require.NoError(t, err)
	raw := *spec
	raw.Features = nil
	unscaled, err := data.NewPlan(&raw, spec.Data.Train)
	require.NoError(t, err)
	return map[string]*reader.Plan{
		"adult": a9a, "census": census, "census, every column as it is": unscaled,
		"rare": write("rare", 20000, func(rng *rand.Rand) string {
			y := rng.IntN(1000) / 999
			return fmt.Sprintf("%d 1:%.3f %d:1", y, rng.Float64(), 10+rng.IntN(1000)+y*500)
		}),
		"squares": write("squares", 4000, func(rng *rand.Rand) string {
			a, b := rng.NormFloat64(), rng.NormFloat64()
			return fmt.Sprintf("%.3f 1:%.3f 2:%.3f %d:1", 20+3*a-b+rng.NormFloat64(), a, b, 3+rng.IntN(5))
		}),
		"squares, unscaled": write("unscaled", 2000, func(rng *rand.Rand) string {
			a := rng.IntN(40000)
			return fmt.Sprintf("%d 1:%d %d:1", a/1000, a, 3+rng.IntN(5))
		}),
	}
}

// TestGrowthOnTraining: the default limit finds what diverges, soon, and nothing
// in training that works, noisy as it may be: small batches, rare events, high
// rates.
func TestGrowthOnTraining(t *testing.T) {
	t.Parallel()
	limit := defaultSpec(t).Train.MaxLossGrowth
	sets := dataSets(t)
	type run struct {
		data, model, optimizer string
		rate                   float32
		batch, passes          int
	}
	for _, r := range []run{
		{"adult", model.Logistic, job.OptimizerAdagrad, 0.1, 64, 1},
		{"adult", model.Logistic, job.OptimizerAdagrad, 1, 64, 1},
		{"adult", model.Logistic, job.OptimizerAdagrad, 10, 64, 1},
		{"adult", model.Logistic, job.OptimizerSGD, 1, 1, 1},
		{"adult", model.Logistic, job.OptimizerSGD, 10, 64, 1},
		{"adult", model.Logistic, job.OptimizerMomentum, 1, 64, 1},
		{"adult", model.Linear, job.OptimizerSGD, 0.1, 1, 1},
		{"adult", model.Linear, job.OptimizerAdagrad, 1, 64, 1},
		{"census", model.Logistic, job.OptimizerAdagrad, 0.1, 64, 2},
		{"census", model.Logistic, job.OptimizerSGD, 0.1, 8, 1},
		{"rare", model.Logistic, job.OptimizerAdagrad, 1, 16, 1},
		{"rare", model.Logistic, job.OptimizerSGD, 10, 64, 1},
		{"rare", model.Linear, job.OptimizerSGD, 0.1, 1, 1},
		{"rare", model.Linear, job.OptimizerAdagrad, 0.1, 64, 1},
		{"squares", model.Linear, job.OptimizerSGD, 0.1, 16, 2},
		{"squares", model.Linear, job.OptimizerAdagrad, 10, 16, 2},
	} {
		m, err := model.New(&job.Spec{Model: job.Model{Type: r.model}})
		require.NoError(t, err)
		g := &growth{limit: limit}
		x := &toy{Model: m, optimizer: r.optimizer, rate: r.rate, batch: r.batch}
		peak, _, _ := x.train(t, sets[r.data], r.passes, g)
		require.Less(t, peak, 0.5*enough, "%+v", r)
		require.False(t, g.ends(), "%+v", r)
	}
	for _, r := range []struct {
		run
		within int // records
	}{
		{run{"squares, unscaled", model.Linear, job.OptimizerSGD, 1e-7, 64, 1}, 1000},
		{run{"squares, unscaled", model.Linear, job.OptimizerSGD, 0.01, 64, 1}, 500},
		{run{"squares, unscaled", model.Linear, job.OptimizerMomentum, 0.01, 64, 1}, 500},
		{run{"squares", model.Linear, job.OptimizerSGD, 10, 64, 1}, 1500},
		{run{"adult", model.Linear, job.OptimizerSGD, 1, 64, 1}, 1000},
		{run{"adult", model.Logistic, job.OptimizerSGD, 10, 1, 1}, 20000},
		{run{"census, every column as it is", model.Logistic, job.OptimizerSGD, 0.01, 64, 1}, 10000},
		{run{"census, every column as it is", model.Logistic, job.OptimizerAdagrad, 0.1, 64, 1}, 10000},
	} {
		m, err := model.New(&job.Spec{Model: job.Model{Type: r.model}})
		require.NoError(t, err)
		g := &growth{limit: limit}
		x := &toy{Model: m, optimizer: r.optimizer, rate: r.rate, batch: r.batch}
		_, found, tail := x.train(t, sets[r.data], r.passes, g)
		require.Positive(t, found, "%+v", r)
		require.LessOrEqual(t, found, r.within, "%+v", r)
		require.True(t, g.ends(), "%+v", r)
		require.True(t, tail >= 2 || math.IsNaN(tail), "%+v has not diverged, but has a loss of %g", r, tail)
	}
}

func defaultSpec(t *testing.T) *job.Spec {
	t.Helper()
	s, err := job.ParseSpec([]byte("job: j\ndata: {train: d}\nmodel: {type: count}"), "", nil)
	require.NoError(t, err)
	return s
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	feed := func(g *growth, ratio float64, samples int) (found bool) {
		for range samples {
			found = g.add(ratio*64, 64, 64) || found
		}
		return found
	}
	g := growth{limit: 5}
	require.False(t, feed(&g, 1e30, 1), "one sample is not enough, however bad")
	require.False(t, g.ends())
	require.False(t, feed(&g, 1, 20))
	require.Zero(t, g.sum, "it is forgotten")
	require.True(t, feed(&g, 1e30, 4))
	require.Equal(t, "the loss rose to 1e+30 a record, 1e+30 times that of predicting nothing, and stayed above 5 times (train.max_loss_growth) over 256 records", g.why())
	require.True(t, g.ends())

	require.False(t, feed(&growth{}, 1e30, 100), "no limit, nothing is found")

	g = growth{limit: 5}
	require.False(t, feed(&g, math.NaN(), 3))
	require.True(t, g.ends())
	require.True(t, feed(&g, math.Inf(1), 1))
	require.Contains(t, g.why(), "the loss was not finite")
	require.Contains(t, g.why(), "over 256 records")

	g = growth{limit: 5}
	require.False(t, feed(&g, 8, 200), "what is only a little too much takes its time")
	require.True(t, feed(&g, 8, 100))

	g = growth{limit: 5}
	for range 100 {
		require.False(t, g.add(0, 0, 64), "there was no label that is not 0 yet")
		require.False(t, g.add(1, 0, 64))
	}
	require.Zero(t, g.sum)
	require.False(t, g.add(1, 1, 64))
	for range 1000 {
		require.False(t, g.add(1e-4, 0, 64), "the labels of these records are 0, those of others were not")
	}
	require.Zero(t, g.sum)

	g = growth{limit: 5}
	for range 63 {
		require.False(t, g.add(1e300, 1, 1))
	}
	require.Zero(t, g.sum, "small batches are put together")
	g.add(1e300, 1, 1)
	require.EqualValues(t, mostOfOne, g.sum)
}

// TestGrowthNeverBelowItsLimit: as long as no sample is above the limit, and
// whatever single ones are between good ones, nothing is found.
func TestGrowthNeverBelowItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := growth{limit: 5}
		for i := range rapid.IntRange(1, 300).Draw(t, "samples") {
			ratio := rapid.Float64Range(0, 0.9).Draw(t, "ratio")
			if i%20 == 19 {
				ratio = math.Pow(10, rapid.Float64Range(0, 300).Draw(t, "absurd"))
			}
			if g.add(ratio*100, 100, 100) {
				t.Fatalf("sum %g", g.sum)
			}
		}
	})
}

func TestSkips(t *testing.T) {
	t.Parallel()
	feed := func(s *skips, batches, every int) (first int64) {
		for i := 1; i <= batches; i++ {
			if s.add(i%every == 0) && first == 0 {
				first = s.batches
			}
		}
		return first
	}
	require.Zero(t, feed(&skips{share: 0.01}, 10, 1), "ten are allowed")
	require.EqualValues(t, 11, feed(&skips{share: 0.01}, 11, 1))
	require.Zero(t, feed(&skips{share: 0.01}, 100000, 100))
	require.EqualValues(t, 50*11, feed(&skips{share: 0.01}, 100000, 50))
	require.Zero(t, feed(&skips{share: 1}, 1000, 1))
	none := &skips{}
	require.EqualValues(t, 7, feed(none, 7, 7))
	require.Equal(t, "loss or gradient was not finite in 1 of 7 batches, more than may be skipped (train.max_skipped: 0)", none.why())
}
