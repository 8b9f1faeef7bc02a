package reader

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"starfish/internal/spell"
)

// maxHeader bounds how far into a file its first line may reach.
const maxHeader = 1 << 20

// layout is where the columns of one file lie, and what becomes of each.
type layout struct {
	names []string
	// start is the offset of the first byte behind the header.
	start int64

	label, weight, group int // columns; -1: none
	features             []feature
}

// feature is a compiled Feature.
type feature struct {
	Feature
	column int
	// prefix is what the texts behind keys begin with: "name=".
	prefix string
	// key of a numeric feature, and of each bucket.
	key     uint64
	buckets []uint64
	// fill stands for a field without value; nil: there is nothing instead.
	fill []byte
	// parts of a cross.
	parts []part
}

// part is one side of a cross: a categorical text or a bucket.
type part struct {
	column int
	prefix string
	fill   []byte
	bounds []float64 // nil: categorical
}

// layoutOf finds the layout of file i, from its first line or from memory.
func (p *Plan) layoutOf(i int, f io.ReaderAt) (*layout, error) {
	if l := p.layouts[i].Load(); l != nil {
		return l, nil
	}
	first, start, err := p.columns.firstLine(f, p.oneChunk(i))
	if err != nil {
		return nil, err
	}
	l, err := p.columns.layout(first)
	if err != nil {
		return nil, err
	}
	l.start = start
	p.layouts[i].Store(l)
	return l, nil
}

// firstLine is the fields of the first line of a file that is neither blank
// nor a comment, and where the data begins: behind it if it is the header,
// else with it.
func (c *Columns) firstLine(f io.ReaderAt, multiline bool) (fields []string, start int64, err error) {
	for size := sample; ; size = min(8*size, maxHeader) {
		head := make([]byte, size, size+1+slack)
		n, err := f.ReadAt(head, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		fields, start, ok, err := c.first(head[:n], n < size, multiline)
		if ok || err != nil {
			return fields, start, err
		}
		if size == maxHeader {
			return nil, 0, fmt.Errorf("%w: the first line does not end within %d MiB", ErrColumns, maxHeader>>20)
		}
	}
}

// bom is what some programs put before UTF-8.
var bom = []byte("\xef\xbb\xbf")

// first is firstLine in the file's first bytes; all tells that there are no
// more. It is not ok if the line does not end there.
func (c *Columns) first(text []byte, all, multiline bool) (fields []string, start int64, ok bool, err error) {
	i := 0
	if bytes.HasPrefix(text, bom) {
		i = len(bom)
	}
	if c.Names != nil {
		return c.Names, int64(i), true, nil
	}
	if all {
		text = append(text, '\n')
	}
	end := bytes.LastIndexByte(text, '\n') + 1
	text = append(text[:end], make([]byte, slack)...)
	t := newTable(c, nil, &parser{})
	t.multiline = multiline
	for i < end {
		next, st := t.split(text, i, end)
		switch {
		case st == blank:
			i = next
			continue
		case st == bad:
			return nil, 0, false, fmt.Errorf("%w: the first line: %s", ErrColumns, t.reason())
		case st == unclosed && all:
			return nil, 0, false, fmt.Errorf("%w: the first line: a quote in it is never closed", ErrColumns)
		case st == unclosed:
			return nil, 0, false, nil
		}
		for _, cell := range t.cells {
			fields = append(fields, string(cell))
		}
		if c.Header {
			return fields, int64(next), true, nil
		}
		return fields, int64(i), true, nil
	}
	return nil, int64(end), all, nil
}

var errTwice = errors.New("more than one is called")

// layout finds the columns that the first line names.
func (c *Columns) layout(first []string) (*layout, error) {
	l := &layout{names: slices.Clone(first)}
	if !c.Header && c.Names == nil {
		clear(l.names) // what is there is a record
	}
	index := make(map[string]int, len(l.names))
	var twice []string
	for i, name := range l.names {
		if name == "" {
			name = fmt.Sprintf("c%d", i+1)
			l.names[i] = name
		}
		if _, has := index[name]; has {
			twice = append(twice, name)
		}
		index[name] = i
	}
	if len(twice) > 0 {
		return nil, fmt.Errorf("%w: %w %s; rename all but one", ErrColumns, errTwice, quoted(twice))
	}
	if len(first) == 0 { // a file without any line
		return l, nil
	}
	find := &finder{index: index, lenient: c.Optional || c.Unlabelled}
	l.label, l.weight, l.group = find.optional(c.Label), find.optional(c.Weight), find.optional(c.Group)
	features := c.Features
	if features == nil {
		for i, name := range l.names {
			if i != l.label && i != l.weight && i != l.group {
				features = append(features, Feature{Name: name})
			}
		}
	}
	if c.Unlabelled {
		l.label, l.weight, l.group = -1, -1, -1
	}
	byName := make(map[string]Feature)
	for _, f := range features {
		byName[f.Name] = f
	}
	for _, f := range features {
		l.features = append(l.features, find.feature(f, byName))
	}
	if len(find.lacks) > 0 {
		return nil, fmt.Errorf("%w: there is no column %s among %s%s", ErrColumns, quoted(find.lacks), quoted(l.names), c.lacking(find.lacks, l.names))
	}
	return l, nil
}

// lacking is advice, as the rest of a sentence, about columns that are not
// among those of a file.
func (c *Columns) lacking(lacks, names []string) string {
	word, known := strings.ToLower(lacks[0]), lower(names)
	near := spell.Nearest(word, known)
	if slices.Contains(known, word) {
		near = word
	}
	if near != "" {
		if name := names[slices.Index(known, near)]; utf8.ValidString(name) {
			return fmt.Sprintf("; did you mean %q?", name)
		}
	}
	if slices.ContainsFunc(names, func(name string) bool { return !utf8.ValidString(name) && !strings.Contains(name, "\x00") }) {
		return "; the names are not in UTF-8, as the spec is: " + notUTF8
	}
	for _, name := range names {
		if _, number := decimal(padded(name)); number && c.Header {
			return "; if that is no header set data.csv.header: false"
		}
	}
	return ""
}

// notUTF8 is what helps.
const notUTF8 = "convert the file, for example with iconv -f LATIN1 -t UTF-8"

func lower(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.ToLower(name)
	}
	return out
}

