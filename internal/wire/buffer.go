package wire

import "unsafe"

const (
	// Headroom is the number of bytes that a Buffer leaves free before the
	// body, for the carrier's own framing.
	Headroom = 8
	// PartSize is the size above which a trainer cuts a message into parts, in
	// both directions.
	PartSize = 4 << 20
	// MaxMessage is the size of the largest body that is accepted. It leaves
	// room for a single huge row, which is never cut.
	MaxMessage = 64 << 20

	smallest = 4096
	// kept bounds the memory that an idle buffer may hold on to.
	kept = 2 * PartSize
)

// Aligned returns n bytes that begin at a multiple of eight.
func Aligned(n int) []byte {
	if n == 0 {
		return nil
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// Buffer holds one message while it is written and sent.
type Buffer struct {
	mem  []byte // headroom and body
	pool *Pool
}

// Body is the message.
func (b *Buffer) Body() []byte { return b.mem[Headroom:] }

// Frame is the message after n ≤ Headroom bytes of headroom.
func (b *Buffer) Frame(n int) []byte { return b.mem[Headroom-n:] }

// Release returns the buffer to its pool. The caller must not use it again.
func (b *Buffer) Release() {
	if b.pool != nil && cap(b.mem) <= kept {
		select {
		case b.pool.free <- b:
		default:
		}
	}
}

// Extend makes the body n bytes longer and returns the new, unwritten bytes.
func (b *Buffer) Extend(n int) []byte {
	at := len(b.mem)
	if cap(b.mem)-at < n {
		grown := Aligned(max(2*cap(b.mem), at+n, smallest))
		b.mem = grown[:copy(grown, b.mem)]
	}
	b.mem = b.mem[:at+n]
	return b.mem[at:]
}

func (b *Buffer) reset() {
	b.mem = b.mem[:0]
	b.Extend(Headroom)
}

// Pool recycles buffers.
type Pool struct{ free chan *Buffer }

// NewPool returns a pool that keeps at most n idle buffers.
func NewPool(n int) *Pool { return &Pool{free: make(chan *Buffer, n)} }

// Get returns an empty buffer.
func (p *Pool) Get() *Buffer {
	select {
	case b := <-p.free:
		b.reset()
		return b
	default:
		b := &Buffer{pool: p}
		b.reset()
		return b
	}
}
