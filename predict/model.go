package predict

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"starfish/internal/modelfile"
	"starfish/job"
	"starfish/reader"
	"starfish/trainer/data"
	"starfish/trainer/model"
)

var (
	// ErrFile: the file is no model, or a damaged one.
	ErrFile = modelfile.ErrFile
	// ErrModel: the file is a model of which this program can make no
	// predictions.
	ErrModel = errors.New("no predictions from this model")
)

// Builder makes the model of a spec, as for trainer.Main.
type Builder func(spec *job.Spec) (model.Model, error)

// Model is a trained model. It is safe for concurrent use.
type Model struct {
	meta   *modelfile.Metadata
	build  Builder
	first  model.Model
	dense  [][]float32
	tables []*table
	pool   sync.Pool // of *scorer
}

// Load reads a model in any of the forms that export writes; its type must be
// a built-in one. The whole model is kept in memory.
func Load(path string) (*Model, error) { return LoadWith(path, model.New) }

// LoadWith is Load for models of users: build is called for the first time when
// the file is read, and again whenever more goroutines score at once.
func LoadWith(path string, build Builder) (*Model, error) {
	l := &loader{m: &Model{build: build}}
	if err := modelfile.Read(path, l); err != nil {
		return nil, fmt.Errorf("predict: %w", err)
	}
	return l.m, nil
}

// loader takes the model from its file.
type loader struct {
	m *Model
	// place of each parameter among the dense or the sparse ones.
	place []int
}

// Begin makes the model and the memory for its values.
func (l *loader) Begin(meta *modelfile.Metadata) error {
	m := l.m
	m.meta = meta
	var err error
	if m.first, err = m.build(meta.Spec); err != nil {
		return fmt.Errorf("%w: %w", ErrModel, err)
	}
	if p, ok := m.first.(model.PushOnly); ok && p.PushOnly() {
		return fmt.Errorf("%w: %s predicts nothing", ErrModel, meta.Spec.Model.Type)
	}
	if err := sameParameters(meta, m.first); err != nil {
		return err
	}
	l.place = make([]int, len(meta.Parameters.List))
	for i, p := range meta.Parameters.List {
		if !p.Sparse {
			l.place[i] = len(m.dense)
			m.dense = append(m.dense, make([]float32, p.Elements()))
			continue
		}
		t, err := newTable(p, meta.Parameters.Seed, meta.Rows[i])
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFile, err)
		}
		l.place[i] = len(m.tables)
		m.tables = append(m.tables, t)
	}
	return nil
}

// Run takes values.
func (l *loader) Run(parameter int, r modelfile.Run) error {
	if r.Keys != nil {
		l.m.tables[l.place[parameter]].add(r)
		return nil
	}
	to := l.m.dense[l.place[parameter]][r.First:]
	copy(to, r.Floats)
	for i, n := range r.Counts {
		to[i] = float32(n)
	}
	return nil
}

// sameParameters compares what the model asks for with what is in the file.
func sameParameters(meta *modelfile.Metadata, m model.Model) error {
	list, err := m.Parameters(meta.Spec)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrModel, err)
	}
	if len(list) != len(meta.Parameters.List) {
		return fmt.Errorf("%w: the file has %d parameters, this program's %s %d", ErrModel, len(meta.Parameters.List), meta.Spec.Model.Type, len(list))
	}
	for i, have := range meta.Parameters.List {
		want := list[i]
		if have.Name != want.Name || have.Sparse != want.Sparse || have.Dim != want.Dim || !(len(have.Shape) == 0 && len(want.Shape) == 0) && !reflect.DeepEqual(have.Shape, want.Shape) {
			return fmt.Errorf("%w: parameter %d is %q in the file and %q in this program, or of another shape", ErrModel, i, have.Name, want.Name)
		}
	}
	return nil
}

// Spec of the job that made the model. It must not be changed.
func (m *Model) Spec() *job.Spec { return m.meta.Spec }

// Job that made the model: its name and UUID.
func (m *Model) Job() (name, uuid string) { return m.meta.Job, m.meta.UUID }

// Records that the model was trained with, each counted once per pass.
func (m *Model) Records() int64 { return m.meta.Records }

// Options for package reader with which records are read as in the job; labels
// are as the model takes them.
func (m *Model) Options() reader.Options { return data.Options(m.meta.Spec, m.first.Labels()) }

// NewMetrics starts an evaluation; feed it by model.AddBatch.
func (m *Model) NewMetrics() model.Metrics { return m.first.NewMetrics() }

// Predict writes a prediction for each record of a batch to out, which must be
// as long. The batch's keys must be those of Options.
func (m *Model) Predict(b *reader.Batch, out []float64) {
	s := m.scorer()
	s.predict(m, b, out)
	m.pool.Put(s)
}

// Score predicts one record from its keys and values; nil values are all 1.
// Keys are taken as in libsvm text: modulo 2^bits if the spec says so.
func (m *Model) Score(keys []uint64, values []float32) float64 {
	s := m.scorer()
	b := &s.batch
	b.Reset()
	mask := ^uint64(0)
	if n := m.meta.Spec.Model.Bits; n > 0 {
		mask = 1<<n - 1
	}
	for i, k := range keys {
		v := float32(1)
		if values != nil {
			v = values[i]
		}
		b.Keys, b.Values = append(b.Keys, k&mask), append(b.Values, v)
	}
	b.Offsets, b.Labels = append(b.Offsets, int32(len(keys))), append(b.Labels, 0)
	s.predict(m, b, s.one[:])
	p := s.one[0]
	m.pool.Put(s)
	return p
}

// scorer is one of those that nobody uses at the moment, or a new one.
func (m *Model) scorer() *scorer {
	if s, ok := m.pool.Get().(*scorer); ok {
		return s
	}
	own, err := m.build(m.meta.Spec)
	if err != nil { // it could be built from the same spec before
		panic(fmt.Sprintf("predict: the model cannot be made a second time: %v", err))
	}
	s := &scorer{model: own}
	s.step.Dense = m.dense
	s.step.Tables = make([]model.Table, len(m.tables))
	for i, t := range m.tables {
		s.step.Tables[i].Dim = t.dim
	}
	return s
}
