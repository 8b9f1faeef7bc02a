// Package transport moves bytes between the processes of a job.
//
// Network is the seam to the network: TCP for production (and Unix sockets
// between processes of one host), Memory for tests and simulations. Nothing else in starfish listens or dials.
//
// A Server has two kinds of connections on one port, told apart by their first
// bytes: those of gRPC, for calls (NewClient), and those of frames (Open).
//
// Stream is the carrier of the hot path: message bodies, in order, both ways.
// A body is sent from the memory in which it was written, with a head of eight
// bytes before it, by one system call, and received into an aligned buffer that
// the stream reuses; in steady state nothing is allocated. Clients that speak
// gRPC only have a Stream too (Accept), at twice the processor time.
//
// A stream does not notice a peer that falls silent, with its connection open:
// it is waited for as one that is slow. Lost does, by the pings of the gRPC
// connection to the same peer.
//
// A peer is not trusted: a body above wire.MaxMessage is refused, memory grows
// with the bytes that arrive and not with those announced, and connections that
// do not begin as they should are closed.
package transport

import (
	"context"
	"net"
	"os"
	"strings"

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

// TCP is the machine's network, with a shorter way between processes of one host.
var TCP Network = tcp{}

type tcp struct{}

func (tcp) Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return listenLocal(l), nil
}

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if conn := dialLocal(ctx, addr, os.Geteuid()); conn != nil {
		return conn, nil
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// Advertised is the address at which others reach a listener: as configured, with
// the listener's port if that is a host without one (a name, or an address such as
// fd00::1 or [fd00::1]); else the listener's own, with the host's name where it
// listens on every interface.
func Advertised(configured string, listening net.Addr) string {
	host, port, err := net.SplitHostPort(listening.String())
	switch {
	case configured != "":
		bare := strings.TrimSuffix(strings.TrimPrefix(configured, "["), "]")
		if err == nil && (net.ParseIP(bare) != nil || !strings.Contains(configured, ":")) {
			return net.JoinHostPort(bare, port)
		}
		return configured
	case err != nil:
		return listening.String()
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return listening.String()
	}
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	return net.JoinHostPort(name, port)
}
