package predict

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/initial"
	"starfish/internal/modelfile"
	"starfish/internal/raced"
	"starfish/job"
	"starfish/reader"
	"starfish/trainer/model"
)

const libsvmSpec = "job: j\ndata: {train: [x]}\nmodel: {type: logistic, bits: 20}\n"

const csvSpec = `job: j
data: {train: [x], format: csv, label: y, csv: {header: false, columns: [site, y, hours], missing: ["?"]}}
features:
  - {name: site, type: categorical}
  - {name: hours, type: numeric, transform: log1p}
model: {type: linear}
`

// source is a model in memory.
type source map[int]modelfile.Run

func (s source) Rows(p int) int64 { return int64(len(s[p].Keys)) }

func (s source) Export(p int) iter.Seq[modelfile.Run] {
	return func(yield func(modelfile.Run) bool) { yield(s[p]) }
}

// save writes a model and returns its path.
func save(t testing.TB, suffix, spec string, list []job.Parameter, values source) string {
	t.Helper()
	s, err := job.ParseSpec([]byte(spec), "/d", nil)
	require.NoError(t, err)
	if list == nil {
		m, err := model.New(s)
		require.NoError(t, err)
		list, err = m.Parameters(s)
		require.NoError(t, err)
	}
	params, err := job.Resolve(s, list)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "model"+suffix)
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = modelfile.Write(f, modelfile.FormOf(path), modelfile.Metadata{Job: "j", UUID: "u", Records: 5, Spec: s, Parameters: params}, values)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return path
}

// weights are rows of single values for the keys 0, 3, 6, …
func weights(rows int) (source, map[uint64]float32) {
	rng := rand.New(rand.NewPCG(7, 8))
	r, all := modelfile.Run{}, map[uint64]float32{}
	for i := range rows {
		key, v := uint64(3*i), float32(rng.NormFloat64())
		r.Keys, r.Floats, all[key] = append(r.Keys, key), append(r.Floats, v), v
	}
	return source{0: {Floats: []float32{0.125}}, 1: r}, all
}

var suffixes = []string{".txt", ".npz", ".safetensors"}

// TestScore: the score of each record is that of its definition, whatever the
// form of the file.
func TestScore(t *testing.T) {
	t.Parallel()
	values, all := weights(10_000)
	for _, suffix := range suffixes {
		m, err := Load(save(t, suffix, libsvmSpec, nil, values))
		require.NoError(t, err)
		require.Equal(t, int64(5), m.Records())
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			var keys []uint64
			var vals []float32
			for range rng.IntN(60) {
				keys, vals = append(keys, rng.Uint64N(30_100)), append(vals, rng.Float32())
			}
			z := float32(0.125)
			for i, k := range keys {
				z += all[k] * vals[i]
			}
			require.InDelta(t, 1/(1+math.Exp(-float64(z))), m.Score(keys, vals), 1e-15)
		}
		require.Equal(t, m.Score([]uint64{3, 6}, []float32{1, 1}), m.Score([]uint64{3 + 1<<20, 6 + 1<<40}, nil), "keys are taken modulo 2^bits")
	}
}

