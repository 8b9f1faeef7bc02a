package client

import "fmt"

// Batch is the part of the model that one batch of records touches: whole
// dense tensors, and the rows of the distinct keys of each table. It is laid
// out so that each shard's part is contiguous and travels as it lies.
//
// Its life is Prepare, a call that pulls it, the computation of the gradient,
// a call that pushes it, then Prepare again. While a call with it is under
// way (until Call.Wait has returned nil or a refusal) nobody else may touch
// it. All memory is reused.
type Batch struct {
	// Dense[i] is the value of the i-th dense parameter of the job's list, and
	// DenseGrad[i] its gradient, zeroed by Prepare.
	Dense, DenseGrad [][]float32
	// Tables[i] is the batch's view of the i-th sparse parameter.
	Tables []Table

	layout *layout
	tables []tableIndex
}

// tableIndex is where each shard's part of a table's distinct keys lies.
type tableIndex struct {
	// starts[s] is where shard s begins among the keys; starts[shards] is the end.
	starts []uint32
	// wide: the last keys did not all lie below 2^32.
	wide bool
}

func newBatch(l *layout) *Batch {
	b := &Batch{layout: l, Tables: make([]Table, len(l.tables)), tables: make([]tableIndex, len(l.tables))}
	for _, d := range l.dense {
		b.Dense = append(b.Dense, make([]float32, d.elements))
		b.DenseGrad = append(b.DenseGrad, make([]float32, d.elements))
	}
	for i, t := range l.tables {
		b.Tables[i].Dim = t.dim
		b.tables[i].starts = make([]uint32, l.shards+1)
	}
	return b
}

// Prepare lays the batch out for the key occurrences of each table. It zeroes
// the gradients; the values are those of whatever was pulled last, until the
// next pull. It panics if there is not one list of keys for each table.
func (b *Batch) Prepare(keysPerTable [][]uint64) {
	if len(keysPerTable) != len(b.Tables) {
		panic(fmt.Sprintf("client: keys for %d tables, the model has %d", len(keysPerTable), len(b.Tables)))
	}
	for _, g := range b.DenseGrad {
		clear(g)
	}
	x := b.layout.borrow()
	defer b.layout.giveBack(x)
	for i, keys := range keysPerTable {
		t := &b.Tables[i]
		t.Slots = sized(t.Slots, len(keys))
		b.tables[i].wide = x.find(keys, t.Slots, b.tables[i].wide)
		x.group(t, b.tables[i].starts)
		t.Rows = sized(t.Rows, len(t.Keys)*t.Dim)
		t.Grad = sized(t.Grad, len(t.Keys)*t.Dim)
		clear(t.Grad)
	}
}

// sized returns a slice of n elements, with s's memory if it is large enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// part is a shard's part of table i: keys [from, to).
func (b *Batch) part(i, shard int) (t *Table, from, to int) {
	x := &b.tables[i]
	return &b.Tables[i], int(x.starts[shard]), int(x.starts[shard+1])
}
