package pserver

import (
	"fmt"

	"starfish/internal/wire"
	"starfish/pserver/optimizer"
)

// table is one sparse parameter's rows on a shard, and the index that finds
// them. The key lies in the row, beside the weights, so a lookup costs two cache
// misses, one for the slot and one for the row.
type table struct {
	*parameter
	rows optimizer.Rows
	index
	// touched has a bit for each row, all zero between pushes.
	touched []uint64
	// recent has the rows of the last pulls, missing is scratch of recall.
	recent  recent
	missing []uint32
	// mark is the number of the last push that named the table.
	mark uint64
	// cut is not nil while a cut has not read all of its rows.
	cut *tableCut
}

func newTable(p *parameter) *table {
	return &table{
		parameter: p,
		rows:      optimizer.NewRows(p.Dim, p.opt.Words(p.Dim)),
		index:     index{slots: make([]uint32, firstSlots)},
	}
}

// pulled finds the rows of a pull, and remembers them for the push to come.
func (t *table) pulled(keys []uint64, rows []uint32) error {
	bad := t.find(keys, rows)
	if bad < 0 {
		copy(t.recent.room(keys), rows)
	}
	return t.misplaced(keys, bad)
}

// pushed finds the rows of a push.
func (t *table) pushed(keys []uint64, rows []uint32) error {
	if found := t.recent.take(keys); found != nil {
		copy(rows, found)
		return t.misplaced(keys, t.recall(keys, rows))
	}
	return t.misplaced(keys, t.find(keys, rows))
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

// create makes the rows that find did not find.
func (t *table) create(keys []uint64, rows []uint32) {
	missing := 0
	for _, row := range rows {
		if row == optimizer.None {
			missing++
		}
	}
	if missing == 0 {
		return
	}
	t.reserve(missing)
	for i, row := range rows {
		if row == optimizer.None {
			rows[i] = t.add(keys[i])
		}
	}
}

// add returns the key's row, made if there is none. There must be room.
func (t *table) add(key uint64) uint32 {
	row := uint32(t.rows.N)
	if other := t.enter(t.slots, key, row); other != row {
		return other
	}
	_, words := t.rows.Add(key)
	t.init.Row(t.rows.Weights(words), key)
	t.opt.Init(t.rows.Weights(words), t.rows.State(words))
	if int(row)>>6 == len(t.touched) {
		t.touched = append(t.touched, 0)
	}
	return row
}

// apply updates rows that have been checked and found. It returns the key of
// the first row that became non-finite.
func (t *table) apply(v *wire.SparseRows, rows []uint32, now moment) (key uint64, bad bool) {
	t.create(v.Keys, rows)
	grad := v.Values
	if !t.opt.Additive() && t.repeats(rows) {
		rows, grad = t.merge(rows, grad)
	}
	step := t.step(now)
	if norm := t.Optimizer.ClipNorm; norm > 0 {
		step = step.Clipped(norm, optimizer.Squares(grad))
	}
	if t.cut != nil {
		t.cut.keep(rows)
	}
	if i := t.opt.Rows(&t.rows, rows, grad, step); i >= 0 {
		return t.rows.Key(rows[i]), true
	}
	return 0, false
}

// repeats tells whether a row comes more than once.
func (t *table) repeats(rows []uint32) bool {
	touched, twice := t.touched, uint64(0)
	for _, row := range rows {
		w := &touched[row>>6]
		twice |= *w >> (row & 63) & 1
		*w |= 1 << (row & 63)
	}
	for _, row := range rows {
		touched[row>>6] = 0
	}
	return twice != 0
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
	t.opt.ReadRows(dst[:len(rows)*dim], &t.rows, rows)
	return dst[len(rows)*dim:]
}

// bytes is the memory that the table holds.
func (t *table) bytes() int64 {
	return t.rows.Bytes() + int64(len(t.slots)+len(t.next))*4 + int64(len(t.touched))*8
}
