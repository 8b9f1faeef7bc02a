package reader

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
)

// parser reads libsvm text: one record a line,
//
//	label [qid:group] key[:value] … [# comment]
//
// with blanks (spaces, tabs) between, before and after, CRLF or LF at the end.
// A key without value has the value 1; a key may occur more than once. Lines
// without anything but blanks and comment are no records.
//
// It is a hand-written state machine because reading text is the largest cost
// of sparse training: eight digits are read at once, and a value that is
// written ":1" costs one comparison. The text must be followed by at least
// `slack` readable bytes, and the line it starts in must end with '\n'.
type parser struct {
	mask   uint64 // keys are taken & mask
	labels Labels
	limit  float32 // of absolute values; 0: none

	// What the last record had besides its values.
	label    float32
	group    uint64
	hasGroup bool
	// weight, of formats that have one.
	weight    float32
	hasWeight bool
	// Why the last record is bad, and the text that makes it so.
	why      defect
	from, to int
	// More about it, of formats with columns: the cell and its column, the
	// number of fields.
	culprit     []byte
	column      string
	found, want int
}

// newParser takes from the options what says what a record is.
func newParser(o Options) parser {
	p := parser{mask: math.MaxUint64, labels: o.Labels, limit: o.MaxValue}
	if o.Bits > 0 {
		p.mask = 1<<o.Bits - 1
	}
	return p
}

// slack is how many bytes after the text the parser may look at.
const slack = 16

// status is the outcome of one line.
type status int

const (
	good  status = iota
	blank        // no record
	bad          // a record that cannot be used
	full         // no more room for values: make some and read the line again
)

// Eight bytes at a time: the digit '0' in each, what makes a byte above 9
// overflow into its high bit, and the high bits.
const (
	zeros = 0x3030303030303030
	above = 0x7676767676767676
	highs = 0x8080808080808080
)

// eightDigits is the number of eight decimal digits, the first in the lowest
// byte. See D. Lemire, "Number Parsing at a Gigabyte per Second", 2021.
func eightDigits(t uint64) uint64 {
	const mask, mul1, mul2 = 0x000000ff000000ff, 100 + 1000000<<32, 1 + 10000<<32
	t = t*10 + t>>8
	return (t&mask*mul1 + t>>16&mask*mul2) >> 32
}

// record reads the line that starts at b[i]. It writes its values from place n
// on and returns where the next line starts and how many values there are now.
// len(vals) must not be below len(keys).
func (p *parser) record(b []byte, i int, keys []uint64, vals []float32, n int) (int, int, status) {
	const one, oneEnd = ':' | '1'<<8 | ' '<<16, ':' | '1'<<8 | '\n'<<16
	p.hasGroup = false
	if p.labels == LabelNone {
		var st status
		if i, st = p.noLabel(b, i); st != good {
			return p.skip(b, i), n, st
		}
	} else if c := b[i] - '0'; c <= 1 && b[i+1] == ' ' {
		p.label = float32(c)
		i++
	} else if b[i+1] == '1' && b[i+2] == ' ' && (b[i] == '+' || b[i] == '-') {
		p.label = 1
		if b[i] == '-' {
			p.label = p.minusOne()
		}
		i += 2
	} else {
		var st status
		if i, st = p.readLabel(b, i); st != good {
			return p.skip(b, i), n, st
		}
	}
	if b[i] == ' ' {
		i++
	}
	mask := p.mask
	vals = vals[:len(keys)]
	for {
		for n < len(keys) { // as long as tokens are like "12345678:1 "
			t := binary.LittleEndian.Uint64(b[i:]) ^ zeros
			digits := bits.TrailingZeros64(((t+above)|t)&highs) >> 3
			x := binary.LittleEndian.Uint32(b[i+digits:]) & 0xffffff
			if x != one && x != oneEnd || digits == 0 {
				break
			}
			keys[n] = eightDigits(t<<(64-8*digits)) & mask
			vals[n] = 1
			n++
			i += digits + 3
			if x == oneEnd {
				return i, n, good
			}
		}
		if b[i] == '\n' {
			return i + 1, n, good
		}
		if n >= len(keys) {
			return i, n, full
		}
		var e entry
		if i, e = p.token(b, i); !e.ok {
			return p.skip(b, i), n, bad
		}
		if e.has {
			keys[n], vals[n] = e.key&mask, e.value
			n++
		}
		if b[i] == ' ' {
			i++
		}
	}
}

