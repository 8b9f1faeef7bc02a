package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"starfish/internal/clock"
	"starfish/internal/wire"
)

// preface is what a connection that carries frames begins with. It has the
// length of a frame's head, and cannot begin an HTTP/2 connection.
const preface = "sfframe1"

// The kinds of frames.
const (
	kindBody  = 0
	kindError = 1 // the reason, as text, why the sender ends the stream
)

const (
	frameHead  = 8
	maxReason  = 1 << 10
	readBuffer = 64 << 10
)

var (
	// ErrFrame: what was received is not a frame.
	ErrFrame = errors.New("transport: malformed frame")
	// ErrTooLarge: a body above wire.MaxMessage.
	ErrTooLarge = errors.New("transport: the body is too large")
	// ErrRefused is wrapped by the reason with which a peer ended a stream.
	ErrRefused = errors.New("transport: the peer ended the stream")
)

// Open connects to the server at addr for a stream of frames, which ends with
// ctx. It fails if there is no connection within connectTimeout.
func Open(ctx context.Context, n Network, addr string) (Stream, error) {
	limit, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no connection to %s within %v", addr, connectTimeout))
	defer cancel()
	conn, err := n.Dial(limit, addr)
	if err != nil {
		return nil, fmt.Errorf("transport: open a stream: %w", err)
	}
	if _, err := io.WriteString(conn, preface); err != nil {
		return nil, errors.Join(fmt.Errorf("transport: open a stream: %w", err), conn.Close())
	}
	s := newFrames(conn)
	context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })
	return s, nil
}

// frames is a Stream over a connection of its own. A frame is a head of eight
// bytes, the payload's length and its kind as little-endian uint32, then the
// payload.
type frames struct {
	conn net.Conn
	in   *bufio.Reader
	head [frameHead]byte // of the frame that is being received
	buf  []byte          // for its payload

	mu  sync.Mutex
	err error // why the stream has ended, if it has
}

func newFrames(conn net.Conn) *frames {
	return &frames{conn: conn, in: bufio.NewReaderSize(conn, readBuffer)}
}

// fail ends the stream; the first reason stays.
func (s *frames) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	_ = s.conn.Close() // what it could say is of no use any more
}

// ended is why the stream has ended: the reason that fail was given, or err.
func (s *frames) ended(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	return err
}

func (s *frames) Send(b *wire.Buffer) error {
	defer b.Release()
	if len(b.Body()) > wire.MaxMessage {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, len(b.Body()))
	}
	frame := b.Frame(frameHead)
	putHead(frame, len(b.Body()), kindBody)
	if _, err := s.conn.Write(frame); err != nil {
		s.fail(err)
		return io.EOF
	}
	return nil
}

func putHead(head []byte, size, kind int) {
	binary.LittleEndian.PutUint32(head, uint32(size))
	binary.LittleEndian.PutUint32(head[4:], uint32(kind))
}

func (s *frames) Recv() ([]byte, error) {
	body, err := s.recv()
	if err != nil {
		return nil, s.ended(err)
	}
	return body, nil
}

func (s *frames) recv() ([]byte, error) {
	if _, err := io.ReadFull(s.in, s.head[:]); err != nil {
		return nil, err
	}
	size, kind := binary.LittleEndian.Uint32(s.head[:]), binary.LittleEndian.Uint32(s.head[4:])
	switch {
	case kind == kindError && size <= maxReason:
		reason := make([]byte, size)
		if _, err := io.ReadFull(s.in, reason); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s", ErrRefused, reason)
	case kind != kindBody:
		return nil, fmt.Errorf("%w: kind %d with %d bytes", ErrFrame, kind, size)
	case size > wire.MaxMessage:
		return nil, fmt.Errorf("%w: %d bytes are announced", ErrTooLarge, size)
	}
	return s.payload(int(size))
}

// payload reads n bytes. Memory grows with what arrives, not with what was
// announced.
func (s *frames) payload(n int) ([]byte, error) {
	if cap(s.buf) > 4*wire.PartSize && n <= wire.PartSize {
		s.buf = nil // one huge message does not hold memory for ever
	}
	for at := 0; ; {
		if upTo := min(n, at+wire.PartSize); cap(s.buf) < upTo {
			grown := wire.Aligned(min(upTo+upTo/4, max(n, upTo)))
			copy(grown, s.buf[:at])
			s.buf = grown
		}
		part := s.buf[at:min(n, cap(s.buf))]
		if _, err := io.ReadFull(s.in, part); err != nil {
			return nil, unexpected(err)
		}
		if at += len(part); at == n {
			return s.buf[:n], nil
		}
	}
}

// unexpected is the error of a connection that ends within a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// refuse tells the peer why the stream ends, and ends it.
func (s *frames) refuse(err error) {
	reason := err.Error()
	reason = reason[:min(len(reason), maxReason)]
	frame := make([]byte, frameHead, frameHead+len(reason))
	putHead(frame, len(reason), kindError)
	// Nobody waits for it: a peer that does not read must not hold up the end.
	if s.conn.SetWriteDeadline(clock.System.Now().Add(goodbye)) == nil {
		_, _ = s.conn.Write(append(frame, reason...))
	}
	_ = s.conn.Close()
}
