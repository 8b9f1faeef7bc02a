package checkpoint

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	// FormatVersion is the version of the file's layout.
	FormatVersion = 1
	// BlockSize is the largest block in bytes; emit cuts what is longer.
	BlockSize = 1 << 20
	// maxMessage bounds a gob message: a block, its section's name and gob's
	// own bytes. A longer one can only come from a broken file.
	maxMessage = BlockSize + 64<<10
	// maxSection bounds the name of a section in bytes.
	maxSection = 1 << 10
)

// Header begins a file.
type Header struct {
	Version    int
	JobUUID    string
	Shard      int
	Generation int64
	// Created is the saver's wall clock (UnixNano), for people only.
	Created int64
}

// block is a piece of a section; the trailer is the block with End set.
type block struct {
	Section string
	Data    []byte
	End     bool
	// Blocks and Bytes are the sums of what stands before the trailer.
	Blocks int64
	Bytes  int64
}

// ErrFormat is what every file that was not written by this package, or was cut
// or changed since, is refused with.
var ErrFormat = errors.New("checkpoint: broken file")

// Emit adds bytes to a section. It copies nothing and keeps nothing: data may
// be reused after the call.
type Emit func(section string, data []byte) error

// encode writes a whole file to w: the header, what write emits, the trailer.
func encode(w io.Writer, h Header, write func(Emit) error) error {
	enc := gob.NewEncoder(w)
	if err := enc.Encode(h); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	var end = block{End: true}
	emit := func(section string, data []byte) error {
		if section == "" || len(section) > maxSection {
			return fmt.Errorf("checkpoint: bad section name %.40q", section)
		}
		for first := true; first || len(data) > 0; first = false {
			n := min(len(data), BlockSize)
			if err := enc.Encode(block{Section: section, Data: data[:n]}); err != nil {
				return fmt.Errorf("write block: %w", err)
			}
			data = data[n:]
			end.Blocks++
			end.Bytes += int64(n)
		}
		return nil
	}
	if err := write(emit); err != nil {
		return err
	}
	if err := enc.Encode(end); err != nil {
		return fmt.Errorf("write trailer: %w", err)
	}
	return nil
}

// decode reads a whole file from r: check sees the header, then each gets every
// block in order. The data of a block is reused for the next one.
func decode(r io.Reader, check func(Header) error, each Emit) error {
	dec := gob.NewDecoder(&messageGuard{r: bufio.NewReaderSize(r, 256<<10)})
	var h Header
	if err := dec.Decode(&h); err != nil {
		return broken("header", err)
	}
	if h.Version != FormatVersion {
		return fmt.Errorf("%w: format version %d, this program reads %d", ErrFormat, h.Version, FormatVersion)
	}
	if err := check(h); err != nil {
		return err
	}
	var blocks, bytes int64
	var b block
	for {
		b = block{Data: b.Data[:0]}
		if err := dec.Decode(&b); err != nil {
			return broken("block", err)
		}
		if b.End {
			break
		}
		if b.Section == "" || len(b.Section) > maxSection || len(b.Data) > BlockSize {
			return fmt.Errorf("%w: block without a proper section or too long", ErrFormat)
		}
		if err := each(b.Section, b.Data); err != nil {
			return err
		}
		blocks++
		bytes += int64(len(b.Data))
	}
	if blocks != b.Blocks || bytes != b.Bytes {
		return fmt.Errorf("%w: %d blocks with %d bytes, the trailer says %d with %d",
			ErrFormat, blocks, bytes, b.Blocks, b.Bytes)
	}
	if err := dec.Decode(&b); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: bytes behind the trailer", ErrFormat)
	}
	return nil
}

func broken(what string, err error) error {
	var read *readError
	if errors.As(err, &read) {
		return read
	}
	return fmt.Errorf("%w: %s: %w", ErrFormat, what, err)
}

// messageGuard passes a gob stream on and refuses a message that claims to be
// longer than any of ours, before the decoder makes room for it. A gob message
// is its length (gob's unsigned integer) and that many bytes.
type messageGuard struct {
	r    *bufio.Reader
	left uint64 // bytes of the current message still to pass on
	head []byte // bytes of the current length still to pass on
}

// ReadByte makes the decoder read through the guard without a buffer between.
func (g *messageGuard) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(g, b[:])
	return b[0], err
}

func (g *messageGuard) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(g.head) == 0 && g.left == 0 {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	if len(g.head) > 0 {
		n := copy(p, g.head)
		g.head = g.head[n:]
		return n, nil
	}
	n, err := g.r.Read(p[:min(uint64(len(p)), g.left)])
	g.left -= uint64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, wrapRead(err)
}

// next reads the length of the next message.
func (g *messageGuard) next() error {
	first, err := g.r.ReadByte()
	if err != nil {
		return wrapRead(err)
	}
	g.head = append(g.head[:0], first)
	g.left = uint64(first)
	if first > math.MaxInt8 {
		count := -int(int8(first))
		if count > 8 {
			return errMessage
		}
		g.left = 0
		for range count {
			b, err := g.r.ReadByte()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return wrapRead(err)
			}
			g.head = append(g.head, b)
			g.left = g.left<<8 | uint64(b)
		}
	}
	if g.left > maxMessage {
		return errMessage
	}
	return nil
}

var errMessage = errors.New("message too long")

// readError tells an error of the disk from one of the content: the first is
// tried again, the second never.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

func wrapRead(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &readError{err}
}