// quoted lists names, the first few of many.
func quoted(names []string) string {
	const most = 20
	var s strings.Builder
	for i, name := range names {
		if i == most {
			fmt.Fprintf(&s, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			s.WriteString(", ")
		}
		fmt.Fprintf(&s, "%q", name)
	}
	return s.String()
}

// finder looks columns up and remembers those that are not there.
type finder struct {
	index map[string]int
	lacks []string
	// lenient: what is optional may be missing.
	lenient bool
}

func (f *finder) column(name string) int {
	i, ok := f.index[name]
	if !ok && !slices.Contains(f.lacks, name) {
		f.lacks = append(f.lacks, name)
	}
	return i
}

func (f *finder) optional(name string) int {
	if _, ok := f.index[name]; name == "" || !ok && f.lenient {
		return -1
	}
	return f.column(name)
}

func (f *finder) feature(from Feature, all map[string]Feature) feature {
	c := feature{Feature: from, prefix: from.Name + "=", key: xxhash.Sum64String(from.Name)}
	if from.Missing != "" {
		c.fill = padded(from.Missing)
	}
	if from.Transform == Bucket {
		for i := range len(from.Bounds) + 1 {
			c.buckets = append(c.buckets, xxhash.Sum64String(fmt.Sprintf("%s=%d", from.Name, i)))
		}
	}
	if from.Kind != Cross {
		c.column = f.column(from.column())
		return c
	}
	for _, name := range from.Parts {
		// A part that is no feature is the column of that name.
		side := Feature{Name: name}
		if named, ok := all[name]; ok {
			side = named
		}
		p := part{column: f.column(side.column()), prefix: side.Name + "=", bounds: side.Bounds}
		if side.Missing != "" {
			p.fill = padded(side.Missing)
		}
		c.parts = append(c.parts, p)
	}
	return c
}

// endless stands for the size of a stream, which is not known before its end.
const endless = math.MaxInt64 / 2
