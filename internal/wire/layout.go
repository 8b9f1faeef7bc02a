package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of the layout. A message of another one is refused.
const Version = 2

// ErrFormat: the body is not a message of this version.
var ErrFormat = errors.New("wire: malformed message")

// maxSections bounds the sections of a message: their decoded form is larger
// than their bytes.
const maxSections = 1 << 16

// The kinds of message.
const (
	kindRequest  = 1
	kindResponse = 2
)

// The sizes of the fixed parts, all multiples of eight.
const (
	requestHeader   = 32
	requestSection  = 40
	barrierHeader   = 24
	pushHeader      = 56
	arrayHeader     = 16 // before pushed values and before pulled keys
	blockRef        = 8
	responseHeader  = 16
	responseSection = 32
)

// The flags of a request's section.
const (
	flagPush = 1 << iota
	flagMore
	flagLast
	flagVoid
	flagGap
	flagBarrier
	flagAwait
	flagIdle
	flags
)

// flagFinished is the flag of a response's section.
const flagFinished = 1

var le = binary.LittleEndian

func padded(n int) int { return (n + 7) &^ 7 }

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// scanner walks over a body. After a failed step every later one fails too,
// so that its user may check once after several steps.
type scanner struct {
	rest []byte
	bad  bool
}

// take returns the next n bytes, or nil if they are not there.
func (s *scanner) take(n int) []byte {
	if n < 0 || n > len(s.rest) {
		s.bad = true
		return nil
	}
	b := s.rest[:n:n]
	s.rest = s.rest[n:]
	return b
}

// array returns the next n elements of size bytes and skips the padding.
func (s *scanner) array(n uint32, size int) []byte {
	total := uint64(n) * uint64(size)
	if total > uint64(len(s.rest)) {
		s.bad = true
		return nil
	}
	b := s.take(padded(int(total)))
	if s.bad {
		return nil
	}
	for _, x := range b[total:] {
		s.bad = s.bad || x != 0
	}
	return b[:total:total]
}

// header checks what every message begins with and returns the number of
// sections, each of which takes at least size bytes.
func (s *scanner) header(kind uint16, length, size int) (head []byte, sections int, err error) {
	if len(s.rest) > MaxMessage {
		return nil, 0, malformed("%d bytes are more than %d", len(s.rest), MaxMessage)
	}
	if !aligned(s.rest) {
		return nil, 0, malformed("the body is not aligned")
	}
	head = s.take(length)
	if s.bad {
		return nil, 0, malformed("too short for a header")
	}
	if v := le.Uint16(head); v != Version {
		return nil, 0, malformed("version %d, this program speaks %d", v, Version)
	}
	if k := le.Uint16(head[2:]); k != kind {
		return nil, 0, malformed("kind %d instead of %d", k, kind)
	}
	n := le.Uint32(head[4:])
	if n > maxSections || uint64(n)*uint64(size) > uint64(len(s.rest)) {
		return nil, 0, malformed("%d sections do not fit", n)
	}
	return head, int(n), nil
}
