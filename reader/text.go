package reader

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Layout says where the columns of one text lie. It may be shared.
type Layout struct {
	c         *Columns
	l         *layout
	multiline bool
}

// NewLayout finds the layout in the beginning of a text in the format CSV or
// TSV; final tells that this is all of it. It returns how many bytes to pass
// over, with the header. It is not ok if the first line does not end there.
// Line breaks in quotes are allowed if multiline.
func NewLayout(format string, columns Columns, head []byte, final, multiline bool) (l *Layout, start int, ok bool, err error) {
	c, err := columns.prepared(format)
	if err != nil {
		return nil, 0, false, err
	}
	first, at, ok, err := c.first(slices.Clone(head), final, multiline)
	if err != nil || !ok {
		return nil, 0, false, err
	}
	if c.Names != nil && c.Optional {
		if first, ok, err = c.withoutLabel(head, final, multiline); err != nil || !ok {
			return nil, 0, false, err
		}
	}
	found, err := c.layout(first)
	if err != nil {
		return nil, 0, false, err
	}
	return &Layout{c: c, l: found, multiline: multiline}, int(at), true, nil
}

// withoutLabel is the names of the columns of a text without header, whose
// label may be missing: its first line has one field less then.
func (c *Columns) withoutLabel(head []byte, final, multiline bool) ([]string, bool, error) {
	bare := *c
	bare.Names = nil
	fields, _, ok, err := bare.first(slices.Clone(head), final, multiline)
	if err != nil || !ok {
		return nil, ok, err
	}
	label := slices.Index(c.Names, c.Label)
	if label < 0 || len(fields) != len(c.Names)-1 {
		return c.Names, true, nil
	}
	return slices.Delete(slices.Clone(c.Names), label, label+1), true, nil
}

// NamedLayout is the layout of texts without header whose columns have these
// names.
func NamedLayout(format string, columns Columns, names []string) (*Layout, error) {
	columns.Header, columns.Names = false, names
	c, err := columns.prepared(format)
	if err != nil {
		return nil, err
	}
	l, err := c.layout(names)
	if err != nil {
		return nil, err
	}
	return &Layout{c: c, l: l}, nil
}

// Labelled tells whether there is a column with labels, and they are read.
func (l *Layout) Labelled() bool { return l.l.label >= 0 }

// Lacks are those of the columns Weight and Group that were named and are not
// there, though labels are read.
func (l *Layout) Lacks() []string {
	var names []string
	if l.c.Weight != "" && l.l.weight < 0 && !l.c.Unlabelled {
		names = append(names, l.c.Weight)
	}
	if l.c.Group != "" && l.l.group < 0 && !l.c.Unlabelled {
		names = append(names, l.c.Group)
	}
	return names
}

// Text reads records out of memory: pieces of a stream, or single records. It
// makes of a record what a Reader makes of it. It is not safe for concurrent
// use.
type Text struct {
	parser parser
	table  *table
	buf    []byte
}

// NewText reads libsvm text, or with a layout the columns that it says. Of the
// options only those matter that say what a record is: Bits, Labels, MaxValue.
func NewText(l *Layout, o Options) *Text {
	t := &Text{parser: newParser(o)}
	if l != nil {
		t.table = newTable(l.c, l.l, &t.parser)
		t.table.multiline = l.multiline
	}
	return t
}

// Flaw is a bad record of a text.
type Flaw struct {
	// Good is how many good records of the text come before it.
	Good int
	// Offset of its first byte in the text.
	Offset int
	Reason string
}

// Parse appends the records of a text to b and its bad ones to flaws. The text
// consists of whole records; the last line need not end. An ErrBadData says
// that records cannot be told apart any more: a quote is never closed.
func (t *Text) Parse(text []byte, b *Batch, flaws []Flaw) ([]Flaw, error) {
	if len(b.Offsets) == 0 {
		b.Reset()
	}
	end := t.load(text)
	before := b.Records()
	for pos := 0; pos < end; {
		room := min(cap(b.Keys), cap(b.Values))
		next, values, st := t.record(pos, end, b.Keys[:room], b.Values[:room], len(b.Keys))
		switch st {
		case full:
			b.grow()
			continue
		case good:
			if values > math.MaxInt32 {
				return flaws, fmt.Errorf("reader: %w: more than 2^31 values at once", ErrBadData)
			}
			b.accept(&t.parser, values)
		case bad:
			flaws = append(flaws, Flaw{Good: b.Records() - before, Offset: pos, Reason: t.reason()})
		case unclosed:
			return flaws, &OpenQuoteError{Offset: pos}
		case blank:
		}
		pos = next
	}
	return flaws, nil
}

// load copies the text to where it can be parsed, and returns its end.
func (t *Text) load(text []byte) int {
	t.buf = append(t.buf[:0], text...)
	if n := len(text); n > 0 && text[n-1] != '\n' {
		t.buf = append(t.buf, '\n')
	}
	end := len(t.buf)
	t.buf = append(t.buf, make([]byte, slack)...)
	return end
}

