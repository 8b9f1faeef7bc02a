package reader

import (
	"context"
	"math"
)

// Value is one value of a record.
type Value struct {
	Key   uint64
	Value float32
}

// Trace says where the records of a batch come from.
type Trace struct {
	File string
	// First and Last are the lines between which the records lie; 0 where they
	// are too deep in the file to be counted. With Shuffle that is the window
	// within which they were permuted.
	First, Last int64
	// Lines has, for each value that was asked for, the line of the first record
	// there that has it; 0 where that is unknown.
	Lines []int64
	// Columns has the columns of values whose key is that of a numeric feature;
	// empty for others.
	Columns []string
}

// Trace finds where the records of batch n of a chunk come from, and which
// records have the values. It reads the chunk again, which is meant for errors;
// o must be as the batch was read.
func (p *Plan) Trace(ctx context.Context, chunk, n int64, o Options, values []Value) (*Trace, error) {
	from := n * int64(o.Batch)
	to := from + int64(o.Batch)
	if o.Shuffle {
		from = from / Window * Window
		to = (to + Window - 1) / Window * Window
	}
	o.MaxBad = math.MaxInt
	r, err := p.Open(ctx, chunk, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	t := &Trace{File: r.path, Lines: make([]int64, len(values)), Columns: make([]string, len(values))}
	for i, v := range values {
		if r.plan.columns != nil {
			t.Columns[i] = r.table.l.numeric(v.Key, r.parser.mask)
		}
	}
	var end int64 // of the last record
	for i := int64(0); i < to; i++ {
		r.window.Reset()
		if err := r.parse(&r.window, 1); err != nil {
			return t, err
		}
		if r.window.Records() == 0 {
			break
		}
		if i < from {
			continue
		}
		line := func() int64 { return r.place(r.src.offset()-1, "").Line } // the record's line break
		if i == from {
			t.First = line()
		}
		for k, v := range values {
			if t.Lines[k] == 0 && r.window.has(v) {
				t.Lines[k] = line()
			}
		}
		end = r.src.offset() - 1
	}
	t.Last = r.place(end, "").Line
	return t, nil
}

// has tells whether the batch has a value.
func (b *Batch) has(v Value) bool {
	for i, k := range b.Keys {
		if k == v.Key && b.Values[i] == v.Value {
			return true
		}
	}
	return false
}

// numeric is the column of the numeric feature with this key, "" without one.
func (l *layout) numeric(key, mask uint64) string {
	for i := range l.features {
		f := &l.features[i]
		if (f.Kind == Numeric || f.Kind == Auto) && f.Transform != Bucket && f.key&mask == key {
			return f.Feature.column()
		}
	}
	return ""
}