// TestLines: a line, a batch and keys are the same record.
func TestLines(t *testing.T) {
	t.Parallel()
	values, _ := weights(100)
	m, err := Load(save(t, ".npz", libsvmSpec, nil, values))
	require.NoError(t, err)
	bare, err := m.Lines(LineOptions{})
	require.NoError(t, err)
	labelled, err := m.Lines(LineOptions{Labels: true})
	require.NoError(t, err)
	want := m.Score([]uint64{3, 9}, []float32{1, 0.5})
	for text, l := range map[string]*Lines{"3 9:0.5": labelled, "1 3 9:0.5\n": labelled, "3:1 9:0.5": bare} {
		got, err := l.Score([]byte(text))
		if text == "3 9:0.5" {
			require.ErrorIs(t, err, ErrRecord, "3 is no label of a logistic model")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "# c", "1:2\n3:4\n", "1:x"} {
		_, err := bare.Score([]byte(text))
		require.ErrorIs(t, err, ErrRecord, text)
	}
	_, err = m.Lines(LineOptions{Format: "csv", Columns: []string{"a"}})
	require.ErrorIs(t, err, reader.ErrColumns)
}

func TestLinesWithColumns(t *testing.T) {
	t.Parallel()
	m, err := Load(save(t, ".txt", csvSpec, nil, source{0: {Floats: []float32{0.5}}, 1: {}}))
	require.NoError(t, err)
	for _, o := range []LineOptions{{}, {Labels: true}, {Columns: []string{"hours", "site"}}, {Format: "tsv", Columns: []string{"hours", "site", "y"}}} {
		l, err := m.Lines(o)
		require.NoError(t, err)
		text := map[int]string{0: "a,2", 1: "a,1,2"}[len(o.Columns)]
		switch {
		case o.Labels:
			text = "a,1,2"
		case o.Format == "tsv":
			text = "2\ta\tno number"
		case o.Columns != nil:
			text = "2,a"
		}
		got, err := l.Score([]byte(text))
		require.NoError(t, err, text)
		require.Equal(t, 0.5, got)
	}
	_, err = m.Lines(LineOptions{Columns: []string{"site"}})
	require.ErrorIs(t, err, reader.ErrColumns)
	require.ErrorContains(t, err, `"hours"`)
}

// TestOneModelManyGoroutines: all get the same answers, also from a model of
// which no two calls may overlap.
func TestOneModelManyGoroutines(t *testing.T) {
	t.Parallel()
	values, _ := weights(5000)
	m, err := LoadWith(save(t, ".npz", libsvmSpec, nil, values), func(s *job.Spec) (model.Model, error) {
		inner, err := model.New(s)
		return &jealous{Model: inner}, err
	})
	require.NoError(t, err)
	lines, err := m.Lines(LineOptions{Labels: true})
	require.NoError(t, err)
	records := make([]string, 500)
	want := make([]float64, len(records))
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range records {
		records[i] = "1"
		for range 20 {
			records[i] += fmt.Sprintf(" %d:%g", rng.Uint64N(16_000), rng.Float32())
		}
		want[i], err = lines.Score([]byte(records[i]))
		require.NoError(t, err)
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range records {
				at := (i*7 + g*61) % len(records)
				if got, err := lines.Score([]byte(records[at])); err != nil || got != want[at] {
					t.Errorf("record %d: %v instead of %v, %v", at, got, want[at], err)
				}
			}
		})
	}
	group.Wait()
}

// jealous is a model that notices when it is used by two at once.
type jealous struct {
	model.Model
	busy sync.Mutex
	keys []uint64
}

func (j *jealous) Keys(b *reader.Batch, _ int) []uint64 {
	if !j.busy.TryLock() {
		panic("two at once")
	}
	j.keys = append(j.keys[:0], b.Keys...)
	return j.keys
}

func (j *jealous) Predict(s *model.Step, out []float64) {
	j.Model.Predict(s, out)
	j.busy.Unlock()
}

// TestInitialValues: a row that was never pushed is what a pserver answers.
func TestInitialValues(t *testing.T) {
	t.Parallel()
	list := []job.Parameter{{Name: "t", Sparse: true, Dim: 3, Init: job.Initializer{Kind: job.InitUniform, Min: -1, Max: 1}}}
	build := func(*job.Spec) (model.Model, error) { return sums{list: list}, nil }
	m, err := LoadWith(save(t, ".npz", libsvmSpec, list, source{0: {Keys: []uint64{0, 5}, Floats: []float32{1, 2, 4, 8, 16, 32}}}), build)
	require.NoError(t, err)
	in, err := initial.New(list[0].Init, 1, "t")
	require.NoError(t, err)
	row := make([]float32, 3)
	in.Row(row, 7)
	require.Equal(t, 7.0, m.Score([]uint64{0}, nil))
	require.Equal(t, 56.0, m.Score([]uint64{5}, nil))
	require.Equal(t, float64(row[0]+row[1]+row[2]), m.Score([]uint64{7}, nil))
	require.Equal(t, 7.0+56, m.Score([]uint64{5, 0}, nil))
	require.Equal(t, 14.0, m.Score([]uint64{0, 0}, nil))
}

// sums predicts the sum of all rows of a record.
type sums struct {
	model.Model
	list []job.Parameter
}

