package optimizer

import (
	"math"
	"math/bits"

	"starfish/internal/hugepage"
	"starfish/internal/kernel"
)

// None is the number of a row that does not exist.
const None = math.MaxUint32

// keyWords is the number of words before a row's weights where the row has its
// key: the key's two halves.
const keyWords = 2

// blockWords is the size of a block of rows, 64 KiB, if a row is not larger.
const blockWords = 64 << 10 / 4

// slabWords is the size of a slab, 4 MiB: from slabFrom blocks on a table gets
// its blocks out of slabs, which lie on large pages where there are any.
const (
	slabWords = 4 << 20 / 4
	slabFrom  = slabWords / blockWords
)

// Rows is the memory of a table's rows. A row is
//
//	key (low word, high word), dim weights, the rule's words of state
//
// side by side, so that finding a row by its key brings its weights into the
// cache. Words are float32; the key's halves, and the counters of count, are
// bit patterns that are only ever moved, never calculated with. Rows lie in
// blocks, in the order of their creation, and never move.
//
// A flat table's rows (NewFlat) have no key: a row's number is its place, which
// follows from the key. All places are one block.
type Rows struct {
	// Blocks of 1<<Shift rows of Stride words each. The last one is partly used.
	Blocks [][]float32
	Shift  uint
	Stride int
	Dim    int
	// N is the number of rows. In a flat table their owner counts them.
	N int

	head int       // words before the weights
	slab []float32 // memory for the next blocks
}

// NewRows returns the empty memory for rows of dim weights and so many words
// of state.
func NewRows(dim, words int) Rows {
	r := Rows{Stride: keyWords + dim + words, Dim: dim, head: keyWords}
	for r.Stride<<(r.Shift+1) <= blockWords {
		r.Shift++
	}
	return r
}

// NewFlat returns the memory of a flat table with so many places, before
// Allocate.
func NewFlat(dim, words, places int) Rows {
	return Rows{Stride: dim + words, Dim: dim, Shift: uint(bits.Len(uint(places)))}
}

// Allocate gives a flat table's places their memory, all zero. It has to be
// called once.
func (t *Rows) Allocate(places int) {
	t.Blocks = [][]float32{make([]float32, places*t.Stride)}
	hugepage.Advise(t.Blocks[0])
}

// Row returns a row's words.
func (t *Rows) Row(row uint32) []float32 {
	at := int(row&(1<<t.Shift-1)) * t.Stride
	return t.Blocks[row>>t.Shift][at : at+t.Stride : at+t.Stride]
}

// Key returns a row's key. Not of a flat table.
func (t *Rows) Key(row uint32) uint64 { return KeyOf(t.Row(row)) }

// KeyOf returns the key in a row's first words.
func KeyOf(row []float32) uint64 {
	_ = row[1]
	return uint64(math.Float32bits(row[0])) | uint64(math.Float32bits(row[1]))<<32
}

// Weights and State return the parts of a row.
func (t *Rows) Weights(row []float32) []float32 { return row[t.head : t.head+t.Dim] }

// State returns the words behind the weights.
func (t *Rows) State(row []float32) []float32 { return row[t.head+t.Dim:] }

// Content returns what of a row may change: its weights and state.
func (t *Rows) Content(row []float32) []float32 { return row[t.head:] }

// Words is the number of words of a row with its key, as in a checkpoint.
func (t *Rows) Words() int { return keyWords + t.Stride - t.head }

// AppendRow appends a row as it lies in a checkpoint.
func AppendRow(to []float32, key uint64, content []float32) []float32 {
	to = append(to, math.Float32frombits(uint32(key)), math.Float32frombits(uint32(key>>32)))
	return append(to, content...)
}

// ContentOf is what lies behind the key in a row of a checkpoint.
func ContentOf(row []float32) []float32 { return row[keyWords:] }

// Add makes a row for the key, zeroed, and returns its number and words. The
// caller keeps N below None.
func (t *Rows) Add(key uint64) (uint32, []float32) {
	row := uint32(t.N)
	words := t.Grow(1)
	words[0] = math.Float32frombits(uint32(key))
	words[1] = math.Float32frombits(uint32(key >> 32))
	return row, words[:t.Stride:t.Stride]
}

