package pserver

import (
	"fmt"
	"math/bits"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// table is one sparse parameter's rows on a shard: a hash table with open
// addressing and linear probing over optimizer.Rows.
//
// A slot is one word: the upper half of the key's hash (job.Mix), and the row's
// number plus one; 0 is an empty slot, so that every key is an ordinary one.
// The lower half of the hash says where the search begins. The key itself lies
// in the row, beside the weights, so a lookup costs two cache misses, one for
// the slot and one for the row, and the index 13 to 26 bytes a row.
type table struct {
	*parameter
	rows  optimizer.Rows
	slots []uint64
	// touched has a bit for each row, all zero between pushes.
	touched []uint64
	// mark is the number of the last push that named the table.
	mark uint64
	// cut is not nil while a cut has not read all of its rows.
	cut *tableCut
}

const firstSlots = 64

func newTable(p *parameter) *table {
	t := &table{parameter: p, rows: optimizer.NewRows(p.Dim, p.opt.Words(p.Dim))}
	t.index(firstSlots)
	return t
}

// index makes the slots anew from the rows; n is a power of two.
func (t *table) index(n int) {
	t.slots = make([]uint64, n)
	for row := range uint32(t.rows.N) {
		t.enter(job.Mix(t.rows.Key(row)), row)
	}
}

// enter puts a row that is not there into the first free slot.
func (t *table) enter(hash uint64, row uint32) {
	mask := uint64(len(t.slots) - 1)
	at := hash & mask
	for t.slots[at] != 0 {
		at = (at + 1) & mask
	}
	t.slots[at] = hash>>32<<32 | uint64(row+1)
}

// reserve makes room for more rows: at most five eighths of the slots are used.
func (t *table) reserve(more int) {
	n := len(t.slots)
	for t.rows.N+more > n/8*5 {
		n *= 2
	}
	if n > len(t.slots) {
		t.index(n)
	}
}

// find writes the row number of each key, None where there is no row. It
// returns the index of the first key that has no place on this shard, or -1.
// It changes nothing.
//
// It goes over the keys twice, first to the slots and then to the rows: so the
// loads of one trip do not wait for each other, and the cache misses overlap.
func (t *table) find(keys []uint64, rows []uint32) int {
	slots, mask := t.slots, uint64(len(t.slots)-1)
	shard, of, width := uint64(t.shard), uint64(t.of), uint(t.Bits)
	if width == 0 {
		width = 64
	}
	rows = rows[:len(keys)]
	for i, key := range keys {
		hash := job.Mix(key)
		if at, _ := bits.Mul64(hash, of); at != shard || key>>width != 0 {
			return i
		}
		at := hash & mask
		slot := slots[at]
		for (slot^hash)>>32*(slot&(1<<32-1)) != 0 { // occupied, by another half
			at = (at + 1) & mask
			slot = slots[at]
		}
		rows[i] = uint32(slot) - 1 // None for an empty slot
	}
	blocks, shift, stride, inBlock := t.rows.Blocks, t.rows.Shift&31, t.rows.Stride, uint32(1)<<t.rows.Shift-1
	for i, row := range rows {
		if row != optimizer.None && optimizer.KeyOf(blocks[row>>shift][int(row&inBlock)*stride:]) != keys[i] {
			rows[i] = t.findSlowly(keys[i])
		}
	}
	return -1
}

// findSlowly is find for a key whose upper half of the hash is that of another
// key on its way, which is one in some 2^32 / S.
func (t *table) findSlowly(key uint64) uint32 {
	mask, hash := uint64(len(t.slots)-1), job.Mix(key)
	for at := hash & mask; t.slots[at] != 0; at = (at + 1) & mask {
		if row := uint32(t.slots[at]) - 1; t.rows.Key(row) == key {
			return row
		}
	}
	return optimizer.None
}

// checkKeys is find with an error.
func (t *table) checkKeys(keys []uint64, rows []uint32) error {
	if bad := t.find(keys, rows); bad >= 0 {
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
	if err := t.checkKeys(v.Keys, rows); err != nil {
		return 0, err
	}
	if t.rows.N+len(v.Keys) >= optimizer.None {
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
	one := [1]uint32{}
	t.find([]uint64{key}, one[:])
	if one[0] != optimizer.None {
		return one[0]
	}
	row, words := t.rows.Add(key)
	t.init.Row(t.rows.Weights(words), key)
	t.opt.Init(t.rows.Weights(words), t.rows.State(words))
	t.enter(job.Mix(key), row)
	if int(row)>>6 == len(t.touched) {
		t.touched = append(t.touched, 0)
	}
	return row
}

// apply updates rows that have been checked and found; batches is what the
// shard has counted before. It returns the key of the first row that became
// non-finite.
func (t *table) apply(v *wire.SparseRows, rows []uint32, batches int64) (key uint64, bad bool) {
	t.create(v.Keys, rows)
	grad := v.Values
	if !t.opt.Additive() && t.repeats(rows) {
		rows, grad = t.merge(rows, grad)
	}
	step := t.step(batches)
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
	return int64(len(t.slots)+len(t.touched))*8 + int64(len(t.rows.Blocks))*int64(t.rows.Stride)<<t.rows.Shift*4
}