func (t *Text) record(pos, end int, keys []uint64, vals []float32, n int) (int, int, status) {
	if t.table != nil {
		return t.table.record(t.buf, pos, end, keys, vals, n)
	}
	return t.parser.record(t.buf, pos, keys, vals, n)
}

func (t *Text) reason() string {
	if t.table != nil {
		return t.table.reason()
	}
	return t.parser.reason(t.buf)
}

// OpenQuoteError is an ErrBadData: a quote is opened and never closed.
type OpenQuoteError struct {
	// Offset of the first byte of the record with the quote in the text.
	Offset int
}

// Error says what is wrong.
func (e *OpenQuoteError) Error() string {
	return fmt.Sprintf("%v: a quote is opened that is not closed", ErrBadData)
}

// Unwrap gives ErrBadData.
func (e *OpenQuoteError) Unwrap() error { return ErrBadData }

// whole is how many bytes of a text are whole records.
func (t *Text) whole(text []byte) int {
	end := bytes.LastIndexByte(text, '\n') + 1
	if t.table == nil || !t.table.multiline || end == 0 {
		return end
	}
	t.load(text[:end])
	pos := 0
	for pos < end {
		next, st := t.table.split(t.buf, pos, end)
		if st == unclosed {
			break
		}
		pos = next
	}
	return pos
}

// ErrTooLong: a record is longer than MaxRecord.
var ErrTooLong = errors.New("the record is longer than 64 MiB")

// Pieces cuts a stream into pieces of whole records.
type Pieces struct {
	r    io.Reader
	text *Text
	rest []byte
	err  error // what r has said
	long int   // how large the largest piece may be
}

// NewPieces reads r; rest is what has been read already. l and o are those with
// which the pieces will be parsed.
func NewPieces(r io.Reader, rest []byte, l *Layout, o Options) *Pieces {
	return &Pieces{r: r, text: NewText(l, o), rest: slices.Clone(rest), long: MaxRecord}
}

// Next writes the next piece over buf and returns it: what there is, as soon as
// it has a whole record, so that a stream that pauses holds nothing back.
// io.EOF: there is no more. ErrTooLong: a record was passed over; go on.
func (p *Pieces) Next(buf []byte) ([]byte, error) {
	buf = append(buf[:0], p.rest...)
	p.rest = p.rest[:0]
	for seen := 0; ; {
		if bytes.IndexByte(buf[seen:], '\n') >= 0 {
			if n := p.text.whole(buf); n > 0 {
				p.rest = append(p.rest, buf[n:]...)
				return buf[:n], nil
			}
		}
		seen = len(buf)
		switch {
		case p.err == nil:
		case errors.Is(p.err, io.EOF) && len(buf) > 0:
			return buf, nil
		default:
			return nil, p.err
		}
		if len(buf) > p.long {
			return nil, p.pass(buf)
		}
		buf = slices.Grow(buf, block)
		var n int
		n, p.err = p.r.Read(buf[len(buf) : len(buf)+block])
		buf = buf[:len(buf)+n]
	}
}

// pass passes over the rest of a line.
func (p *Pieces) pass(buf []byte) error {
	for {
		if i := bytes.IndexByte(buf, '\n'); i >= 0 {
			p.rest = append(p.rest[:0], buf[i+1:]...)
			return ErrTooLong
		}
		if p.err != nil {
			return ErrTooLong // and then p.err
		}
		buf = buf[:cap(buf)]
		var n int
		n, p.err = p.r.Read(buf)
		buf = buf[:n]
	}
}

// Expand lists the files behind paths as a plan does, and the names in
// directories that are passed over.
func Expand(paths []string) (files, skipped []string, err error) {
	var x expansion
	for _, path := range paths {
		x.entry(path)
	}
	return x.files, x.skipped, x.err()
}

// Content makes the content of a file readable, decompressed if its name says
// that it is compressed. Damage is an ErrBadData.
func Content(path string, f io.ReaderAt, size int64) io.ReadCloser {
	if !Compressed(path) {
		return io.NopCloser(io.NewSectionReader(f, 0, size))
	}
	return &content{stream: newStream(path, f, size)}
}

// content reads a stream from its beginning to its end.
type content struct {
	stream *stream
	at     int64
}

// Read reads on.
func (c *content) Read(b []byte) (int, error) {
	n, err := c.stream.ReadAt(b, c.at)
	c.at += int64(n)
	var d *damage
	if errors.As(err, &d) {
		err = fmt.Errorf("%w: byte %d: %w", ErrBadData, d.offset, err)
	}
	return n, err
}

// Close releases the decompressor.
func (c *content) Close() error {
	c.stream.close()
	return nil
}