// Grow makes up to n > 0 rows, fewer where a block ends, and returns their
// words, zeroed, for the caller to fill.
func (t *Rows) Grow(n int) []float32 {
	at := t.N & (1<<t.Shift - 1)
	if at == 0 {
		t.Blocks = append(t.Blocks, t.block())
	}
	n = min(n, 1<<t.Shift-at)
	t.N += n
	return t.Blocks[len(t.Blocks)-1][at*t.Stride : (at+n)*t.Stride]
}

// block returns the memory of a new block.
func (t *Rows) block() []float32 {
	size := t.Stride << t.Shift
	if len(t.slab) == 0 {
		if len(t.Blocks) < slabFrom || 2*size > slabWords {
			return make([]float32, size)
		}
		t.slab = make([]float32, slabWords/size*size)
		hugepage.Advise(t.slab)
	}
	block := t.slab[:size:size]
	t.slab = t.slab[size:]
	return block
}

// Bytes is the memory of the rows, and what is at hand for more.
func (t *Rows) Bytes() int64 {
	return 4 * (int64(len(t.Blocks))*int64(t.Stride)<<t.Shift + int64(len(t.slab)))
}

// Growth is how many bytes more Bytes will be after so many rows have been added.
func (t *Rows) Growth(more int) int64 {
	size := t.Stride << t.Shift
	blocks, words, left := len(t.Blocks), 0, len(t.slab)/size
	for need := (t.N+more+1<<t.Shift-1)>>t.Shift - blocks; need > 0; need-- {
		switch {
		case left > 0:
			left--
		case blocks < slabFrom || 2*size > slabWords:
			words += size
		default:
			left = slabWords/size - 1
			words += slabWords / size * size
		}
		blocks++
	}
	return 4 * int64(words)
}

// Fetch goes through rows in groups; see kernel.Fetch.
func (t *Rows) Fetch(rows []uint32, from int) (to int) {
	return kernel.FetchRows(t.Blocks, rows, t.Shift, t.Stride, from)
}

// Append appends the words of n rows, from a row on, as they lie in memory.
func (t *Rows) Append(to []float32, first, n uint32) []float32 {
	for n > 0 {
		at := first & (1<<t.Shift - 1)
		here := min(n, 1<<t.Shift-at)
		to = append(to, t.Blocks[first>>t.Shift][int(at)*t.Stride:int(at+here)*t.Stride]...)
		first, n = first+here, n-here
	}
	return to
}

// plain is the reading of rules whose weights are the values.
type plain struct{}

func (plain) Additive() bool { return false }

func (plain) ReadDense(dst, w, _ []float32) { copy(dst, w) }

func (plain) ReadRows(dst []float32, t *Rows, rows []uint32) {
	if t.Dim == 1 {
		t.read1(dst, rows)
		return
	}
	dim := t.Dim
	for i, row := range rows {
		if row != None {
			copy(dst[i*dim:(i+1)*dim], t.Content(t.Row(row)))
		}
	}
}

func (t *Rows) read1(dst []float32, rows []uint32) {
	blocks, shift, stride, head, mask := t.Blocks, t.Shift&31, t.Stride, t.head, uint32(1)<<t.Shift-1
	dst = dst[:len(rows)]
	for i, row := range rows {
		if row != None {
			dst[i] = blocks[row>>shift][int(row&mask)*stride+head]
		}
	}
}

// gathered is how many rows are gathered at a time.
const gathered = 64

// gather2 reads the first two words behind the key, of rows that exist.
func (t *Rows) gather2(rows []uint32, x, y []float32) {
	blocks, shift, stride, head, mask := t.Blocks, t.Shift&31, t.Stride, t.head, uint32(1)<<t.Shift-1
	x, y = x[:len(rows)], y[:len(rows)]
	for i, row := range rows {
		words := blocks[row>>shift][int(row&mask)*stride+head:]
		x[i], y[i] = words[0], words[1]
	}
}

// scatter2 writes what gather2 reads.
func (t *Rows) scatter2(rows []uint32, x, y []float32) {
	blocks, shift, stride, head, mask := t.Blocks, t.Shift&31, t.Stride, t.head, uint32(1)<<t.Shift-1
	x, y = x[:len(rows)], y[:len(rows)]
	for i, row := range rows {
		words := blocks[row>>shift][int(row&mask)*stride+head:]
		words[0], words[1] = x[i], y[i]
	}
}