// skip finds the start of the next line.
func (p *parser) skip(b []byte, i int) int { return i + bytes.IndexByte(b[i:], '\n') + 1 }

// noLabel finds where the first entry of a line without label begins. An entry
// without colon could be a label: it is not taken for a key.
func (p *parser) noLabel(b []byte, i int) (int, status) {
	p.label = 0
	for b[i] == ' ' || b[i] == '\t' {
		i++
	}
	if isEnd(b, i) {
		return i, blank
	}
	if end := tokenEnd(b, i); end > i && bytes.IndexByte(b[i:end], ':') < 0 {
		return p.defect(labelThere, i, end)
	}
	return i, good
}

func (p *parser) minusOne() float32 {
	if p.labels == LabelBinary {
		return 0
	}
	return -1
}

// readLabel reads any label. It returns where the blank after it is.
func (p *parser) readLabel(b []byte, i int) (int, status) {
	if bytes.HasPrefix(b[i:], bom) { // also in the middle, where files were put together
		i += len(bom)
	}
	for b[i] == ' ' || b[i] == '\t' {
		i++
	}
	if isEnd(b, i) {
		return i, blank
	}
	end := tokenEnd(b, i)
	if end == i {
		return p.defect(strayReturn, i, i+1)
	}
	v, next := number(b, i)
	if next != end {
		if bytes.IndexByte(b[i:end], ':') >= 0 {
			return p.defect(labelMissing, i, end)
		}
		return p.defect(labelSyntax, i, end)
	}
	if p.labels == LabelBinary {
		switch v {
		case 0, 1:
		case -1:
			v = 0
		default:
			return p.defect(labelNotBinary, i, end)
		}
	}
	if p.beyond(v) {
		return p.defect(labelTooLarge, i, end)
	}
	p.label = v
	return end, good
}

func (p *parser) defect(why defect, from, to int) (int, status) {
	p.why, p.from, p.to = why, from, to
	return from, bad
}

// entry is what a token says. It is not ok if it is broken; it has a value
// unless it is a blank, a comment or a group.
type entry struct {
	key     uint64
	value   float32
	ok, has bool
}

// token reads whatever stands at b[i]; it returns where it ends, for a comment
// and at the end of the line the '\n'.
func (p *parser) token(b []byte, i int) (int, entry) {
	switch c := b[i]; {
	case c == ' ' || c == '\t':
		return i + 1, entry{ok: true}
	case isEnd(b, i):
		return i + bytes.IndexByte(b[i:], '\n'), entry{ok: true}
	case c == '\r':
		p.defect(strayReturn, i, i+1)
		return i, entry{}
	case c == 'q' && bytes.HasPrefix(b[i:], []byte("qid:")):
		return p.qid(b, i)
	}
	key, next, why := unsigned(b, i)
	if why != 0 {
		p.defect(why, i, tokenEnd(b, i))
		return i, entry{}
	}
	if b[next] != ':' {
		if next != tokenEnd(b, next) {
			p.defect(keySyntax, i, tokenEnd(b, i))
			return i, entry{}
		}
		return next, entry{key: key, value: 1, ok: true, has: true}
	}
	end := tokenEnd(b, next)
	v, last := number(b, next+1)
	if last != end || last == next+1 {
		p.defect(valueSyntax, next+1, end)
		return i, entry{}
	}
	if p.beyond(v) {
		p.defect(valueTooLarge, i, end)
		return i, entry{}
	}
	return end, entry{key: key, value: v, ok: true, has: true}
}

// beyond tells values that are too large.
func (p *parser) beyond(v float32) bool {
	return p.limit > 0 && (v > p.limit || v < -p.limit)
}

func (p *parser) qid(b []byte, i int) (int, entry) {
	end := tokenEnd(b, i)
	g, next, why := unsigned(b, i+len("qid:"))
	if why != 0 || next != end {
		p.defect(groupSyntax, i, end)
		return i, entry{}
	}
	p.group, p.hasGroup = g, true
	return end, entry{ok: true}
}

// isEnd tells whether nothing but a comment and the line's end follows.
func isEnd(b []byte, i int) bool {
	if b[i] == '#' {
		return true
	}
	for b[i] == '\r' {
		i++
	}
	return b[i] == '\n'
}

// tokenEnd is the first blank, comment or line end from i on.
func tokenEnd(b []byte, i int) int {
	for {
		switch b[i] {
		case ' ', '\t', '\r', '\n', '#':
			return i
		}
		i++
	}
}
