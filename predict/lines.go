package predict

import (
	"errors"
	"fmt"
	"sync"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer/data"
)

// ErrRecord: a line is no record.
var ErrRecord = errors.New("bad record")

// LineOptions say what is in a line.
type LineOptions struct {
	// Format is libsvm, csv or tsv. Default: the one of the spec.
	Format string
	// Columns are the names of the fields of csv and tsv, in their order; those
	// of label, weight and group may be among them or not. Default: the spec's
	// data.csv.columns, without the label if Labels is not set.
	Columns []string
	// Labels: libsvm lines begin with a label, and a label that is no number
	// makes a line a bad one. Without it no labels are read.
	Labels bool
}

// Lines scores records that come as lines of text. It is safe for concurrent
// use.
type Lines struct {
	m      *Model
	layout *reader.Layout
	o      reader.Options
	pool   sync.Pool // of *line
}

type line struct {
	text  *reader.Text
	batch reader.Batch
	flaws []reader.Flaw
	out   [1]float64
}

// Lines prepares to score lines.
func (m *Model) Lines(o LineOptions) (*Lines, error) {
	spec := m.meta.Spec
	format := o.Format
	if format == "" {
		format = spec.Data.Format
	}
	l := &Lines{m: m, o: m.Options()}
	if format == job.FormatLibsvm {
		if !o.Labels {
			l.o.Labels = reader.LabelNone
		}
		return l, nil
	}
	c, err := m.Columns(format, o.Labels)
	if err != nil {
		return nil, err
	}
	names := o.Columns
	if names == nil {
		for _, name := range spec.Data.CSV.Columns {
			if o.Labels || name != spec.Data.Label {
				names = append(names, name)
			}
		}
	}
	if names == nil {
		return nil, fmt.Errorf("predict: %w: the model does not know the order of the columns; name them", reader.ErrColumns)
	}
	if l.layout, err = reader.NamedLayout(format, c, names); err != nil {
		return nil, fmt.Errorf("predict: %w", err)
	}
	return l, nil
}

// Columns is how package reader must read records with columns, in the format
// csv or tsv: those of label, weight and group may be missing, and without
// labels they are not read.
func (m *Model) Columns(format string, labels bool) (reader.Columns, error) {
	spec := m.meta.Spec
	if !spec.Data.HasColumns() {
		return reader.Columns{}, fmt.Errorf("predict: %w: the model was trained on %s, whose keys have no columns; %s cannot be read", reader.ErrColumns, spec.Data.Format, format)
	}
	c, err := data.Columns(spec)
	if err != nil {
		return c, fmt.Errorf("predict: %w", err)
	}
	if format != spec.Data.Format {
		c.Delimiter = 0
	}
	c.Optional, c.Unlabelled = true, !labels
	return c, nil
}

// Score predicts the record of one line, with or without its end. A line that
// is none is an ErrRecord that says why.
func (l *Lines) Score(text []byte) (float64, error) {
	s, ok := l.pool.Get().(*line)
	if !ok {
		s = &line{text: reader.NewText(l.layout, l.o)}
	}
	defer l.pool.Put(s)
	s.batch.Reset()
	var err error
	s.flaws, err = s.text.Parse(text, &s.batch, s.flaws[:0])
	switch {
	case err != nil:
		return 0, fmt.Errorf("predict: %w: %w", ErrRecord, err)
	case len(s.flaws) > 0:
		return 0, fmt.Errorf("predict: %w: %s", ErrRecord, s.flaws[0].Reason)
	case s.batch.Records() != 1:
		return 0, fmt.Errorf("predict: %w: %d records in one line", ErrRecord, s.batch.Records())
	}
	l.m.Predict(&s.batch, s.out[:])
	return s.out[0], nil
}
