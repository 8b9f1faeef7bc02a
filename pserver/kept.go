package pserver

import (
	"math"
	"slices"

	"starfish/pserver/optimizer"
)

// What a cut still needs is in one of three states, for each row of a table
// and each block of a dense parameter by itself:
//
//	untouched   it is as it was at the cut; the cut will read it where it lies
//	kept        a push has changed it since; what it was has been put aside
//	read        the cut has it; pushes change it as if there were no cut
//
// The first push after the cut takes it from untouched to kept, the cut's
// reader takes it from either to read. Rows that are made after the cut are in
// none of these states: in a hashed table they have a number that the cut does not
// reach; in a flat one it is kept, with the first change of a run, which of its
// places had a row.
//
// Everything here is called under the shard's lock, but for restore.

// denseCut is what a cut still needs of a dense parameter. Its unit is a block:
// a push changes all of a block or nothing.
type denseCut struct {
	blocks []denseBlock
	// next is the first block that has not been read; kept has the words of
	// those that have been changed.
	next int
	kept map[int][]float32
}

// keep is called before a block changes.
func (c *denseCut) keep(block int) {
	if block < c.next || c.kept[block] != nil {
		return
	}
	if c.kept == nil {
		c.kept = map[int][]float32{}
	}
	c.kept[block] = slices.Clone(c.blocks[block].words)
}

// take reads the next block, into the buffer if it is still where it was. It
// returns nothing at the end.
func (c *denseCut) take(buffer []float32) []float32 {
	if c.next == len(c.blocks) {
		return nil
	}
	block := c.next
	c.next++
	if words := c.kept[block]; words != nil {
		delete(c.kept, block)
		return words
	}
	return append(buffer[:0], c.blocks[block].words...)
}

// tableCut is what a cut still needs of a table. Its unit is a row: a push
// changes some thousand of them, wherever they lie, and has to put aside no
// more than these. Rows are read a run of 1<<shift at a time, the largest that
// fits into runBytes.
type tableCut struct {
	rows *optimizer.Rows
	// flat is the table's index if it is flat.
	flat  *flat
	shift uint
	// n is the number of rows in the cut, or of a flat table's places; those below
	// next have been read.
	n, next uint32
	// runs has what was changed, by the number of the run; nil where nothing.
	runs []*changed
}

// changed has what some rows of a run were.
type changed struct {
	// kept has a bit for each row of the run.
	kept []uint64
	// exists has a bit for each place that had a row, in a flat table.
	exists []uint32
	// before holds, for each row that is kept, its place in the run and its
	// words behind the key, one after the other, in pieces of keptWords.
	before [][]float32
}

// runBytes is about what is read at one time under the lock: so little that
// pushes hardly wait for it, so much that taking the lock does not count.
const runBytes = 256 << 10

// keptWords is the size of a piece of changed.before, 4 KiB, if a row is not
// larger.
const keptWords = 4 << 10 / 4

func newTableCut(t *table) *tableCut {
	c := &tableCut{rows: &t.rows, n: uint32(t.rows.N)}
	if f, ok := t.index.(*flat); ok && c.n > 0 {
		c.flat, c.n = f, uint32(f.n)
	}
	for t.rows.Stride<<(c.shift+1) <= runBytes/4 {
		c.shift++
	}
	return c
}

// keep is called before rows change, or are made.
func (c *tableCut) keep(rows []uint32) {
	inRun := uint32(1)<<c.shift - 1
	for _, row := range rows {
		if row >= c.next && row < c.n {
			c.run(row>>c.shift).keep(row&inRun, c.rows.Content(c.rows.Row(row)))
		}
	}
}

func (c *tableCut) run(number uint32) *changed {
	for int(number) >= len(c.runs) {
		c.runs = append(c.runs, nil)
	}
	if c.runs[number] == nil {
		c.runs[number] = &changed{kept: make([]uint64, (1<<c.shift+63)/64)}
		if c.flat != nil {
			c.runs[number].exists = slices.Clone(c.exists(number << c.shift))
		}
	}
	return c.runs[number]
}

// exists are the bits of the run of a flat table from a place on. A row of such a
// table is so small that a run has 32 or more.
func (c *tableCut) exists(from uint32) []uint32 {
	all := c.flat.exists[from/32:]
	return all[:min(len(all), 1<<c.shift/32)]
}

func (r *changed) keep(place uint32, words []float32) {
	if r.kept[place>>6]>>(place&63)&1 != 0 {
		return
	}
	if r.exists != nil && r.exists[place>>5]>>(place&31)&1 == 0 {
		return // it had no row
	}
	r.kept[place>>6] |= 1 << (place & 63)
	last := len(r.before) - 1
	if last < 0 || len(r.before[last])+1+len(words) > cap(r.before[last]) {
		r.before = append(r.before, make([]float32, 0, max(keptWords, 1+len(words))))
		last++
	}
	r.before[last] = append(append(r.before[last], math.Float32frombits(place)), words...)
}

// taken is a run as a cut's reader has found it.
type taken struct {
	first  uint32
	words  []float32
	exists []uint32 // of a flat table
	// was is what has to be restored, nil if nothing.
	was *changed
	// stored, keys and places are scratch of a flat table.
	stored []float32
	keys   []uint64
	places []uint32
}

// take reads the next run as it lies in memory now. There are no words at the end.
func (c *tableCut) take(r *taken) {
	n := min(c.n-c.next, 1<<c.shift)
	r.first, r.words, r.was = c.next, c.rows.Append(r.words[:0], c.next, n), nil
	if n == 0 {
		return
	}
	if run := int(c.next >> c.shift); run < len(c.runs) {
		r.was, c.runs[run] = c.runs[run], nil
	}
	if c.flat != nil {
		r.exists = append(r.exists[:0], c.exists(c.next)...)
	}
	c.next += n
}

// restore returns the rows of a run as they were at the cut, in the form of a
// checkpoint.
func (c *tableCut) restore(r *taken) []float32 {
	if r.was != nil {
		r.was.restore(r.words, c.rows)
	}
	if c.flat == nil {
		return r.words
	}
	if r.was != nil {
		r.exists = r.was.exists
	}
	return c.flat.stored(r)
}

// restore makes the words of a run what they were at the cut.
func (r *changed) restore(words []float32, rows *optimizer.Rows) {
	for _, piece := range r.before {
		for len(piece) > 0 {
			at := int(math.Float32bits(piece[0])) * rows.Stride
			n := copy(rows.Content(words[at:at+rows.Stride]), piece[1:])
			piece = piece[1+n:]
		}
	}
}
