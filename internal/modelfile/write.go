package modelfile

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"starfish/job"
)

// Write writes a model to an empty file and returns the number of its rows and
// elements. m needs neither version nor rows.
func Write(f *os.File, form Form, m Metadata, c Content) (int64, error) {
	m.V, m.Rows = Version, make([]int64, len(m.Parameters.List))
	var n int64
	for i, p := range m.Parameters.List {
		if p.Sparse {
			m.Rows[i] = c.Rows(i)
			n += m.Rows[i]
		} else {
			n += int64(p.Elements())
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return 0, fmt.Errorf("modelfile: metadata: %w", err)
	}
	w := &writer{f: f, buf: bufio.NewWriterSize(f, 1<<20), meta: m, text: text, content: c, left: n}
	switch form {
	case NPZ:
		err = w.npz()
	case Safetensors:
		err = w.safetensors()
	default:
		err = w.plain()
	}
	if err == nil {
		err = w.buf.Flush()
	}
	if err == nil && w.left != 0 {
		err = fmt.Errorf("modelfile: %d rows or elements are missing: the model changed while it was written", w.left)
	}
	return n, err
}

type writer struct {
	f       *os.File
	buf     *bufio.Writer
	meta    Metadata
	text    []byte // the metadata as JSON
	content Content
	left    int64 // rows and elements that are still to come
	scratch []byte
}

// unsummed stands where the digest is written in the end.
const unsummed = "0000000000000000"

// summed writes a head that begins with prefix and has a digest behind it: the
// xxh64 of all that follows the digest.
func (w *writer) summed(prefix, rest string, body func(io.Writer) error) error {
	digest := xxhash.New()
	if _, err := w.buf.WriteString(prefix + unsummed); err != nil {
		return err
	}
	out := io.MultiWriter(w.buf, digest)
	if _, err := io.WriteString(out, rest); err != nil {
		return err
	}
	if err := body(out); err != nil {
		return err
	}
	if err := w.buf.Flush(); err != nil {
		return err
	}
	_, err := w.f.WriteAt(fmt.Appendf(nil, "%016x", digest.Sum64()), int64(len(prefix)))
	return err
}

// textHead begins the first line of the text form.
const textHead = "# starfish model, version 1, xxh64 "

func (w *writer) plain() error {
	return w.summed(textHead, " "+string(w.text)+"\n", func(out io.Writer) error {
		for _, i := range byName(w.meta.Parameters.List) {
			p := w.meta.Parameters.List[i]
			for r := range w.content.Export(i) {
				w.scratch = appendLines(w.scratch[:0], p, r)
				if _, err := out.Write(w.scratch); err != nil {
					return err
				}
				w.left -= int64(r.len(p))
			}
		}
		return nil
	})
}

// len is the number of rows or elements of a run.
func (r Run) len(p job.Parameter) int {
	if p.Sparse {
		return len(r.Keys)
	}
	return len(r.Floats) + len(r.Counts)
}

// appendLines writes a run as text: name, index or key, values in full
// precision.
func appendLines(to []byte, p job.Parameter, r Run) []byte {
	dim := width(p)
	for i := range r.len(p) {
		key := r.First + uint64(i)
		if p.Sparse {
			key = r.Keys[i]
		}
		to = append(append(to, p.Name...), '\t')
		to = strconv.AppendUint(to, key, 10)
		for k := i * dim; k < (i+1)*dim; k++ {
			to = append(to, '\t')
			if counts(p) {
				to = strconv.AppendUint(to, r.Counts[k], 10)
			} else {
				to = strconv.AppendFloat(to, float64(r.Floats[k]), 'g', -1, 32)
			}
		}
		to = append(to, '\n')
	}
	return to
}

// array is one array of the binary forms: keys or values of a parameter.
type array struct {
	name      string
	parameter int
	keys      bool
	shape     []int64
	whole     bool // of uint64, else of float32
}

func (a *array) bytes() int64 {
	n := int64(4)
	if a.whole {
		n = 8
	}
	for _, d := range a.shape {
		n *= d
	}
	return n
}

// arrays lists the arrays of a model, by name of the parameter.
func arrays(m *Metadata) []array {
	var all []array
	for _, i := range byName(m.Parameters.List) {
		p := m.Parameters.List[i]
		if p.Sparse {
			all = append(all,
				array{name: p.Name + keysSuffix, parameter: i, keys: true, shape: []int64{m.Rows[i]}, whole: true},
				array{name: p.Name + valuesSuffix, parameter: i, shape: []int64{m.Rows[i], int64(p.Dim)}, whole: counts(p)})
			continue
		}
		a := array{name: p.Name, parameter: i, shape: []int64{}, whole: counts(p)}
		for _, d := range p.Shape {
			a.shape = append(a.shape, int64(d))
		}
		all = append(all, a)
	}
	return all
}

// values writes an array.
func (w *writer) values(out io.Writer, a array) error {
	for r := range w.content.Export(a.parameter) {
		to := w.scratch[:0]
		switch {
		case a.keys:
			for _, k := range r.Keys {
				to = binary.LittleEndian.AppendUint64(to, k)
			}
		case a.whole:
			for _, n := range r.Counts {
				to = binary.LittleEndian.AppendUint64(to, n)
			}
		default:
			for _, v := range r.Floats {
				to = binary.LittleEndian.AppendUint32(to, math.Float32bits(v))
			}
		}
		w.scratch = to
		if _, err := out.Write(to); err != nil {
			return err
		}
		if !a.keys {
			w.left -= int64(r.len(w.meta.Parameters.List[a.parameter]))
		}
	}
	return nil
}

// npz writes a zip of .npy files, none of them compressed.
func (w *writer) npz() error {
	if err := checkNames(w.meta.Parameters.List); err != nil {
		return err
	}
	z := zip.NewWriter(w.buf)
	entry := func(name, head string, body func(io.Writer) error) error {
		out, err := z.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store})
		if err == nil {
			_, err = io.WriteString(out, head)
		}
		if err != nil {
			return err
		}
		return body(out)
	}
	err := entry(metadataName, npyHead("|u1", []int64{int64(len(w.text))}), func(out io.Writer) error {
		_, err := out.Write(w.text)
		return err
	})
	for _, a := range arrays(&w.meta) {
		if err == nil {
			err = entry(a.name, npyHead(a.npyType(), a.shape), func(out io.Writer) error { return w.values(out, a) })
		}
	}
	if err != nil {
		return err
	}
	return z.Close()
}

