// Package transport moves bytes between the processes of a job.
//
// Network is the seam to the network: TCP for production, Memory for tests and
// simulations. gRPC's clients and servers are made by NewClient and NewServer
// over a Network; nothing else in starfish listens or dials.
//
// Stream is the carrier of the hot path: message bodies, in order, both ways.
// The implementation here is a bidirectional gRPC stream of
//
//	message Frame { bytes body = 1; }
//
// whose encoding is written around the body and not by protobuf's code: a body
// is sent from the memory it was written in, and received by one copy from
// gRPC's buffers into an aligned buffer that the stream reuses. Other carriers
// can take its place without a change to the messages.
//
// A peer is not trusted: a body above wire.MaxMessage is refused before memory
// is given to it, connections that do not speak HTTP/2 are closed, and peers
// that fall silent are noticed by keep-alive pings.
package transport

import (
	"context"
	"net"

	"starfish/internal/wire"
)

// Network makes connections. Implementations are safe for concurrent use.
type Network interface {
	// Listen listens at host:port; port 0 chooses a free one.
	Listen(addr string) (net.Listener, error)
	// Dial connects to a listener.
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// Stream carries message bodies in order. Send and Recv may run concurrently
// with each other, but each of them only once at a time. Both end when the
// stream's context does.
type Stream interface {
	// Send sends the body of b, which belongs to the stream from then on; the
	// stream releases it when it has been sent. Send blocks while the peer is
	// not reading (back-pressure).
	Send(b *wire.Buffer) error
	// Recv returns the next body, 8-byte aligned and valid until the next
	// Recv; io.EOF after an orderly end.
	Recv() ([]byte, error)
}

// TCP is the machine's network.
var TCP Network = tcp{}

type tcp struct{}

func (tcp) Listen(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}
