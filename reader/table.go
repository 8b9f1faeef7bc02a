package reader

import (
	"bytes"
	"math"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// table reads csv and tsv: one record a line, fields parted by a delimiter.
//
// Blanks (spaces, and tabs unless they are the delimiter) around a field are no
// part of it. In csv a field may stand in double quotes: blanks and delimiters
// in them belong to the field, and two quotes are one. In tsv quotes are
// ordinary. Bytes are taken as they are, in whatever encoding. A line of
// nothing but blanks is no record; nor is one that begins with the comment.
//
// It splits a line into cells first, and then makes each feature of its cell.
// A cell is a slice of the text, or of scratch where quotes had to be undone;
// either way at least `slack` bytes behind it are readable, so numbers are read
// without looking for their end.
type table struct {
	*parser // what it found out about the last record
	c       *Columns
	l       *layout
	// multiline: line breaks in quotes are allowed, as the chunk is the file.
	multiline bool
	// visit sees the cells of each record that has as many as there are columns.
	visit func(cells [][]byte)
	// broken: a line break in quotes was met.
	broken bool

	cells   [][]byte
	scratch []byte
	text    []byte // what is hashed
}

// The statuses of table.record besides those of parser.record.
const unclosed = full + 1 // a quote is not closed in the lines that are there

func newTable(c *Columns, l *layout, p *parser) *table {
	return &table{parser: p, c: c, l: l}
}

// record reads the record that starts at b[i]; the last complete line ends at
// b[end]. Otherwise it is like parser.record.
func (t *table) record(b []byte, i, end int, keys []uint64, vals []float32, n int) (int, int, status) {
	next, st := t.split(b, i, end)
	if st != good {
		return next, n, st
	}
	if len(t.cells) != len(t.l.names) {
		t.flaw(fieldCount, "", nil)
		t.found, t.want = len(t.cells), len(t.l.names)
		return next, n, bad
	}
	if t.visit != nil {
		t.visit(t.cells)
	}
	if !t.special() {
		return next, n, bad
	}
	o := output{keys: keys, vals: vals[:len(keys)], n: n, mask: t.mask}
	for k := range t.l.features {
		if !t.feature(&t.l.features[k], &o) {
			return next, n, bad
		}
	}
	if o.n > len(keys) {
		return i, n, full
	}
	return next, o.n, good
}

// output is where keys and values go; what finds no room is only counted.
type output struct {
	keys []uint64
	vals []float32
	n    int
	mask uint64
}

func (o *output) add(key uint64, value float32) {
	if o.n < len(o.keys) {
		o.keys[o.n], o.vals[o.n] = key&o.mask, value
	}
	o.n++
}

// split finds the cells of the record that starts at b[i].
func (t *table) split(b []byte, i, end int) (int, status) {
	t.cells, t.scratch = t.cells[:0], t.scratch[:0]
	if t.blankOrComment(b, i) {
		return i + bytes.IndexByte(b[i:], '\n') + 1, blank
	}
	delimiter := t.c.Delimiter
	for {
		for b[i] == ' ' || b[i] == '\t' && delimiter != '\t' {
			i++
		}
		if b[i] == '"' && t.c.quotes {
			var st status
			if i, st = t.quoted(b, i, end); st != good {
				return i, st
			}
		} else {
			from := i
			for b[i] != delimiter && b[i] != '\n' && b[i] != '\r' {
				i++
			}
			to := i
			for to > from && (b[to-1] == ' ' || b[to-1] == '\t') {
				to--
			}
			t.cells = append(t.cells, b[from:to])
		}
		switch b[i] {
		case delimiter:
			i++
		case '\n':
			return i + 1, good
		default: // '\r'
			for b[i] == '\r' {
				i++
			}
			if b[i] != '\n' {
				t.flaw(strayReturn, "", nil)
				return i + bytes.IndexByte(b[i:], '\n') + 1, bad
			}
			return i + 1, good
		}
	}
}

// blankOrComment tells lines that are no records.
func (t *table) blankOrComment(b []byte, i int) bool {
	if t.c.Comment != "" && bytes.HasPrefix(b[i:], []byte(t.c.Comment)) {
		return true
	}
	for b[i] == ' ' || b[i] == '\t' && t.c.Delimiter != '\t' {
		i++
	}
	for b[i] == '\r' {
		i++
	}
	return b[i] == '\n'
}

// quoted reads the field whose quote is at b[i]. It returns where the delimiter
// or the line's end is.
func (t *table) quoted(b []byte, i, end int) (int, status) {
	open := i
	i++
	from, plain := i, true
	begin := len(t.scratch)
	for {
		j := i
		for b[j] != '"' && b[j] != '\n' {
			j++
		}
		if b[j] == '\n' {
			if t.multiline && j+1 < end {
				t.broken = true
				i = j + 1
				continue
			}
			if t.multiline {
				return open, unclosed
			}
			t.flaw(quoteOpen, "", b[open:j])
			return j + 1, bad
		}
		if b[j+1] != '"' { // it is closed
			cell := b[from:j]
			if !plain {
				t.scratch = append(t.scratch, b[from:j]...)
				n := len(t.scratch)
				t.scratch = append(t.scratch, make([]byte, slack)...)
				cell = t.scratch[begin:n]
			}
			t.cells = append(t.cells, cell)
			i = j + 1
			break
		}
		t.scratch = append(t.scratch, b[from:j+1]...)
		plain = false
		i = j + 2
		from = i
	}
	for b[i] == ' ' || b[i] == '\t' && t.c.Delimiter != '\t' {
		i++
	}
	if c := b[i]; c != t.c.Delimiter && c != '\n' && c != '\r' {
		next := i + bytes.IndexByte(b[i:], '\n') + 1
		t.flaw(quoteTail, "", b[open:next-1])
		return next, bad
	}
	return i, good
}

// special reads label, weight and group.
func (t *table) special() bool {
	t.label, t.hasGroup, t.hasWeight = 0, false, false
	if k := t.l.label; k >= 0 && !t.readLabel(t.cells[k]) {
		return false
	}
	if k := t.l.weight; k >= 0 {
		cell := t.cells[k]
		v, next := number(cell[:cap(cell)], 0)
		if next != len(cell) || next == 0 || v < 0 {
			return t.flaw(weightSyntax, t.c.Weight, cell)
		}
		if t.beyond(v) {
			return t.flaw(cellTooLarge, t.c.Weight, cell)
		}
		t.weight, t.hasWeight = v, true
	}
	if k := t.l.group; k >= 0 {
		t.group, t.hasGroup = 0, true
		if cell := t.cells[k]; !t.missing(cell) {
			t.group = xxhash.Sum64(cell)
		}
	}
	return true
}

func (t *table) readLabel(cell []byte) bool {
	if v, ok := t.c.Labels[string(cell)]; ok {
		t.label = v
	} else if v, next := number(cell[:cap(cell)], 0); next == len(cell) && next > 0 {
		t.label = v
	} else {
		return t.flaw(cellLabel, t.c.Label, cell)
	}
	if t.labels == LabelBinary {
		switch t.label {
		case 0, 1:
		case -1:
			t.label = 0
		default:
			return t.flaw(cellNotBinary, t.c.Label, cell)
		}
	}
	if t.beyond(t.label) {
		return t.flaw(cellTooLarge, t.c.Label, cell)
	}
	return true
}

// missing tells cells that stand for no value.
func (t *table) missing(cell []byte) bool {
	if len(cell) == 0 {
		return true
	}
	for _, m := range t.c.Missing {
		if string(cell) == m {
			return true
		}
	}
	return false
}

// value is the cell of a column, or what stands for it; nil: there is nothing.
func (t *table) value(column int, fill []byte) []byte {
	if cell := t.cells[column]; !t.missing(cell) {
		return cell
	}
	return fill
}

// feature makes keys and values of a feature; false: the record is bad.
func (t *table) feature(f *feature, o *output) bool {
	if f.Kind == Cross {
		t.cross(f, o)
		return t.why == 0
	}
	cell := t.value(f.column, f.fill)
	if cell == nil {
		return true
	}
	switch f.Kind {
	case Categorical:
		o.add(t.hash(f.prefix, cell), 1)
	case List:
		t.list(f, cell, o)
	case Auto:
		if v, next := number(cell[:cap(cell)], 0); next == len(cell) {
			return t.add(f, v, cell, o)
		}
		o.add(t.hash(f.prefix, cell), 1)
	default:
		return t.numeric(f, cell, o)
	}
	return true
}

func (t *table) numeric(f *feature, cell []byte, o *output) bool {
	if f.Transform == None {
		v, next := number(cell[:cap(cell)], 0)
		if next != len(cell) {
			return t.flaw(cellNumber, f.Feature.column(), cell)
		}
		return t.add(f, v, cell, o)
	}
	x, ok := decimal(cell)
	if !ok {
		return t.flaw(cellNumber, f.Feature.column(), cell)
	}
	switch f.Transform {
	case Bucket:
		o.add(f.buckets[bucket(f.Bounds, x)], 1)
		return true
	case Log1p:
		x = math.Copysign(math.Log1p(math.Abs(x)), x)
	default:
		x = (x - f.Mean) / f.Stddev
	}
	v := float32(x)
	if math.IsInf(float64(v), 0) {
		return t.flaw(cellNumber, f.Feature.column(), cell)
	}
	return t.add(f, v, cell, o)
}

// add adds the value of a numeric feature, unless it is too large.
func (t *table) add(f *feature, v float32, cell []byte, o *output) bool {
	if t.beyond(v) {
		return t.flaw(cellTooLarge, f.Feature.column(), cell)
	}
	o.add(f.key, v)
	return true
}

// bucket is how many bounds are not above x.
func bucket(bounds []float64, x float64) int {
	low, high := 0, len(bounds)
	for low < high {
		if m := (low + high) / 2; bounds[m] <= x {
			low = m + 1
		} else {
			high = m
		}
	}
	return low
}

// list makes one key of each text between separators; empty ones are none.
func (t *table) list(f *feature, cell []byte, o *output) {
	n := o.n
	for rest, more := cell, true; more; {
		var item []byte
		item, rest, more = cutText(rest, f.Separator)
		if item = trimBlanks(item); len(item) > 0 {
			o.add(t.hash(f.prefix, item), 1)
		}
	}
	if !f.PoolMean {
		return
	}
	for i := n; i < min(o.n, len(o.vals)); i++ {
		o.vals[i] = 1 / float32(o.n-n)
	}
}

// cutText is bytes.Cut with a separator that is a string.
func cutText(b []byte, sep string) (before, after []byte, found bool) {
	for i := 0; i+len(sep) <= len(b); i++ {
		if string(b[i:i+len(sep)]) == sep {
			return b[:i], b[i+len(sep):], true
		}
	}
	return b, nil, false
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// hash is the key of a text.
func (t *table) hash(prefix string, text []byte) uint64 {
	t.text = append(append(t.text[:0], prefix...), text...)
	return xxhash.Sum64(t.text)
}

// cross hashes the parts joined by "^"; a part without value leaves it out.
func (t *table) cross(f *feature, o *output) {
	t.why = 0
	text := t.text[:0]
	for i := range f.parts {
		p := &f.parts[i]
		cell := t.value(p.column, p.fill)
		if cell == nil {
			return
		}
		if i > 0 {
			text = append(text, '^')
		}
		text = append(text, p.prefix...)
		if p.bounds == nil {
			text = append(text, cell...)
			continue
		}
		x, ok := decimal(cell)
		if !ok {
			t.flaw(cellNumber, t.l.names[p.column], cell)
			return
		}
		text = strconv.AppendInt(text, int64(bucket(p.bounds, x)), 10)
	}
	t.text = text
	o.add(xxhash.Sum64(text), 1)
}
