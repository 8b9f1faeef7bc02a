package pserver

import (
	"fmt"
	"math"

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
	exists []uint64
	// blank: a new row is all zero, too.
	blank bool
	// words are rows of a checkpoint that is being loaded, group is what is known
	// of them.
	words []float32
	group struct {
		keys [ahead]uint64
		rows [ahead]uint32
	}
}

const (
	// flatBytes is what the flat tables of a model may take, in all shards
	// together, and half of a process's memory limit if it has one.
	flatBytes = 256 << 20
	// flatWords is the size of a flat table's row at most. In a larger one the
	// look for the row does not count.
	flatWords = 4 << 10 / 4
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
	return 4*int64(places)*int64(p.Dim+p.opt.Words(p.Dim)) + 2*8*int64((places+63)/64)
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
		f.blank = true
		for _, b := range wire.Bytes(row) {
			f.blank = f.blank && b == 0
		}
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
		f.exists, f.touched = make([]uint64, (f.n+63)/64), make([]uint64, (f.n+63)/64)
	}
}

func (f *flat) find(keys []uint64, rows []uint32) int { return f.places.find(keys, rows) }

func (*flat) recall([]uint64, []uint32) {}

func (f *flat) missing(rows []uint32) {
	for i, row := range rows {
		if f.exists[row>>6]>>(row&63)&1 == 0 {
			rows[i] = optimizer.None
		}
	}
}

func (f *flat) create(keys []uint64, rows []uint32) {
	exists, n := f.exists, uint64(0)
	if f.blank {
		for _, row := range rows {
			w := &exists[row>>6]
			n += ^*w >> (row & 63) & 1
			*w |= 1 << (row & 63)
		}
		f.rows.N += int(n)
		return
	}
	for i, row := range rows {
		if exists[row>>6]>>(row&63)&1 != 0 {
			continue
		}
		exists[row>>6] |= 1 << (row & 63)
		f.rows.N++
		words := f.rows.Row(row)
		f.init.Row(f.rows.Weights(words), keys[i])
		f.opt.Init(f.rows.Weights(words), f.rows.State(words))
	}
}

func (*flat) growth([]uint32) int64 { return 0 }

func (f *flat) bytes() int64 { return f.flatBytes(f.n) }

func (f *flat) keys() []uint64 {
	return f.appendKeys(make([]uint64, 0, f.rows.N), f.exists, 0, f.n)
}

// load takes rows of a checkpoint, and checks that each belongs here and comes
// once.
func (f *flat) load(rows []byte) error {
	f.allocate()
	stride := f.rows.Words()
	if f.words == nil {
		f.words = make([]float32, ahead*stride)
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
			if f.exists[place>>6]>>(place&63)&1 != 0 {
				return fmt.Errorf("%w: key %d of parameter %q comes twice", ErrCorrupt, keys[i], f.Name)
			}
			f.exists[place>>6] |= 1 << (place & 63)
			copy(f.rows.Row(place), optimizer.ContentOf(words[i*stride:(i+1)*stride]))
		}
		f.rows.N += n
	}
	return nil
}

func (f *flat) loaded() error {
	f.allocate()
	f.words = nil
	return nil
}

// stored are the rows of a run, as a cut reads them, in the form of a checkpoint:
// with their keys, and without the places that have no row.
func (f *flat) stored(to []float32, keys []uint64, exists []uint64, words []float32) []float32 {
	stride := f.rows.Stride
	for i := range len(words) / stride {
		if exists[i>>6]>>(i&63)&1 != 0 {
			to = optimizer.AppendRow(to, keys[0], words[i*stride:(i+1)*stride])
			keys = keys[1:]
		}
	}
	return to
}
