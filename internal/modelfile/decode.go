package modelfile

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// decoder turns bytes into numbers and reuses its memory.
type decoder struct {
	bytes []byte
	k, c  []uint64
	f     []float32
}

func (d *decoder) read(in io.Reader, n int64) error {
	if int64(cap(d.bytes)) < n {
		d.bytes = make([]byte, n)
	}
	d.bytes = d.bytes[:n]
	_, err := io.ReadFull(in, d.bytes)
	return explain(err)
}

// explain makes what a reader says about the file's content an ErrFile. What
// the file system says stays as it is.
func explain(err error) error {
	var system interface{ Timeout() bool } // *os.PathError, syscall.Errno
	switch {
	case err == nil, errors.Is(err, ErrFile), errors.As(err, &system):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return broken("the file is truncated")
	}
	return broken("the file is damaged: %v", err)
}

func (d *decoder) keys(in io.Reader, n int64) ([]uint64, error) {
	err := d.whole(in, n, &d.k)
	return d.k, err
}

func (d *decoder) counts(in io.Reader, n int64) ([]uint64, error) {
	err := d.whole(in, n, &d.c)
	return d.c, err
}

func (d *decoder) whole(in io.Reader, n int64, to *[]uint64) error {
	if err := d.read(in, 8*n); err != nil {
		return err
	}
	*to = (*to)[:0]
	for b := d.bytes; len(b) > 0; b = b[8:] {
		*to = append(*to, binary.LittleEndian.Uint64(b))
	}
	return nil
}

