package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// InspectOptions say how a file is looked at.
type InspectOptions struct {
	// Format of the file; empty: guessed by its name and first lines.
	Format string
	// Delimiter between fields; 0: guessed.
	Delimiter byte
	// Header: whether the first line names the columns; nil: guessed.
	Header *bool
	// Comment begins lines that are passed over.
	Comment string
	// Records to look at; 0: all.
	Records int64
}

// Profile is what a file holds, as far as it was looked at.
type Profile struct {
	File      string `json:"file"`
	Format    string `json:"format"`
	Delimiter string `json:"delimiter,omitempty"`
	Header    bool   `json:"header,omitempty"`
	Comment   string `json:"comment,omitempty"`
	// Records that can be read, and Bad ones, of which FirstBad is the first.
	Records  int64  `json:"records"`
	Bad      int64  `json:"bad"`
	FirstBad string `json:"first_bad,omitempty"`
	// Complete: the whole file was looked at.
	Complete bool `json:"complete"`
	// LineBreaks: there are some in quotes.
	LineBreaks bool `json:"line_breaks,omitempty"`
	// Missing are the texts that seem to stand for no value.
	Missing []string       `json:"missing,omitempty"`
	Columns []*ColumnStats `json:"columns,omitempty"`
	// Of libsvm: the labels, and the keys.
	Labels *ColumnStats `json:"labels,omitempty"`
	Keys   *ColumnStats `json:"keys,omitempty"`
}

// ColumnStats is what a column holds.
type ColumnStats struct {
	Name string `json:"name"`
	// Missing is the number of fields without value.
	Missing int64 `json:"missing"`
	// Numbers and Texts are the other fields.
	Numbers int64 `json:"numbers"`
	Texts   int64 `json:"texts"`
	// Of the numbers. Mean and Stddev are the middle and half of the range where
	// they cannot be computed in float64.
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Mean   float64 `json:"mean"`
	Stddev float64 `json:"stddev"`
	// Whole: all numbers are whole ones. Counts: each is one above the one before.
	Whole  bool `json:"whole"`
	Counts bool `json:"counts,omitempty"`
	// Distinct values, up to MaxDistinct; more are not told apart.
	Distinct int `json:"distinct"`
	// Values are the frequent ones with their number, the most frequent first,
	// of columns with up to a few hundred.
	Values []ValueCount `json:"values,omitempty"`
	// Parts: how many of the texts consist of several, parted by Separator.
	Parts     int64  `json:"parts,omitempty"`
	Separator string `json:"separator,omitempty"`
	// Dates: the texts that were kept are dates, like 2024-05-31 or 31.5.2024.
	Dates bool `json:"dates,omitempty"`

	m2       float64
	last     float64
	zeros    bool // a whole number is written with zeros before it
	seen     map[uint64]struct{}
	counts   map[string]int64
	pieces   [len(separators)]int64
	overflow bool
}

// ValueCount is a value and how often it occurs.
type ValueCount struct {
	Value string `json:"value"`
	Count int64  `json:"count"`
}

const (
	// MaxDistinct bounds how many values of a column are told apart.
	MaxDistinct = 1 << 16
	maxCounted  = 200
	// maxShownValues is how many frequent values a profile has.
	maxShownValues = 20
	separators     = "|;"
)

// missingWords are texts that usually stand for no value.
var missingWords = []string{"?", "NA", "N/A", "n/a", "null", "NULL", "nan", "NaN", "None", `\N`}

// Inspect looks at a file and says what it holds.
func Inspect(ctx context.Context, path string, o InspectOptions) (*Profile, error) {
	head, err := firstBytes(path)
	if err != nil {
		return nil, err
	}
	p := &Profile{File: path, Format: o.Format, Comment: o.Comment}
	if p.Format == "" {
		p.Format = guessFormat(path, head)
	}
	if p.Format == Libsvm {
		plan, err := NewPlan([]string{path}, Libsvm, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		return p, p.readKeys(ctx, plan, o)
	}
	if o.Delimiter == 0 {
		o.Delimiter = guessDelimiter(p.Format, head)
	}
	p.Delimiter = string(o.Delimiter)
	c := Columns{Delimiter: o.Delimiter, Comment: o.Comment, Features: []Feature{}}
	if o.Header != nil {
		c.Header = *o.Header
	} else if c.Header, err = guessHeader(c, p.Format, path, head); err != nil {
		return nil, err
	}
	p.Header = c.Header
	plan, err := NewColumnsPlan([]string{path}, p.Format, math.MaxInt64, c)
	if err != nil {
		return nil, err
	}
	return p, p.readColumns(ctx, plan, o)
}

// firstBytes is the beginning of what a file holds.
func firstBytes(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reader: %w: %w", ErrNoData, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.IsDir() {
		return nil, fmt.Errorf("reader: %s: %w: not a file", path, ErrNoData)
	}
	var f io.ReaderAt = file
	if Compressed(path) {
		s := newStream(path, file, info.Size())
		defer s.close()
		f = s
	}
	head := make([]byte, 64<<10)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reader: %s: %w", path, err)
	}
	return head[:n], nil
}

