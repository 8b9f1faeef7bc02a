package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"starfish/internal/permute"
)

// Window is the number of records within which Shuffle permutes. It is part of
// the formats.
const Window = 16384

// maxNamed is how many bad records of a chunk are kept for a message.
const maxNamed = 3

// Labels is what a model accepts as a label.
type Labels int

// The kinds of label.
const (
	// LabelAny is any finite number; the model does not look at it.
	LabelAny Labels = iota
	// LabelBinary is 1, 0 or -1; -1 becomes 0.
	LabelBinary
	// LabelReal is any finite number.
	LabelReal
	// LabelNone: libsvm text has no labels. A line that seems to begin with one
	// is bad.
	LabelNone
)

// Options say how a chunk is read. They must be the same in all processes of a
// job, as batches have the same content wherever they are read.
type Options struct {
	// Batch is the number of records of a batch; at least 1.
	Batch int
	// Shuffle permutes the records within windows, by Seed, Pass and the chunk.
	Shuffle bool
	Seed    uint64
	Pass    int
	// MaxBad is how many bad records the chunk may have.
	MaxBad int
	// Bits is the size of the key space: keys are taken modulo 2^Bits. 0: keys
	// as they are.
	Bits int
	// Labels is what counts as a label.
	Labels Labels
	// MaxValue bounds the absolute value, after the transform, of what a record
	// has: values, label and weight. A record with a larger one is bad. 0: there
	// is no bound.
	MaxValue float32
}

// Reader reads the records of one chunk, batch by batch. It is not safe for
// concurrent use.
type Reader struct {
	plan   *Plan
	chunk  int64
	o      Options
	path   string
	file   *os.File
	opened os.FileInfo
	stream *stream // if the file is compressed
	again  *stream // a second one, that counts lines
	*memory

	parser  parser
	more    bool // there are records that are in neither carry nor window
	perm    permute.P
	at      int   // the place in the window that comes next
	skip    int64 // records that are still to be passed over
	bad     int
	named   []BadRecord
	lines   lineCounter
	looks   string // what the file seems to be instead, once that was guessed
	guessed bool
	err     error // what Next answers from now on
}

// memory is what a plan's readers pass on from one to the next.
type memory struct {
	src    source
	carry  Batch // at most one record: the look-ahead
	window Batch
	table  *table // of formats with columns
}

