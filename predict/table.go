package predict

import (
	"math/bits"

	"starfish/internal/initial"
	"starfish/internal/modelfile"
	"starfish/job"
)

// table is a read-only sparse parameter: a hash table with open addressing and
// linear probing, with five slots for three rows. A slot is a key and its
// values; 0 is an empty slot, and the row of the key 0 lies behind the last.
type table struct {
	dim    int
	slots  uint64
	keys   []uint64
	values []float32
	zero   bool // there is a row for the key 0
	init   initial.Values
}

func newTable(p job.Parameter, seed uint64, rows int64) (*table, error) {
	t := &table{dim: p.Dim, slots: uint64(rows)*5/3 + 1}
	t.keys = make([]uint64, t.slots)
	t.values = make([]float32, (t.slots+1)*uint64(p.Dim))
	var err error
	t.init, err = initial.New(p.Init, seed, p.Name)
	return t, err
}

// add adds rows that are not there yet.
func (t *table) add(r modelfile.Run) {
	for i, key := range r.Keys {
		at := t.slots
		if key == 0 {
			t.zero = true
		} else {
			at = t.find(key, job.Mix(key))
			t.keys[at] = key
		}
		to := t.values[at*uint64(t.dim):][:t.dim]
		if r.Counts == nil {
			copy(to, r.Floats[i*t.dim:])
			continue
		}
		for k := range to {
			to[k] = float32(r.Counts[i*t.dim+k])
		}
	}
}

// find is the slot of a key other than 0, or the empty one where it belongs.
func (t *table) find(key, hash uint64) uint64 {
	at, _ := bits.Mul64(hash, t.slots)
	for t.keys[at] != key && t.keys[at] != 0 {
		if at++; at == t.slots {
			at = 0
		}
	}
	return at
}

// read copies the row of a key, or its initial value.
func (t *table) read(dst []float32, key, hash uint64) {
	at, there := t.slots, t.zero
	if key != 0 {
		at = t.find(key, hash)
		there = t.keys[at] != 0
	}
	if !there {
		t.init.Row(dst, key)
		return
	}
	copy(dst, t.values[at*uint64(t.dim):])
}
