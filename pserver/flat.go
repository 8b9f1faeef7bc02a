package pserver

import (
	"fmt"
	"math"
	"slices"

	"starfish/internal/hugepage"
	"starfish/internal/kernel"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// flat is the index of a table whose key space is so small that each key has a
// place of its own, whether it has a row or not. A row's number is its key's
// place, so there is nothing to search, and a row lies there without its key.
// What a row costs is one cache miss.
type flat struct {
	*table
	*places
	// exists has a bit for each place: it has a row. A place without a row is all
	// zero.
	exists []uint32
	// blank: a new row is all zero, too. So what is not has a row.
	blank bool
	// words are rows of a checkpoint that is being loaded, group is what is known
	// of them.
	words []float32
	group struct {
		keys [loadRows]uint64
		rows [loadRows]uint32
	}
}

const (
	// flatBytes is what the flat tables of a model may take, in all shards
	// together, and half of a process's memory limit if it has one.
	flatBytes = 256 << 20
	// flatWords is the size of a flat table's row at most. In a larger one the
	// look for the row does not count.
	flatWords = 4 << 10 / 4
	// loadRows is how many rows of a checkpoint are taken at a time.
	loadRows = 32
)

// chooseFlat says which of a shard's tables are flat, and makes no memory for
// them. It takes them in the order of the list, each that fits into what is left
// of flatBytes. limit is the process's memory limit, 0 for none.
func chooseFlat(list []*parameter, limit int64) {
	left := int64(flatBytes)
	if limit > 0 {
		left = min(left, limit/2)
	}
	for _, p := range list {
		if !p.Sparse || p.Bits == 0 || p.Bits > 32 || p.Dim+p.opt.Words(p.Dim) > flatWords {
			continue
		}
		if all := p.flatBytes(1<<p.Bits) + int64(p.of)*placesBytes(p.Bits); all <= left {
			p.flat, left = true, left-all
		}
	}
}

// flatBytes is the memory of a flat table with so many places, without the
// numbers of the places.
func (p *parameter) flatBytes(places int) int64 {
	return 4*int64(places)*int64(p.Dim+p.opt.Words(p.Dim)) + 4*int64((places+31)/32)
}

// flatAtMost is at least the memory of the parameter's flat table on one shard:
// how many of the keys lie there is a matter of chance.
func (p *parameter) flatAtMost() int64 {
	all, mean := 1<<p.Bits, 1<<p.Bits/p.of
	return p.flatBytes(min(all, mean+8*int(math.Sqrt(float64(mean)))+64)) // eight deviations
}

// number gives the flat tables their places.
func number(list []*parameter) {
	for i, p := range list {
		if !p.flat {
			continue
		}
		for _, q := range list[:i] {
			if q.places != nil && q.Bits == p.Bits {
				p.places = q.places
			}
		}
		if p.places == nil {
			p.places = newPlaces(p.Bits, p.shard, p.of)
		}
	}
}

func newFlat(t *table) *flat {
	f := &flat{table: t, places: t.parameter.places}
	t.rows = optimizer.NewFlat(t.Dim, t.opt.Words(t.Dim), f.n)
	if t.zeros() {
		row := make([]float32, t.rows.Stride)
		t.opt.Init(t.rows.Weights(row), t.rows.State(row))
		f.blank = zero(row)
	}
	return f
}

// zeros tells whether a row's initial weights are zeros.
func (p *parameter) zeros() bool { return p.Init.Kind == "" || p.Init.Kind == job.InitZeros }

// allocate makes the memory, unless it is there: of a table that is about to be
// loaded there is none before the load begins.
func (f *flat) allocate() {
	if f.exists == nil {
		f.rows.Allocate(f.n)
		f.exists = make([]uint32, (f.n+31)/32)
		hugepage.Advise(f.exists)
	}
}

func (f *flat) has(place uint32) bool { return f.exists[place>>5]>>(place&31)&1 != 0 }

// mark notes that a place has a row.
func (f *flat) mark(place uint32) {
	f.exists[place>>5] |= 1 << (place & 31)
	f.rows.N++
}

func (f *flat) find(keys []uint64, rows []uint32) int { return f.places.find(keys, rows) }

func (*flat) recall([]uint64, []uint32) {}

func (f *flat) missing(rows []uint32) {
	for i, row := range rows {
		if !f.has(row) {
			rows[i] = optimizer.None
		}
	}
}

func (f *flat) create(keys []uint64, rows []uint32) {
	if f.blank {
		return // changing does it
	}
	for from, to := 0, 0; from < len(rows); from = to {
		to = kernel.Fetch(f.exists, rows, 5, from)
		for i, row := range rows[from:to] {
			if f.has(row) {
				continue
			}
			f.mark(row)
			words := f.rows.Row(row)
			f.init.Row(f.rows.Weights(words), keys[from+i])
			f.opt.Init(f.rows.Weights(words), f.rows.State(words))
		}
	}
}

// changing looks at the bits of those places only that are all zero: the rows are
// in the cache, and the bits are not.
func (f *flat) changing(rows []uint32) {
	if !f.blank {
		return
	}
	for _, row := range rows {
		if zero(f.rows.Row(row)) && !f.has(row) {
			f.mark(row)
		}
	}
}

// zero tells whether all bits are.
func zero(words []float32) bool {
	for _, x := range words {
		if math.Float32bits(x) != 0 {
			return false
		}
	}
	return true
}

func (*flat) growth([]uint32) int64 { return 0 }

func (f *flat) bytes() int64 { return f.flatBytes(f.n) }

func (f *flat) keys() []uint64 {
	keys, places := make([]uint64, f.rows.N+1), make([]uint32, f.rows.N+1)
	return keys[:f.existing(f.exists, 0, f.n, keys, places)]
}

// load takes rows of a checkpoint, and checks that each belongs here and comes
// once.
func (f *flat) load(rows []byte) error {
	f.allocate()
	stride := f.rows.Words()
	if f.words == nil {
		f.words = make([]float32, loadRows*stride)
	}
	for len(rows) > 0 {
		words := f.words[:copy(wire.Bytes(f.words), rows)/4]
		rows = rows[4*len(words):]
		n := len(words) / stride
		keys, places := f.group.keys[:n], f.group.rows[:n]
		for i := range keys {
			keys[i] = optimizer.KeyOf(words[i*stride:])
		}
		if bad := f.places.find(keys, places); bad >= 0 {
			return fmt.Errorf("%w: key %d of parameter %q does not lie on shard %d", ErrCorrupt, keys[bad], f.Name, f.shard)
		}
		for i, place := range places {
			if f.has(place) {
				return fmt.Errorf("%w: key %d of parameter %q comes twice", ErrCorrupt, keys[i], f.Name)
			}
			f.mark(place)
			copy(f.rows.Row(place), optimizer.ContentOf(words[i*stride:(i+1)*stride]))
		}
	}
	return nil
}

func (f *flat) loaded() error {
	f.allocate()
	f.words = nil
	return nil
}

// stored are the rows of a run, as a cut has read them, in the form of a
// checkpoint: with their keys, and without the places that have no row.
func (f *flat) stored(r *taken) []float32 {
	stride := f.rows.Stride
	n := len(r.words) / stride
	if len(r.keys) <= n {
		r.keys, r.places = make([]uint64, n+1), make([]uint32, n+1)
	}
	found := f.existing(r.exists, int(r.first), n, r.keys, r.places)
	r.stored = slices.Grow(r.stored[:0], found*f.rows.Words())
	for i, place := range r.places[:found] {
		r.stored = optimizer.AppendRow(r.stored, r.keys[i], r.words[int(place)*stride:][:stride])
	}
	return r.stored
}
