package client

import (
	"fmt"
	"math/bits"

	"starfish/job"
)

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

// tableIndex is how a table's distinct keys were found and grouped.
type tableIndex struct {
	// starts[s] is where shard s begins among the keys; starts[shards] is the end.
	starts []uint32
	// found, shard and place describe the distinct keys in order of appearance.
	found []uint64
	shard []uint32
	place []uint32
	// slots is a hash table with linear probing. A slot is occupied if its
	// stamp is the current one, so nothing is ever cleared.
	slots []slot
	stamp uint32
}

type slot struct {
	key   uint64
	stamp uint32
	index uint32 // into found
}

const smallestIndex = 256

func newBatch(l *layout) *Batch {
	b := &Batch{layout: l, Tables: make([]Table, len(l.tables)), tables: make([]tableIndex, len(l.tables))}
	for _, d := range l.dense {
		b.Dense = append(b.Dense, make([]float32, d.elements))
		b.DenseGrad = append(b.DenseGrad, make([]float32, d.elements))
	}
	for i, t := range l.tables {
		b.Tables[i].Dim = t.dim
		b.tables[i].starts = make([]uint32, l.shards+1)
		b.tables[i].slots = make([]slot, smallestIndex)
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
	for i, keys := range keysPerTable {
		t, x := &b.Tables[i], &b.tables[i]
		t.Slots = sized(t.Slots, len(keys))
		x.find(keys, t.Slots, b.layout.shards)
		x.group(t)
		t.Rows = sized(t.Rows, len(t.Keys)*t.Dim)
		t.Grad = sized(t.Grad, len(t.Keys)*t.Dim)
		clear(t.Grad)
	}
}

// find fills found and shard with the distinct keys in order of appearance,
// counts the keys of each shard, and sets places[i] to where key i is in found.
func (x *tableIndex) find(keys []uint64, places []uint32, shards int) {
	x.renew()
	x.found, x.shard = x.found[:0], x.shard[:0]
	clear(x.starts)
	slots, mask, stamp := x.slots, uint64(len(x.slots)-1), x.stamp
	for i, key := range keys {
		h := job.Mix(key)
		at := h & mask
		for slots[at].stamp == stamp && slots[at].key != key {
			at = (at + 1) & mask
		}
		if slots[at].stamp == stamp {
			places[i] = slots[at].index
			continue
		}
		index := uint32(len(x.found))
		slots[at] = slot{key: key, stamp: stamp, index: index}
		places[i] = index
		s, _ := bits.Mul64(h, uint64(shards)) // job.ShardOf without mixing again
		x.found = append(x.found, key)
		x.shard = append(x.shard, uint32(s))
		x.starts[s]++
		if 2*len(x.found) > len(slots) {
			x.grow()
			slots, mask, stamp = x.slots, uint64(len(x.slots)-1), x.stamp
		}
	}
}

// group turns the counts of find into places, shard by shard, and rewrites the
// table's keys and slots by them.
func (x *tableIndex) group(t *Table) {
	sum := uint32(0)
	for s, n := range x.starts {
		x.starts[s] = sum
		sum += n
	}
	x.place = sized(x.place, len(x.found))
	t.Keys = sized(t.Keys, len(x.found))
	for i, s := range x.shard {
		p := x.starts[s]
		x.starts[s]++
		x.place[i] = p
		t.Keys[p] = x.found[i]
	}
	// Each start has moved on to the next shard's; move them back.
	copy(x.starts[1:], x.starts)
	x.starts[0] = 0
	place := x.place
	for i, p := range t.Slots {
		t.Slots[i] = place[p]
	}
}

// renew empties the hash table by a new stamp.
func (x *tableIndex) renew() {
	x.stamp++
	if x.stamp == 0 {
		clear(x.slots)
		x.stamp = 1
	}
}

// grow doubles the hash table; found knows all its keys.
func (x *tableIndex) grow() {
	x.slots = make([]slot, 2*len(x.slots))
	x.stamp = 1
	mask := uint64(len(x.slots) - 1)
	for i, key := range x.found {
		at := job.Mix(key) & mask
		for x.slots[at].stamp == x.stamp {
			at = (at + 1) & mask
		}
		x.slots[at] = slot{key: key, stamp: x.stamp, index: uint32(i)}
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
