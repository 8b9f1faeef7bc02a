package modelfile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"starfish/job"
)

const (
	// maxHead bounds the metadata: what .safetensors allows.
	maxHead = 100_000_000
	// piece is how many numbers are read at once.
	piece = 8192
)

// Sink takes a model from Read.
type Sink interface {
	// Begin is called once, before any Run. The file is large enough for the
	// rows and elements that m promises.
	Begin(m *Metadata) error
	// Run takes rows or elements of a parameter, ascending and complete in the
	// end. Its memory is reused.
	Run(parameter int, r Run) error
}

// Read reads a model. It fails with ErrFile if the file is no model of this
// version, or damaged; a sink that has begun must be thrown away then.
func Read(path string, sink Sink) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("modelfile: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("modelfile: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("modelfile: %s: %w: not a regular file", path, ErrFile)
	}
	if err := read(f, info.Size(), sink); err != nil {
		return fmt.Errorf("modelfile: %s: %w", path, err)
	}
	return nil
}

// read recognises the form.
func read(f io.ReaderAt, size int64, sink Sink) error {
	start := make([]byte, min(size, int64(len(textHead))))
	if _, err := f.ReadAt(start, 0); err != nil {
		return explain(err)
	}
	r := &fileReader{f: f, size: size, sink: sink}
	switch s := string(start); {
	case s == textHead:
		return r.text()
	case strings.HasPrefix(s, "PK\x03\x04"):
		return r.npz()
	case len(s) > 8 && s[8] == '{':
		return r.safetensors()
	case strings.HasPrefix(s, "# starfish model"):
		return broken("text of another version than %d", Version)
	}
	return broken("neither text, .npz nor .safetensors as `starfish export` writes them")
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFile}, args...)...)
}

// fileReader reads one file.
type fileReader struct {
	f    io.ReaderAt
	size int64
	sink Sink
	meta Metadata
}