func guessFormat(path string, head []byte) string {
	if Compressed(path) {
		path = strings.TrimSuffix(path, filepath.Ext(path))
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".csv":
		return CSV
	case ".tsv", ".tab":
		return TSV
	case ".libsvm", ".svm", ".svmlight":
		return Libsvm
	}
	// "label key:value key:value …"
	line, _, _ := bytes.Cut(head, []byte("\n"))
	words := bytes.Fields(line)
	if len(words) > 0 && !bytes.ContainsAny(line, ",;|\t") {
		if _, ok := decimal(padded(string(words[0]))); ok && (len(words) == 1 || bytes.Contains(words[1], []byte(":"))) {
			return Libsvm
		}
	}
	if guessDelimiter("", head) == '\t' {
		return TSV
	}
	return CSV
}

// guessDelimiter is the one that the first line has most of.
func guessDelimiter(format string, head []byte) byte {
	if format == TSV {
		return '\t'
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	best := byte(',')
	for _, d := range []byte(",\t;|") {
		if bytes.Count(line, []byte{d}) > bytes.Count(line, []byte{best}) {
			best = d
		}
	}
	return best
}

// guessHeader takes a first line for a header if its fields are all different
// and none is a number. Where two are the same it is one too if there are
// numbers only below it, and then an ErrColumns names them.
func guessHeader(c Columns, format, path string, head []byte) (bool, error) {
	c.Header = true
	plan, err := NewColumnsPlan([]string{path}, format, math.MaxInt64, c)
	if err != nil {
		if errors.Is(err, errTwice) && !numbersBelow(c, format, head) {
			return false, nil
		}
		return false, err
	}
	l := plan.layouts[0].Load()
	if l == nil {
		return true, nil
	}
	return !someNumber(l.names), nil
}

// someNumber tells whether a field is a number, or stands for a missing one.
func someNumber(fields []string) bool {
	for _, name := range fields {
		if _, number := decimal(padded(name)); number || slices.Contains(missingWords, name) {
			return true
		}
	}
	return false
}

// numbersBelow tells whether the second line has numbers and the first has none.
func numbersBelow(columns Columns, format string, head []byte) bool {
	c, err := columns.prepared(format)
	if err != nil {
		return false
	}
	first, start, ok, err := c.first(slices.Clone(head), false, true)
	if !ok || err != nil || someNumber(first) {
		return false
	}
	second, _, ok, err := c.first(append(bytes.Clone(head[start:]), '\n'), false, true)
	return ok && err == nil && someNumber(second)
}

// read goes through the file's only chunk, and calls visit for each batch.
func (p *Profile) read(ctx context.Context, plan *Plan, o InspectOptions, prepare func(*Reader), visit func(*Batch)) error {
	r, err := plan.Open(ctx, 0, Options{Batch: 256, MaxBad: math.MaxInt})
	if err != nil {
		return err
	}
	defer r.Close()
	prepare(r)
	var b Batch
	for !b.Last && (o.Records == 0 || p.Records < o.Records) {
		if err := r.Next(&b); err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		p.Records += int64(b.Records())
		visit(&b)
	}
	p.Complete, p.Bad = b.Last, int64(r.Bad())
	if len(r.named) > 0 {
		p.FirstBad = r.named[0].String()
	}
	if r.table != nil {
		p.LineBreaks = r.table.broken
	}
	return nil
}

func (p *Profile) readColumns(ctx context.Context, plan *Plan, o InspectOptions) error {
	err := p.read(ctx, plan, o, func(r *Reader) {
		for _, name := range r.table.l.names {
			p.Columns = append(p.Columns, newStats(name))
		}
		r.table.visit = func(cells [][]byte) {
			for i, cell := range cells {
				p.Columns[i].add(cell)
			}
		}
	}, func(*Batch) {})
	words := make(map[string]bool)
	for _, c := range p.Columns {
		for word, n := range c.counts {
			// Among numbers a word like NA has no other meaning.
			if slices.Contains(missingWords, word) {
				words[word] = true
				c.Texts -= n
				c.Missing += n
				c.Distinct--
				delete(c.counts, word)
			}
		}
		c.finish()
	}
	for _, word := range missingWords {
		if words[word] {
			p.Missing = append(p.Missing, word)
		}
	}
	return err
}

func (p *Profile) readKeys(ctx context.Context, plan *Plan, o InspectOptions) error {
	p.Labels, p.Keys = newStats("label"), newStats("keys")
	var text []byte
	err := p.read(ctx, plan, o, func(*Reader) {}, func(b *Batch) {
		for _, label := range b.Labels {
			text = append(fmt.Appendf(text[:0], "%v", label), make([]byte, slack)...)
			p.Labels.add(text[:len(text)-slack])
		}
		for _, key := range b.Keys {
			text = append(fmt.Appendf(text[:0], "%d", key), make([]byte, slack)...)
			p.Keys.add(text[:len(text)-slack])
		}
	})
	p.Labels.finish()
	p.Keys.finish()
	p.Keys.Values = nil
	return err
}

func newStats(name string) *ColumnStats {
	return &ColumnStats{Name: name, Whole: true, Counts: true, Min: math.Inf(1), Max: math.Inf(-1),
		seen: make(map[uint64]struct{}), counts: make(map[string]int64)}
}

// add counts a field. Bytes behind it must be readable.
func (c *ColumnStats) add(cell []byte) {
	if len(cell) == 0 {
		c.Missing++
		return
	}
	if !c.overflow {
		c.seen[xxhash.Sum64(cell)] = struct{}{}
		c.overflow = len(c.seen) > MaxDistinct
	}
	if _, known := c.counts[string(cell)]; known || len(c.counts) < maxCounted || slices.Contains(missingWords, string(cell)) {
		c.counts[string(cell)]++
	}
	x, ok := decimal(cell)
	if !ok {
		c.Texts++
		for i := range separators {
			if bytes.IndexByte(cell, separators[i]) >= 0 {
				c.pieces[i]++
			}
		}
		return
	}
	c.Numbers++
	c.zeros = c.zeros || len(cell) > 1 && cell[0] == '0' && cell[1] != '.'
	c.Whole = c.Whole && x == math.Trunc(x)
	c.Counts = c.Counts && (c.Numbers == 1 || x == c.last+1)
	c.last = x
	c.Min, c.Max = min(c.Min, x), max(c.Max, x)
	d := x - c.Mean // B. P. Welford, Technometrics 4 (1962)
	c.Mean += d / float64(c.Numbers)
	c.m2 += d * (x - c.Mean)
}

// finish computes what follows from the counts.
func (c *ColumnStats) finish() {
	c.Distinct += len(c.seen)
	if c.Numbers > 0 {
		c.Stddev = math.Sqrt(c.m2 / float64(c.Numbers))
	} else {
		c.Min, c.Max = 0, 0
	}
	if sum := c.Mean + c.Stddev; math.IsNaN(sum) || math.IsInf(sum, 0) { // near the bounds of float64
		c.Mean, c.Stddev = c.Min/2+c.Max/2, c.Max/2-c.Min/2
	}
	c.Whole = c.Whole && c.Numbers > 0
	c.Counts = c.Counts && c.Whole && c.Numbers > 2 && c.Texts == 0
	c.Dates = c.Numbers == 0 && len(c.counts) > 0
	for text := range c.counts {
		c.Dates = c.Dates && looksLikeDate(text)
	}
	for i, n := range c.pieces {
		if n > c.Parts {
			c.Parts, c.Separator = n, separators[i:i+1]
		}
	}
	if len(c.counts) >= maxCounted {
		return
	}
	for v, n := range c.counts {
		c.Values = append(c.Values, ValueCount{v, n})
	}
	slices.SortFunc(c.Values, func(a, b ValueCount) int {
		if a.Count != b.Count {
			return int(b.Count - a.Count)
		}
		return strings.Compare(a.Value, b.Value)
	})
	c.Values = c.Values[:min(len(c.Values), maxShownValues)]
}

// looksLikeDate tells texts that begin with three numbers parted by the same
// one of - / . of which one has four digits and the others one or two.
func looksLikeDate(text string) bool {
	day, _, _ := strings.Cut(strings.Replace(text, "T", " ", 1), " ")
	for _, sep := range []string{"-", "/", "."} {
		parts := strings.Split(day, sep)
		if len(parts) != 3 {
			continue
		}
		years := 0
		for _, part := range parts {
			if part == "" || len(part) > 4 || len(part) == 3 || strings.Trim(part, "0123456789") != "" {
				return false
			}
			if len(part) == 4 {
				years++
			}
		}
		return years == 1 && len(parts[1]) < 4
	}
	return false
}

// Numeric tells a column of numbers. Whole numbers with zeros before them are
// codes.
func (c *ColumnStats) Numeric() bool { return c.Numbers > 0 && c.Texts == 0 && !c.zeros }