func (d *decoder) floats(in io.Reader, n int64) ([]float32, error) {
	if err := d.read(in, 4*n); err != nil {
		return nil, err
	}
	d.f = d.f[:0]
	for b := d.bytes; len(b) > 0; b = b[4:] {
		d.f = append(d.f, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return d.f, nil
}

// parse reads key and values of a line of text.
func (r *Run) parse(text string, dim int, whole bool) bool {
	field, rest, more := strings.Cut(text, "\t")
	key, err := strconv.ParseUint(field, 10, 64)
	if err != nil {
		return false
	}
	r.Keys = append(r.Keys, key)
	for range dim {
		if !more {
			return false
		}
		field, rest, more = strings.Cut(rest, "\t")
		if whole {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return false
			}
			r.Counts = append(r.Counts, n)
			continue
		}
		v, err := strconv.ParseFloat(field, 32)
		if err != nil {
			return false
		}
		r.Floats = append(r.Floats, float32(v))
	}
	return !more
}

// summed reads lines and adds them up to a digest.
type summed struct {
	buf  *bufio.Reader
	sum  xxhash.Digest
	long []byte
}

// digest reads a digest that stands behind so many bytes. What follows it is
// summed.
func (s *summed) digest(before int) (uint64, error) {
	head := make([]byte, before+len(unsummed))
	if _, err := io.ReadFull(s.buf, head); err != nil {
		return 0, explain(err)
	}
	s.sum.Reset()
	return parseDigest(string(head[before:]))
}

func parseDigest(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil || len(text) != len(unsummed) {
		return 0, broken("%q is no xxh64", text)
	}
	return n, nil
}

// line reads a line of at most so many bytes, without its end.
func (s *summed) line(most int) ([]byte, error) {
	s.long = s.long[:0]
	for {
		part, err := s.buf.ReadSlice('\n')
		_, _ = s.sum.Write(part)
		if len(s.long)+len(part) > most+1 {
			return nil, broken("a line is longer than %d bytes", most)
		}
		if err == nil && len(s.long) == 0 {
			return part[:len(part)-1], nil
		}
		s.long = append(s.long, part...)
		switch {
		case err == nil:
			return s.long[:len(s.long)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, explain(err)
		}
	}
}

func (s *summed) check(digest uint64) error { return compare(s.sum.Sum64(), digest) }

func compare(have, want uint64) error {
	if have != want {
		return broken("the file is damaged: its xxh64 is %016x, its head says %016x", have, want)
	}
	return nil
}

// archive is an open .npz.
type archive struct{ entries map[string]*zip.File }

func openZip(f io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(f, size)
	if err != nil {
		return nil, broken("not a complete .npz: %v", err)
	}
	a := &archive{entries: make(map[string]*zip.File, len(z.File))}
	for _, e := range z.File {
		if e.Method != zip.Store || e.UncompressedSize64 != e.CompressedSize64 {
			return nil, broken("%s is compressed; only arrays as they are can be read", e.Name)
		}
		if e.UncompressedSize64 > uint64(size) {
			return nil, broken("%s claims %d bytes; the file has %d", e.Name, e.UncompressedSize64, size)
		}
		a.entries[e.Name] = e
	}
	return a, nil
}

func (a *archive) metadata() ([]byte, error) {
	e := a.entries[metadataName+".npy"]
	if e == nil {
		return nil, broken("there is no array %q: not written by starfish", metadataName)
	}
	in, err := e.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer in.Close()
	n := int64(e.UncompressedSize64)
	if n > maxHead {
		return nil, broken("metadata of %d bytes", n)
	}
	all := make([]byte, n)
	if _, err := io.ReadFull(in, all); err != nil {
		return nil, explain(err)
	}
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return nil, explain(err)
	}
	// The head's length is 10 more than what stands in two of its bytes.
	if len(all) < 10 {
		return nil, broken("the array %q is too short", metadataName)
	}
	head := 10 + int64(binary.LittleEndian.Uint16(all[8:]))
	if n < head || string(all[:head]) != npyHead("|u1", []int64{n - head}) {
		return nil, broken("the array %q is no plain list of bytes", metadataName)
	}
	return all[head:], nil
}

// open checks the head of an array.
func (a *archive) open(want array) (binaryArray, error) {
	e := a.entries[want.name+".npy"]
	if e == nil {
		return binaryArray{}, broken("there is no array %q", want.name)
	}
	head := npyHead(want.npyType(), want.shape)
	if size := int64(len(head)) + want.bytes(); e.UncompressedSize64 != uint64(size) {
		return binaryArray{}, broken("the array %q has %d bytes instead of %d", want.name, e.UncompressedSize64, size)
	}
	in, err := e.Open()
	if err != nil {
		return binaryArray{}, explain(err)
	}
	buf := bufio.NewReaderSize(in, 1<<16)
	have := make([]byte, len(head))
	if _, err := io.ReadFull(buf, have); err != nil {
		return binaryArray{}, explain(err)
	}
	if string(have) != head {
		return binaryArray{}, broken("the array %q is of another type or shape than the metadata say", want.name)
	}
	return binaryArray{buf, func() error {
		if _, err := buf.ReadByte(); !errors.Is(err, io.EOF) { // the checksum is compared there
			return explain(err)
		}
		return nil
	}}, nil
}

// tensorHead is the head of .safetensors.
type tensorHead struct {
	metadata string
	tensors  map[string]tensor
	data     int64 // where the numbers begin
	digest   uint64
	f        *io.SectionReader // all behind the digest
}

func readTensors(f io.ReaderAt, size int64) (*tensorHead, error) {
	var length [8]byte
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return nil, explain(err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHead || int64(n) > size-8 {
		return nil, broken("a head of %d bytes in a file of %d; is it truncated?", n, size)
	}
	text := make([]byte, n)
	if _, err := f.ReadAt(text, 8); err != nil {
		return nil, explain(err)
	}
	h := &tensorHead{data: 8 + int64(n), tensors: map[string]tensor{}}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(text, &entries); err != nil {
		return nil, broken("the head is no JSON: %v", err)
	}
	var m map[string]string
	for name, entry := range entries {
		var err error
		if name == "__metadata__" {
			err = json.Unmarshal(entry, &m)
		} else {
			var t tensor
			err = json.Unmarshal(entry, &t)
			h.tensors[name] = t
		}
		if err != nil {
			return nil, broken("the head, %q: %v", name, err)
		}
	}
	var ok bool
	if h.metadata, ok = m["starfish"]; !ok || !strings.HasPrefix(string(text), safetensorsHead) {
		return nil, broken("the head has no metadata of starfish")
	}
	var err error
	if h.digest, err = parseDigest(m["xxh64"]); err != nil {
		return nil, err
	}
	from := int64(8 + len(safetensorsHead) + len(unsummed))
	h.f = io.NewSectionReader(f, from, size-from)
	return h, nil
}

// verify compares the digest.
func (h *tensorHead) verify() error {
	sum := xxhash.New()
	if _, err := io.Copy(sum, h.f); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return compare(sum.Sum64(), h.digest)
}