// begin reads the metadata and makes sure that the file can hold what they
// promise.
func (r *fileReader) begin(text []byte) error {
	var head struct{ V int }
	if err := json.Unmarshal(text, &head); err != nil {
		return broken("the metadata are no JSON: %v", err)
	}
	if head.V != Version {
		return broken("the metadata have version %d; this program knows version %d", head.V, Version)
	}
	m := &r.meta
	if err := json.Unmarshal(text, m); err != nil {
		return broken("the metadata: %v", err)
	}
	if m.Spec == nil {
		return broken("the metadata have no spec")
	}
	if err := m.Parameters.Validate(); err != nil {
		return broken("the metadata: %v", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if len(m.Rows) != len(m.Parameters.List) {
		return broken("the metadata have rows of %d parameters, there are %d", len(m.Rows), len(m.Parameters.List))
	}
	for i, p := range m.Parameters.List {
		if err := r.fits(p, m.Rows[i]); err != nil {
			return err
		}
	}
	return r.sink.Begin(m)
}

// fits makes sure that a parameter can be in the file: in any form a value has
// two bytes at least.
func (r *fileReader) fits(p job.Parameter, rows int64) error {
	n, each := int64(p.Elements()), int64(1)
	if p.Sparse {
		n, each = rows, int64(p.Dim)
	}
	if n < 0 || n > r.size/2/each {
		return broken("%s cannot have %d rows or elements: the file has %d bytes", p.Name, n, r.size)
	}
	return nil
}

// check makes sure that the keys of a run are in order and in the key space.
// last is the key before; begun tells that there is one.
func check(p job.Parameter, keys []uint64, last uint64, begun bool) error {
	for _, k := range keys {
		if begun && k <= last {
			return broken("%s: the key %d follows %d", p.Name, k, last)
		}
		if p.Bits > 0 && k>>p.Bits != 0 {
			return broken("%s: the key %d is not below 2^%d", p.Name, k, p.Bits)
		}
		last, begun = k, true
	}
	return nil
}

// binaryArray opens one array of a binary form, positioned at its numbers, of
// which it must have exactly as many bytes. end is called behind the last one.
type binaryArray struct {
	io.Reader
	end func() error
}

// binary hands out all parameters of a binary form.
func (r *fileReader) binary(open func(array) (binaryArray, error)) error {
	var keys *binaryArray
	for _, a := range arrays(&r.meta) {
		in, err := open(a)
		if err != nil {
			return err
		}
		if a.keys {
			keys = &in
			continue
		}
		if err := r.parameter(a, keys, in); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		keys = nil
	}
	return nil
}

// parameter hands out one parameter of a binary form; keys is nil for a dense
// one.
func (r *fileReader) parameter(a array, keys *binaryArray, values binaryArray) error {
	p := r.meta.Parameters.List[a.parameter]
	n, dim := r.meta.Rows[a.parameter], int64(width(p))
	if !p.Sparse {
		n = int64(p.Elements())
	}
	var d decoder
	var last uint64
	for at := int64(0); at < n; {
		rows := min(n-at, max(piece/dim, 1))
		run := Run{First: uint64(at)}
		var err error
		if keys != nil {
			if run.Keys, err = d.keys(keys, rows); err != nil {
				return err
			}
			if err := check(p, run.Keys, last, at > 0); err != nil {
				return err
			}
			last = run.Keys[rows-1]
		}
		if a.whole {
			run.Counts, err = d.counts(values, rows*dim)
		} else {
			run.Floats, err = d.floats(values, rows*dim)
		}
		if err != nil {
			return err
		}
		if err := r.sink.Run(a.parameter, run); err != nil {
			return err
		}
		at += rows
	}
	if keys != nil {
		if err := keys.end(); err != nil {
			return err
		}
	}
	return values.end()
}

// text reads the text form.
func (r *fileReader) text() error {
	in := newSummed(io.NewSectionReader(r.f, 0, r.size))
	digest, err := in.digest(len(textHead))
	if err != nil {
		return err
	}
	head, err := in.line(maxHead)
	if err != nil {
		return err
	}
	if err := r.begin(head); err != nil {
		return err
	}
	for _, i := range byName(r.meta.Parameters.List) {
		if err := r.lines(in, i); err != nil {
			return err
		}
	}
	if _, err := in.buf.ReadByte(); err != io.EOF { //nolint:errorlint // a bufio.Reader gives io.EOF itself
		return broken("there is more than the metadata say")
	}
	return in.check(digest)
}

// lines reads the lines of one parameter.
func (r *fileReader) lines(in *summed, parameter int) error {
	p := r.meta.Parameters.List[parameter]
	n, dim := r.meta.Rows[parameter], width(p)
	if !p.Sparse {
		n = int64(p.Elements())
	}
	prefix := p.Name + "\t"
	var run Run
	var last uint64
	for at := int64(0); at < n; {
		rows := min(n-at, int64(max(piece/dim, 1)))
		run = Run{First: uint64(at), Keys: run.Keys[:0], Floats: run.Floats[:0], Counts: run.Counts[:0]}
		for i := range rows {
			line, err := in.line(len(prefix) + 32*(dim+1))
			if err != nil {
				return err
			}
			rest, ok := strings.CutPrefix(string(line), prefix)
			if ok {
				ok = run.parse(rest, dim, counts(p))
			}
			if !ok || !p.Sparse && run.Keys[i] != uint64(at+i) {
				return broken("not a line of %s: %q", p.Name, shorten(line))
			}
		}
		if p.Sparse {
			if err := check(p, run.Keys, last, at > 0); err != nil {
				return err
			}
			last = run.Keys[rows-1]
		}
		out := run
		if !p.Sparse {
			out.Keys = nil
		}
		if err := r.sink.Run(parameter, out); err != nil {
			return err
		}
		at += rows
	}
	return nil
}

func shorten(line []byte) []byte { return line[:min(len(line), 80)] }

// newSummed reads a form with a digest in its head.
func newSummed(f io.Reader) *summed { return &summed{buf: bufio.NewReaderSize(f, 1<<16)} }

// npz reads the zip of arrays.
func (r *fileReader) npz() error {
	z, err := openZip(r.f, r.size)
	if err != nil {
		return err
	}
	text, err := z.metadata()
	if err != nil {
		return err
	}
	if err := r.begin(text); err != nil {
		return err
	}
	if err := checkNames(r.meta.Parameters.List); err != nil {
		return broken("%v", err)
	}
	return r.binary(z.open)
}

// safetensors reads the head and the tensors that it places.
func (r *fileReader) safetensors() error {
	h, err := readTensors(r.f, r.size)
	if err != nil {
		return err
	}
	if err := r.begin([]byte(h.metadata)); err != nil {
		return err
	}
	if err := checkNames(r.meta.Parameters.List); err != nil {
		return broken("%v", err)
	}
	order, placed := tensors(&r.meta)
	for _, a := range order {
		have, ok := h.tensors[a.name]
		if want := placed[a.name]; !ok || have.Type != want.Type || !slices.Equal(have.Shape, want.Shape) || have.Offsets != want.Offsets {
			return broken("the tensor %q is missing, or of another type, shape or place than the metadata say", a.name)
		}
	}
	end := h.data
	if len(order) > 0 {
		end += placed[order[len(order)-1].name].Offsets[1]
	}
	if len(h.tensors) != len(order) || end != r.size {
		return broken("the file has %d bytes and %d tensors; by its head it should have %d and %d; is it truncated?", r.size, len(h.tensors), end, len(order))
	}
	if err := h.verify(); err != nil {
		return err
	}
	return r.binary(func(a array) (binaryArray, error) {
		from := placed[a.name].Offsets
		section := io.NewSectionReader(r.f, h.data+from[0], from[1]-from[0])
		return binaryArray{bufio.NewReaderSize(section, 1<<16), func() error { return nil }}, nil
	})
}
