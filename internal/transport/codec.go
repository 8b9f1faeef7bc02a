package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of the unary calls
	"google.golang.org/grpc/mem"

	"starfish/internal/wire"
)

// ErrFrame: a received message is not a Frame.
var ErrFrame = errors.New("transport: malformed frame")

// bodyTag is the key of field 1 with wire type "length-delimited".
const bodyTag = 1<<3 | 2

// incoming is the destination of one received frame; its buffer is reused.
type incoming struct {
	buf  []byte
	body []byte
}

// codec is protobuf's codec, apart from frames, which it writes and reads
// without copying bodies more than once.
type codec struct{ proto encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Name() string { return c.proto.Name() }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*wire.Buffer)
	if !ok {
		return c.proto.Marshal(v)
	}
	return mem.BufferSlice{outgoingFrame(b)}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*incoming)
	if !ok {
		return c.proto.Unmarshal(data, v)
	}
	return f.decode(data)
}

// outgoing lends a buffer to gRPC and releases it when gRPC gives it back. It
// is the "pool" that gRPC returns memory to.
type outgoing struct {
	b     *wire.Buffer
	frame []byte
}

var outgoings = sync.Pool{New: func() any { return new(outgoing) }}

func outgoingFrame(b *wire.Buffer) mem.Buffer {
	var head [wire.Headroom]byte
	n := 1 + binary.PutUvarint(head[1:], uint64(len(b.Body())))
	head[0] = bodyTag
	o := outgoings.Get().(*outgoing)
	o.b, o.frame = b, b.Frame(n)
	copy(o.frame, head[:n])
	return mem.NewBuffer(&o.frame, o)
}

// Get is part of mem.BufferPool; gRPC only returns memory to this one.
func (o *outgoing) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put is called by gRPC once the frame has been sent.
func (o *outgoing) Put(*[]byte) {
	b := o.b
	o.b, o.frame = nil, nil
	outgoings.Put(o)
	b.Release()
}

// decode gathers a frame's body. An empty message is an empty body.
func (f *incoming) decode(data mem.BufferSlice) error {
	f.body = nil
	total := data.Len()
	if total == 0 {
		return nil
	}
	var head [wire.Headroom]byte
	n := data.CopyTo(head[:min(total, len(head))])
	size, width := binary.Uvarint(head[1:n])
	if head[0] != bodyTag || width <= 0 || size != uint64(total-1-width) {
		return fmt.Errorf("%w of %d bytes", ErrFrame, total)
	}
	f.reserve(int(size))
	skip, at := 1+width, 0
	for _, b := range data {
		part := b.ReadOnlyData()
		cut := min(skip, len(part))
		skip -= cut
		at += copy(f.body[at:], part[cut:])
	}
	return nil
}

// reserve makes body n bytes long. A buffer that is much larger than needed
// is let go, so that one huge message does not hold memory for ever.
func (f *incoming) reserve(n int) {
	if cap(f.buf) < n || cap(f.buf) > 4*wire.PartSize && n <= wire.PartSize {
		f.buf = wire.Aligned(n + n/4)
	}
	f.body = f.buf[:n]
}