// Open opens a chunk. Close must be called in the end.
func (p *Plan) Open(ctx context.Context, chunk int64, o Options) (*Reader, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if o.Batch < 1 || o.Bits < 0 || o.Bits > 63 {
		return nil, fmt.Errorf("reader: batch %d or bits %d is out of range", o.Batch, o.Bits)
	}
	if p.Format != Libsvm && p.columns == nil {
		return nil, fmt.Errorf("reader: the columns of the %s files are not known", p.Format)
	}
	i, start, end, err := p.locate(chunk)
	if err != nil {
		return nil, err
	}
	f, info, err := p.open(i)
	if err != nil {
		return nil, err
	}
	r := &Reader{plan: p, chunk: chunk, o: o, path: p.Files[i].Path, file: f, opened: info, more: true}
	r.parser = newParser(o)
	r.memory, _ = p.pool.Get().(*memory)
	if r.memory == nil {
		r.memory = new(memory)
	}
	r.carry.Reset()
	r.window.Reset()
	if err := r.begin(i, start, end); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// begin points the source at the chunk [start, end) of file i.
func (r *Reader) begin(i int, start, end int64) error {
	var f io.ReaderAt = r.file
	size := r.plan.Files[i].Size
	if Compressed(r.path) {
		r.stream = newStream(r.path, r.file, size)
		f, end, size = r.stream, endless, endless
	}
	if r.plan.columns != nil {
		l, err := r.plan.layoutOf(i, f)
		if err != nil {
			return r.failure(err)
		}
		if r.table == nil || r.table.l != l {
			r.table = newTable(r.plan.columns, l, nil)
			r.table.multiline = r.plan.oneChunk(i)
		}
		r.table.parser = &r.parser
		if start <= l.start {
			start = min(l.start, end)
			defer r.src.exactly(start)
		}
	}
	r.src.reset(f, start, end, size, MaxRecord)
	return nil
}

// Close releases file and memory. It may be called at any time, and twice.
func (r *Reader) Close() error {
	if r.memory == nil {
		return nil
	}
	r.src.f = nil
	if r.table != nil {
		r.table.parser, r.table.visit, r.table.broken = nil, nil, false
	}
	if r.stream != nil {
		r.stream.close()
	}
	if r.again != nil {
		r.again.close()
	}
	r.plan.pool.Put(r.memory)
	r.memory = nil
	if r.err == nil {
		r.err = fmt.Errorf("reader: %s: %w", r.path, os.ErrClosed)
	}
	return r.file.Close()
}

// Chunk is the number of the chunk.
func (r *Reader) Chunk() int64 { return r.chunk }

// Bad is the number of bad records so far.
func (r *Reader) Bad() int { return r.bad }

// BadRecords are the first few bad records.
func (r *Reader) BadRecords() []BadRecord { return r.named }

// SkipTo makes batch n (counted from 0) the next one that Next delivers. What
// lies before is parsed, since only that tells good records from bad ones. It
// must be called before the first Next.
func (r *Reader) SkipTo(n int64) { r.skip = n * int64(r.o.Batch) }

// Next fills b with the next batch. After the batch that is marked Last it
// returns io.EOF; any other error is final too.
func (r *Reader) Next(b *Batch) error {
	if r.err != nil {
		return r.err
	}
	next := r.inOrder
	if r.o.Shuffle {
		next = r.shuffled
	}
	err := next(b)
	if err == nil && b.Last {
		err = r.unchanged()
		r.err = io.EOF
	}
	if err != nil {
		r.err = err
	}
	return err
}

// inOrder parses straight into the batch.
func (r *Reader) inOrder(b *Batch) error {
	for r.skip > 0 {
		b.Reset()
		if err := r.fill(b, int(min(r.skip, int64(r.o.Batch)))); err != nil {
			return err
		}
		r.skip -= int64(b.Records())
		if !r.ahead() {
			return io.EOF
		}
	}
	b.Reset()
	if err := r.fill(b, r.o.Batch); err != nil {
		return err
	}
	b.Last = !r.ahead()
	return nil
}

// shuffled copies records out of the window, which it fills when it is used up.
func (r *Reader) shuffled(b *Batch) error {
	b.Reset()
	for b.Records() < r.o.Batch {
		if r.at == r.window.Records() {
			if !r.more && !r.ahead() {
				break
			}
			if err := r.fillWindow(); err != nil {
				return err
			}
			continue
		}
		if r.skip > 0 {
			n := min(r.skip, int64(r.window.Records()-r.at))
			r.skip -= n
			r.at += int(n)
			if r.at == r.window.Records() && !r.ahead() {
				return io.EOF
			}
			continue
		}
		b.appendFrom(&r.window, int(r.perm.At(int64(r.at))))
		r.at++
	}
	if r.skip > 0 {
		return io.EOF
	}
	b.Last = r.at == r.window.Records() && !r.ahead()
	return nil
}

func (r *Reader) fillWindow() error {
	r.window.Reset()
	if err := r.fill(&r.window, Window); err != nil {
		return err
	}
	r.at = 0
	r.perm = permute.New(int64(r.window.Records()), r.o.Seed, uint64(r.o.Pass), uint64(r.chunk))
	return nil
}

// ahead tells whether a record waits in carry.
func (r *Reader) ahead() bool { return r.carry.Records() > 0 }

// fill appends up to n good records to b, and puts the one after them, if there
// is one, into carry.
func (r *Reader) fill(b *Batch, n int) error {
	if r.ahead() {
		b.appendFrom(&r.carry, 0)
		r.carry.Reset()
	}
	if err := r.parse(b, n); err != nil {
		return err
	}
	return r.parse(&r.carry, 1)
}

// parse appends good records to b until it has n.
func (r *Reader) parse(b *Batch, n int) error {
	for b.Records() < n && r.more {
		ok, err := r.src.next()
		switch {
		case errors.Is(err, errTooLong):
			r.parser.defect(recordTooLong, 0, 0)
			if err := r.badRecord(r.src.offset()); err != nil {
				return err
			}
		case err != nil:
			return r.failure(err)
		case !ok:
			r.more = false
		default:
			if err := r.parseLines(b, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseLines parses the complete lines in memory.
func (r *Reader) parseLines(b *Batch, n int) error {
	src, p := &r.src, &r.parser
	stop := src.stop()
	for src.pos < stop && b.Records() < n {
		room := min(cap(b.Keys), cap(b.Values))
		var next, values int
		var st status
		if r.plan.columns == nil {
			next, values, st = p.record(src.buf, src.pos, b.Keys[:room], b.Values[:room], len(b.Keys))
		} else {
			next, values, st = r.table.record(src.buf, src.pos, src.lim, b.Keys[:room], b.Values[:room], len(b.Keys))
		}
		if values > math.MaxInt32 {
			return r.tooLarge()
		}
		switch st {
		case full:
			b.grow()
			continue
		case good:
			b.accept(p, values)
		case bad:
			if err := r.badRecord(src.offset()); err != nil {
				return err
			}
		case unclosed:
			if ok, err := src.more(); err != nil {
				return r.failure(err)
			} else if !ok {
				return r.neverClosed()
			}
			stop = src.stop()
			continue
		case blank:
		}
		src.pos = next
	}
	return nil
}

// badRecord counts a bad record and names the first few; it is an error if
// there are too many.
func (r *Reader) badRecord(offset int64) error {
	r.bad++
	if r.bad <= r.o.MaxBad && len(r.named) >= maxNamed {
		return nil
	}
	b := r.place(offset, r.reason())
	if r.bad > r.o.MaxBad {
		if err := r.unchanged(); err != nil { // a file that is being rewritten
			return err
		}
		return &BadDataError{BadRecord: b, Max: r.o.MaxBad}
	}
	r.named = append(r.named, b)
	return nil
}

func (r *Reader) reason() string {
	if r.plan.columns != nil {
		return r.table.reason()
	}
	return r.parser.reason(r.src.buf)
}

// place is a bad record with its line.
func (r *Reader) place(offset int64, reason string) BadRecord {
	var f io.ReaderAt = r.file
	if r.stream != nil {
		if r.again == nil {
			r.again = newStream(r.path, r.file, r.opened.Size())
		}
		f = r.again
	}
	if !r.guessed { // first, as a stream is read forward
		r.guessed = true
		var delimiter byte
		if r.plan.columns != nil {
			delimiter = r.plan.columns.Delimiter
		}
		r.looks = looksLike(r.plan.Format, delimiter, headOf(f))
	}
	if r.looks != "" {
		reason += "; the file " + r.looks
	}
	return BadRecord{File: r.path, Offset: offset, Line: r.lines.line(f, offset), Reason: reason}
}

// neverClosed fails a chunk in which a quote is opened and not closed: how many
// records it has swallowed cannot be known.
func (r *Reader) neverClosed() error {
	return &BadDataError{Max: r.o.MaxBad, Fatal: true, BadRecord: r.place(r.src.offset(), fmt.Sprintf(
		"a quote is opened in this record that is not closed before the file's end, or within %d MiB", MaxRecord>>20))}
}

// tooLarge fails a chunk with more values in one batch than offsets can count.
func (r *Reader) tooLarge() error {
	return &BadDataError{Max: r.o.MaxBad, Fatal: true, BadRecord: BadRecord{File: r.path, Offset: r.src.offset(),
		Reason: "more than 2^31 values in one batch; use smaller batches or smaller chunks"}}
}

// failure explains an error of reading.
func (r *Reader) failure(err error) error {
	var d *damage
	if errors.As(err, &d) {
		if changed := r.unchanged(); changed != nil {
			return changed
		}
		return &BadDataError{Max: r.o.MaxBad, Fatal: true, BadRecord: BadRecord{File: r.path, Offset: d.offset, Reason: d.Error()}}
	}
	if errors.Is(err, ErrColumns) {
		return &BadDataError{Max: r.o.MaxBad, Fatal: true, BadRecord: BadRecord{File: r.path, Line: 1, Reason: err.Error()}}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &DataError{File: r.path, Reason: "is shorter than when the job was planned"}
	}
	return &DataError{File: r.path, Reason: "cannot be read", Err: err}
}

// unchanged checks that the file is as it was when it was opened.
func (r *Reader) unchanged() error {
	info, err := r.file.Stat()
	if err != nil {
		return r.failure(err)
	}
	if info.Size() != r.opened.Size() || !info.ModTime().Equal(r.opened.ModTime()) {
		return &DataError{File: r.path, Reason: "changed while it was read"}
	}
	return nil
}
