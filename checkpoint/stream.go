package checkpoint

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

const (
	// bufferSize is the size of the pieces in which a file's bytes go from hand
	// to hand, in bytes, small enough to stay in a processor's cache on the way;
	// buffers is how many of them are under way at most: one in each hand, and
	// one that waits.
	bufferSize = 256 << 10
	buffers    = 4
)

// hands are two goroutines that pass pieces of a file on, with MD5 taken of
// them on the way, so that encoding, MD5 and disk work at the same time and the
// slowest of them decides how long a file takes. A piece belongs to one hand at
// a time.
type hands struct {
	free chan []byte
	made int
	sum  hash.Hash
	size int64
	work errgroup.Group
}

func newHands() hands {
	return hands{free: make(chan []byte, buffers), sum: md5.New()}
}

// buffer returns an empty piece: one that is free, a new one if there are not
// enough yet, or the next that becomes free.
func (h *hands) buffer() []byte {
	select {
	case b := <-h.free:
		return b[:0]
	default:
	}
	if h.made < buffers {
		h.made++
		return make([]byte, 0, bufferSize)
	}
	return (<-h.free)[:0]
}

// digest takes MD5 and size of the pieces, in order. Between two of them it
// lets others run: a piece takes a fraction of a millisecond, the ten
// milliseconds that a goroutine may run in one go are many pushes.
func (h *hands) digest(from <-chan []byte, to chan<- []byte) {
	defer close(to)
	for piece := range from {
		h.sum.Write(piece)
		h.size += int64(len(piece))
		to <- piece
		runtime.Gosched()
	}
}

// hex is the digest, once the work is done.
func (h *hands) hex() string { return hex.EncodeToString(h.sum.Sum(nil)) }

// writer is the way of bytes into a file: Write fills pieces, one goroutine
// takes their digest, one writes them.
type writer struct {
	hands
	piece  []byte
	full   chan []byte
	failed atomic.Bool
}

func newWriter(to io.Writer) *writer {
	w := &writer{hands: newHands(), full: make(chan []byte, buffers)}
	summed := make(chan []byte, buffers)
	w.work.Go(func() error {
		w.digest(w.full, summed)
		return nil
	})
	w.work.Go(func() error { return w.write(to, summed) })
	return w
}

// write writes until it fails; then it only keeps the pieces going round.
func (w *writer) write(to io.Writer, from <-chan []byte) (err error) {
	for piece := range from {
		if err == nil {
			if _, err = to.Write(piece); err != nil {
				w.failed.Store(true)
			}
		}
		w.free <- piece
	}
	return err
}

// Write fails some time after the disk has, with a word that Close replaces by
// the disk's own.
func (w *writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if w.failed.Load() {
			return 0, io.ErrClosedPipe
		}
		if w.piece == nil {
			w.piece = w.buffer()
		}
		fits := min(len(p), cap(w.piece)-len(w.piece))
		w.piece = append(w.piece, p[:fits]...)
		p = p[fits:]
		if len(w.piece) == cap(w.piece) {
			w.full <- w.piece
			w.piece = nil
		}
	}
	return n, nil
}

// Close hands on the last piece and waits for the others. It returns the
// disk's error.
func (w *writer) Close() error {
	if len(w.piece) > 0 {
		w.full <- w.piece
	}
	close(w.full)
	return w.work.Wait()
}

// reader is the way of bytes out of a file: one goroutine reads pieces, one
// takes their digest, Read hands them out.
type reader struct {
	hands
	piece  []byte // what of it is left to hand out
	whole  []byte
	summed chan []byte
	// err is why there are no more pieces, once summed is closed: io.EOF, or
	// the disk's.
	err error
}

// newReader begins to read. stop is asked before each piece.
func newReader(from io.Reader, stop func() error) *reader {
	r := &reader{hands: newHands(), summed: make(chan []byte, buffers)}
	read := make(chan []byte, buffers)
	r.work.Go(func() error {
		defer close(read)
		for r.err == nil {
			if r.err = stop(); r.err != nil {
				break
			}
			piece := r.buffer()
			var n int
			n, r.err = io.ReadFull(from, piece[:cap(piece)])
			if errors.Is(r.err, io.ErrUnexpectedEOF) {
				r.err = io.EOF
			}
			if n > 0 {
				read <- piece[:n]
			}
		}
		return nil
	})
	r.work.Go(func() error {
		r.digest(read, r.summed)
		return nil
	})
	return r
}

func (r *reader) Read(p []byte) (int, error) {
	if len(r.piece) == 0 {
		if r.whole != nil {
			r.free <- r.whole
			r.whole = nil
		}
		piece, more := <-r.summed
		if !more {
			return 0, r.err
		}
		r.whole, r.piece = piece, piece
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// Close reads on to the end, for the digest, and waits. It returns the disk's
// error, or what stop said.
func (r *reader) Close() error {
	if r.whole != nil {
		r.free <- r.whole
	}
	for piece := range r.summed {
		r.free <- piece
	}
	_ = r.work.Wait() // never fails
	if errors.Is(r.err, io.EOF) {
		return nil
	}
	return r.err
}
