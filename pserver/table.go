package pserver

import (
	"fmt"
	"slices"

	"starfish/internal/wire"
	"starfish/pserver/optimizer"
)

// table is one sparse parameter's rows on a shard, and the index that finds
// them.
type table struct {
	*parameter
	rows  optimizer.Rows
	index index
	// recent has the rows of the last pulls.
	recent  recent
	repeats repeats
	// mark is the number of the last push that named the table.
	mark uint64
	// cut is not nil while a cut has not read all of its rows.
	cut *tableCut
}

// index leads from keys to rows. There are two kinds: hashed, for any keys, and
// flat, for those of a small key space. Both give the same bits, and read each
// other's checkpoints.
type index interface {
	// find writes the row number of each key. Of a key without a row this is None,
	// or the row that it would have. It returns the index of the first key that has
	// no place on this shard, or -1.
	find(keys []uint64, rows []uint32) int
	// recall brings up to date what find has said of the same keys before.
	recall(keys []uint64, rows []uint32)
	// missing writes None where there is no row.
	missing(rows []uint32)
	// create makes the rows that do not exist, and writes their numbers.
	create(keys []uint64, rows []uint32)
	// changing is called with some of these rows after the other, before they are
	// changed.
	changing(rows []uint32)
	// growth is at most how many bytes the table will take more when create has
	// made what is missing.
	growth(rows []uint32) int64
	// bytes is the memory that the table holds.
	bytes() int64
	// keys are those of all rows, sorted.
	keys() []uint64
	// load adds rows of a checkpoint. They cannot be found before loaded, which is
	// called once, also if there are none. Their errors are of ErrCorrupt.
	load(rows []byte) error
	loaded() error
	// allocate makes the memory of what has no rows yet.
	allocate()
}

func newTable(p *parameter) *table {
	t := &table{parameter: p}
	if p.flat {
		t.index = newFlat(t)
	} else {
		t.index = newHashed(t)
	}
	return t
}

// pulled finds the rows of a pull, None where there is none, and remembers them
// for the push to come. Where a row's initial values are zeros, a row of zeros
// may stand for none.
func (t *table) pulled(keys []uint64, rows []uint32) error {
	if bad := t.index.find(keys, rows); bad >= 0 {
		return t.misplaced(keys, bad)
	}
	t.recent.keep(keys, rows)
	if !t.zeros() {
		t.index.missing(rows)
	}
	return nil
}

// pushed finds the rows of a push.
func (t *table) pushed(keys []uint64, rows []uint32) error {
	if t.recent.take(keys, rows) {
		t.index.recall(keys, rows)
		return nil
	}
	return t.misplaced(keys, t.index.find(keys, rows))
}

// misplaced is the error of a find that has refused a key, if it has.
func (t *table) misplaced(keys []uint64, bad int) error {
	if bad >= 0 {
		return fmt.Errorf("%w: key %d of parameter %q does not lie on shard %d", ErrInvalid, keys[bad], t.Name, t.shard)
	}
	return nil
}

// check validates a push's rows, and finds them.
func (t *table) check(v *wire.SparseRows, rows []uint32) (optimizer.Fault, error) {
	if len(v.Values) != len(v.Keys)*t.Dim {
		return 0, fmt.Errorf("%w: %d values for %d rows of parameter %q, which have %d each",
			ErrInvalid, len(v.Values), len(v.Keys), t.Name, t.Dim)
	}
	if err := t.pushed(v.Keys, rows); err != nil {
		return 0, err
	}
	if t.rows.N+len(v.Keys) > maxRows {
		return 0, fmt.Errorf("%w: parameter %q is full with %d rows", ErrInvalid, t.Name, t.rows.N)
	}
	return t.opt.Check(v.Values), nil
}

// apply updates rows that have been checked and found. It returns the key of
// the first row that became non-finite.
func (t *table) apply(v *wire.SparseRows, rows []uint32, now moment) (key uint64, bad bool) {
	if t.cut != nil {
		t.cut.keep(rows)
	}
	t.index.create(v.Keys, rows)
	found, grad := rows, v.Values
	if !t.opt.Additive() && t.repeats.in(rows) {
		rows, grad = t.merge(rows, grad)
	}
	step := t.step(now)
	if norm := t.Optimizer.ClipNorm; norm > 0 {
		step = step.Clipped(norm, optimizer.Squares(grad))
	}
	for from, to := 0, 0; from < len(rows); from = to {
		to = t.rows.Fetch(rows, from)
		t.index.changing(rows[from:to])
		if i := t.opt.Rows(&t.rows, rows[from:to], grad[from*t.Dim:to*t.Dim], step); i >= 0 && !bad {
			key, bad = v.Keys[slices.Index(found, rows[from+i])], true
		}
	}
	return key, bad
}

// merge adds up the gradients of rows that come more than once, as if the
// trainer had: an update per batch and row, not one per mention.
func (t *table) merge(rows []uint32, grad []float32) ([]uint32, []float32) {
	dim, at := t.Dim, map[uint32]int{}
	var distinct []uint32
	var sums []float32
	for i, row := range rows {
		g := grad[i*dim : (i+1)*dim]
		j, known := at[row]
		if !known {
			at[row] = len(distinct)
			distinct, sums = append(distinct, row), append(sums, g...)
			continue
		}
		for k, x := range g {
			sums[j*dim+k] += x
		}
	}
	return distinct, sums
}

// read writes the values of rows that have been found to the front of dst, the
// initial ones where there is no row, and returns the rest of dst.
func (t *table) read(dst []float32, keys []uint64, rows []uint32) []float32 {
	dim := t.Dim
	for i, row := range rows {
		if row == optimizer.None {
			t.init.Row(dst[i*dim:(i+1)*dim], keys[i])
		}
	}
	for from, to := 0, 0; from < len(rows); from = to {
		to = t.rows.Fetch(rows, from)
		t.opt.ReadRows(dst[from*dim:to*dim], &t.rows, rows[from:to])
	}
	return dst[len(rows)*dim:]
}