func (s sums) Parameters(*job.Spec) ([]job.Parameter, error) { return s.list, nil }
func (s sums) Keys(b *reader.Batch, _ int) []uint64          { return b.Keys }
func (s sums) Labels() reader.Labels                         { return reader.LabelReal }
func (s sums) Predict(st *model.Step, out []float64) {
	if len(st.Tables[0].Rows) != 3*len(st.Tables[0].Keys) {
		panic("rows and keys differ")
	}
	for i := range out {
		out[i] = 0
		for _, slot := range st.Tables[0].Slots[st.Batch.Offsets[i]:st.Batch.Offsets[i+1]] {
			var sum float32
			for _, v := range st.Tables[0].Rows[slot*3 : slot*3+3] {
				sum += v
			}
			out[i] += float64(sum)
		}
	}
}

func TestModelsThatCannotPredict(t *testing.T) {
	t.Parallel()
	counts := source{0: {Counts: []uint64{1}}, 1: {}}
	_, err := Load(save(t, ".npz", "job: j\ndata: {train: [x]}\nmodel: {type: count}\n", nil, counts))
	require.ErrorIs(t, err, ErrModel)
	require.ErrorContains(t, err, "count predicts nothing")
	own := []job.Parameter{{Name: "bias"}, {Name: "other", Sparse: true, Dim: 1}}
	values, _ := weights(3)
	_, err = Load(save(t, ".npz", "job: j\ndata: {train: [x]}\nmodel: {type: mine}\n", own, values))
	require.ErrorIs(t, err, ErrModel)
	require.ErrorIs(t, err, model.ErrUnknown)
	_, err = Load(save(t, ".npz", libsvmSpec, own, values))
	require.ErrorContains(t, err, `"other" in the file and "weights" in this program`)
	_, err = Load(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestScoringAllocatesNothing in steady state.
func TestScoringAllocatesNothing(t *testing.T) {
	if raced.Enabled {
		t.Skip("the race detector empties pools")
	}
	values, _ := weights(1000)
	m, err := Load(save(t, ".npz", libsvmSpec, nil, values))
	require.NoError(t, err)
	lines, err := m.Lines(LineOptions{})
	require.NoError(t, err)
	keys, text := []uint64{3, 6, 9, 900, 2}, []byte("3:1 6:2 9:1 900:4")
	require.Less(t, testing.AllocsPerRun(1000, func() {
		m.Score(keys, nil)
		_, _ = lines.Score(text)
	}), 1.0)
}

// TestDependencies: scoring needs neither etcd nor gRPC, nor any part of
// starfish that speaks to the network.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.True(t, slices.Contains(deps, "starfish/reader"))
	for _, d := range deps {
		for _, no := range []string{"go.etcd.io", "google.golang.org", "starfish/pserver", "starfish/internal/transport", "net/http", "logrus"} {
			require.NotContains(t, d, no)
		}
	}
}

// BenchmarkScore is the latency of one record: keys that are in the model, of
// a table that does not fit the cache, all of them different from call to call.
func BenchmarkScore(b *testing.B) {
	for _, rows := range []int{100_000, 3_000_000} {
		values, _ := weights(rows)
		path := save(b, ".npz", "job: j\ndata: {train: [x]}\nmodel: {type: logistic}\n", nil, values)
		m, err := Load(path)
		require.NoError(b, err)
		lines, err := m.Lines(LineOptions{})
		require.NoError(b, err)
		for _, n := range []int{14, 39} {
			const records = 4096
			keys, texts := make([][]uint64, records), make([][]byte, records)
			rng := rand.New(rand.NewPCG(1, 1))
			for i := range keys {
				for range n {
					keys[i] = append(keys[i], 3*rng.Uint64N(uint64(rows)))
					texts[i] = fmt.Appendf(texts[i], "%d:1 ", keys[i][len(keys[i])-1])
				}
			}
			b.Run(fmt.Sprintf("rows=%d/keys=%d", rows, n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					m.Score(keys[i%records], nil)
				}
			})
			b.Run(fmt.Sprintf("rows=%d/line=%d", rows, n), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := lines.Score(texts[i%records]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