func (a *array) npyType() string {
	if a.whole {
		return "<u8"
	}
	return "<f4"
}

// npyMagic begins a .npy file of version 1.0.
const npyMagic = "\x93NUMPY\x01\x00"

// npyHead is what stands before the numbers of a .npy file (numpy.lib.format):
// magic, length, a Python dictionary, and blanks up to a multiple of 64.
func npyHead(kind string, shape []int64) string {
	var s strings.Builder
	for _, d := range shape {
		fmt.Fprintf(&s, "%d, ", d)
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", kind, npyShape(shape, s.String()))
	before := len(npyMagic) + 2
	text += strings.Repeat(" ", 63-(before+len(text))%64) + "\n"
	return npyMagic + string(binary.LittleEndian.AppendUint16(nil, uint16(len(text)))) + text
}

// npyShape writes a tuple as Python does: a comma behind a single number only.
func npyShape(shape []int64, list string) string {
	if len(shape) == 1 {
		return strings.TrimSuffix(list, " ")
	}
	return strings.TrimSuffix(list, ", ")
}

// tensor is an entry of the head of .safetensors.
type tensor struct {
	Type    string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// tensors places the arrays of a model: those of eight bytes a number first, so
// that every one is aligned.
func tensors(m *Metadata) ([]array, map[string]tensor) {
	all := arrays(m)
	var order []array
	for _, whole := range []bool{true, false} {
		for _, a := range all {
			if a.whole == whole {
				order = append(order, a)
			}
		}
	}
	placed := make(map[string]tensor, len(order))
	at := int64(0)
	for _, a := range order {
		t := tensor{Type: "F32", Shape: a.shape, Offsets: [2]int64{at, at + a.bytes()}}
		if a.whole {
			t.Type = "U64"
		}
		placed[a.name] = t
		at = t.Offsets[1]
	}
	return order, placed
}

// safetensorsHead begins the JSON of .safetensors.
const safetensorsHead = `{"__metadata__":{"xxh64":"`

func (w *writer) safetensors() error {
	if err := checkNames(w.meta.Parameters.List); err != nil {
		return err
	}
	order, placed := tensors(&w.meta)
	list, err := json.Marshal(placed)
	if err != nil {
		return err
	}
	text, err := json.Marshal(string(w.text))
	if err != nil {
		return err
	}
	rest := `","starfish":` + string(text) + `},` + strings.TrimPrefix(string(list), "{")
	n := len(safetensorsHead) + len(unsummed) + len(rest)
	rest += strings.Repeat(" ", (8-n%8)%8)
	n += (8 - n%8) % 8
	if n > maxHead {
		return fmt.Errorf("modelfile: the head of %d bytes is too large for .safetensors; export as text", n)
	}
	prefix := string(binary.LittleEndian.AppendUint64(nil, uint64(n))) + safetensorsHead
	return w.summed(prefix, rest, func(out io.Writer) error {
		for _, a := range order {
			if err := w.values(out, a); err != nil {
				return err
			}
		}
		return nil
	})
}
