package reader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a .zst file may ask for: what the zstd
// program itself accepts without being told otherwise.
const maxWindow = 128 << 20

// Compressed tells by the name whether a file is read through a decompressor.
func Compressed(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".gz", ".zst":
		return true
	}
	return false
}

// damage is what is wrong inside a compressed file.
type damage struct {
	offset int64 // in the compressed file, about
	err    error
}

// Error says that the file is damaged, and how.
func (d *damage) Error() string {
	switch {
	case errors.Is(d.err, io.ErrUnexpectedEOF):
		return "the compressed file is truncated"
	case errors.Is(d.err, gzip.ErrHeader), errors.Is(d.err, zstd.ErrMagicMismatch):
		return "the file, or what follows there, is not compressed as its name says"
	}
	return fmt.Sprintf("the compressed file is damaged: %v", d.err)
}

// Unwrap gives the decompressor's error.
func (d *damage) Unwrap() error { return d.err }

// stream makes the content of a compressed file readable by offset. Reading
// forward is what it is made for; going back starts from the beginning.
type stream struct {
	path string
	file io.ReaderAt
	size int64

	in  *meter
	out io.Reader
	zst *zstd.Decoder
	pos int64 // of out
	err error
}

func newStream(path string, file io.ReaderAt, size int64) *stream {
	return &stream{path: path, file: file, size: size}
}

// meter counts what the decompressor has taken.
type meter struct {
	*bufio.Reader
	source *io.SectionReader
}

func (m *meter) taken() int64 {
	at, err := m.source.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	return at - int64(m.Buffered())
}

// start begins at the file's beginning.
func (s *stream) start() {
	s.pos, s.err, s.out = 0, nil, nil
	source := io.NewSectionReader(s.file, 0, s.size)
	s.in = &meter{Reader: bufio.NewReaderSize(source, 64<<10), source: source}
	switch {
	case s.zst != nil:
		s.err = s.zst.Reset(s.in)
	case strings.EqualFold(filepath.Ext(s.path), ".zst"):
		s.zst, s.err = zstd.NewReader(s.in, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	default:
		var z *gzip.Reader
		if z, s.err = gzip.NewReader(s.in); z != nil {
			s.out = z
		}
	}
	if s.zst != nil {
		s.out = s.zst
	}
	s.err = s.explain(s.err)
}

// explain makes a decompressor's error a damage. What a file system says about
// the file is no damage.
func (s *stream) explain(err error) error {
	var system interface{ Timeout() bool } // *os.PathError, syscall.Errno
	switch {
	case err == nil, errors.As(err, &system):
		return err
	case errors.Is(err, io.EOF) && s.in.taken() >= s.size && s.pos == 0 && s.out == nil:
		err = io.ErrUnexpectedEOF // the file ends within the head
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return &damage{offset: s.in.taken(), err: err}
}

// ReadAt reads decompressed bytes.
func (s *stream) ReadAt(b []byte, at int64) (int, error) {
	if s.in == nil || at < s.pos {
		s.start()
	}
	if s.err != nil {
		return 0, s.err
	}
	if at > s.pos {
		n, err := io.CopyN(io.Discard, s.out, at-s.pos)
		s.pos += n
		if s.err = s.explain(err); s.err != nil {
			return 0, s.err
		}
	}
	for n := 0; n < len(b); {
		k, err := s.out.Read(b[n:])
		n += k
		s.pos += int64(k)
		if err != nil {
			s.err = s.explain(err)
			return n, s.err
		}
	}
	return len(b), nil
}

// close releases the decompressor.
func (s *stream) close() {
	if s.zst != nil {
		s.zst.Close()
		s.zst = nil
	}
	s.out, s.in = nil, nil
}
