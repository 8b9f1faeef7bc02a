package reader

import (
	"bytes"
	"errors"
	"io"
)

const (
	// block is how much is read at once: large enough to make calls rare, small
	// enough to still lie in the cache when it is parsed.
	block = 256 << 10
	// beyond is how much is read past a chunk's end at first, for the rest of
	// its last record.
	beyond = 2 << 10
	// alignment and page are what reads are aligned to in memory and file.
	alignment = 64
	page      = 4 << 10
	// MaxRecord is the longest record in bytes; longer ones are bad records.
	MaxRecord = 64 << 20
)

var errTooLong = errors.New("record too long")

// source delivers the lines of a chunk: those whose first byte lies in
// [start, end). It reads large blocks and keeps no count of lines.
//
// buf[pos:lim] are complete lines that have not been consumed, buf[lim:n] is
// the beginning of another. After buf[n] there is always `slack` more room.
type source struct {
	f         io.ReaderAt
	buf       []byte
	base      int64 // the file offset of buf[0]
	pos       int
	lim, n    int
	end, size int64 // size is endless where it is not known yet
	// searching: the next line's start has not been found yet.
	searching bool
	maxRecord int
}

// reset points the source at the chunk [start, end) of a file of size bytes.
func (s *source) reset(f io.ReaderAt, start, end, size int64, maxRecord int) {
	*s = source{f: f, buf: s.buf, base: start, end: end, size: size, maxRecord: maxRecord}
	if start > 0 {
		// Whether a line begins at start depends on the byte before it.
		s.searching = true
		s.base = (start - 1) / alignment * alignment
		s.pos = int(start - 1 - s.base)
	}
}

// exactly: a line begins where the chunk does.
func (s *source) exactly(start int64) {
	s.searching = false
	s.pos = int(start - s.base)
}

// next makes buf[pos] the start of a complete line of the chunk; false at the
// chunk's end. errTooLong: the line at offset() is longer than maxRecord; the
// source has passed over it.
func (s *source) next() (bool, error) {
	for {
		if s.searching {
			if ok, err := s.search(); !ok || err != nil {
				return false, err
			}
		}
		if s.base+int64(s.pos) >= s.end {
			return false, nil
		}
		if s.pos < s.lim {
			return true, nil
		}
		if s.n-s.pos >= s.maxRecord {
			s.searching = true
			return false, errTooLong
		}
		if err := s.read(); err != nil {
			return false, err
		}
	}
}

// offset is where in the file the next line starts.
func (s *source) offset() int64 { return s.base + int64(s.pos) }

// stop is the end of the lines in buf that belong to the chunk.
func (s *source) stop() int { return int(min(int64(s.lim), s.end-s.base)) }

// search moves to the first line that starts behind pos, without keeping what
// lies before it; false if none starts in the chunk.
func (s *source) search() (bool, error) {
	for {
		// A newline at end-1 would start a line that is not ours.
		if upto := int(min(int64(s.n), s.end-1-s.base)); s.pos < upto {
			if i := bytes.IndexByte(s.buf[s.pos:upto], '\n'); i >= 0 {
				s.pos += i + 1
				s.searching = false
				s.findLimit(s.pos)
				return true, nil
			}
			s.pos = upto
		}
		if s.base+int64(max(s.n, s.pos)) >= s.end-1 {
			return false, nil
		}
		if err := s.read(); err != nil {
			return false, err
		}
	}
}

// read reads on, after moving what is not consumed to the front. Reads begin
// and end at multiples of a page of the file, and bytes keep their place modulo
// 64: the kernel copies aligned memory several times as fast.
func (s *source) read() error {
	if front := s.pos % alignment; s.pos > front && s.pos <= s.n {
		s.n = front + copy(s.buf[front:], s.buf[s.pos:s.n])
		s.base += int64(s.pos - front)
		s.pos = front
	}
	at := s.base + int64(s.n)
	want := s.end - at + beyond
	switch {
	case s.n > block/2: // a long record: read in growing steps
		want = int64(s.n)
	case at >= s.end: // only the last line is missing
		want = beyond
	}
	want = min((at+min(want, block)+page-1)/page*page, s.size) - at
	s.reserve(s.n + int(want) + slack)
	got, err := s.f.ReadAt(s.buf[s.n:s.n+int(want)], at)
	if int64(got) < want {
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case s.size != endless:
			return io.ErrUnexpectedEOF
		}
		s.size = at + int64(got) // a stream's end is known when it is met
		s.end = min(s.end, s.size)
		s.pos = min(s.pos, s.n+got)
	}
	from := max(s.n, s.pos)
	s.n += got
	s.findLimit(from)
	return nil
}

// more puts further lines behind those that are in memory and keeps pos, for a
// record of several lines; false if there are none.
func (s *source) more() (bool, error) {
	for lines := s.lim - s.pos; s.lim-s.pos <= lines; {
		if s.base+int64(s.n) >= s.size || s.n-s.pos >= s.maxRecord {
			return false, nil
		}
		if err := s.read(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// findLimit sets lim, given that buf[pos:from] has no newline. The file's last
// line may lack one: it gets it here.
func (s *source) findLimit(from int) {
	s.lim = s.pos
	if i := bytes.LastIndexByte(s.buf[from:s.n], '\n'); i >= 0 {
		s.lim = from + i + 1
	}
	if s.base+int64(s.n) == s.size && s.lim < s.n {
		s.buf[s.n] = '\n'
		s.lim = s.n + 1
	}
}

func (s *source) reserve(n int) {
	if n <= len(s.buf) {
		return
	}
	grown := make([]byte, n+n/4)
	copy(grown, s.buf[:s.n])
	s.buf = grown
}
