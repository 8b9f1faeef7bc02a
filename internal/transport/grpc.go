package transport

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"starfish/internal/wire"
	"starfish/pserver/pb"
)

// The tuning of connections, measured: large socket buffers save system calls,
// and windows that hold two parts keep the sender busy while the receiver works.
const (
	socketBuffer = 256 << 10
	window       = 2*wire.PartSize + 64<<10
	maxFrame     = wire.MaxMessage + wire.Headroom
	maxHeaders   = 16 << 10
	// pingEvery and pingTimeout bound how long a peer may be silent.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// greeting bounds how long a new connection may take to say what it speaks.
	greeting = 10 * time.Second
	// connectTimeout bounds one attempt to connect.
	connectTimeout = 3 * time.Second
	// goodbye bounds how long it may take to tell a peer why a stream ends.
	goodbye = 500 * time.Millisecond
)

// noDeadline takes a connection's deadline away.
var noDeadline time.Time

func newGRPC(extra ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(2 * window),
		grpc.MaxRecvMsgSize(maxFrame),
		grpc.MaxSendMsgSize(maxFrame),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(256),
		grpc.ConnectionTimeout(greeting),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
	}, extra...)...)
}

// NewClient returns a gRPC client of the server at addr. It connects with the
// first call; calls fail at once while the server cannot be reached.
func NewClient(n Network, addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.Dial(ctx, addr) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(socketBuffer),
		grpc.WithWriteBufferSize(socketBuffer),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(2*window),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxFrame),
			grpc.MaxCallSendMsgSize(maxFrame),
		),
	)
}

// Lost returns when a connection that NewClient made, once it had been
// established, is no more, or when ctx ends; it establishes it first. Pings
// notice a peer that has fallen silent.
func Lost(ctx context.Context, cc *grpc.ClientConn) error {
	cc.Connect()
	for ready := false; ; {
		state := cc.GetState()
		switch {
		case state == connectivity.Ready:
			ready = true
		case ready, state == connectivity.TransientFailure, state == connectivity.Shutdown:
			return ErrLost
		}
		if !cc.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
}

// ErrLost: the connection has broken, or its peer has fallen silent.
var ErrLost = errors.New("transport: the connection is lost")

// Accept is a Stream over a call that a gRPC server received, for clients that
// speak no frames: each message is one body.
func Accept(s grpc.BidiStreamingServer[pb.Frame, pb.Frame]) Stream { return &call{s} }

type call struct {
	s grpc.BidiStreamingServer[pb.Frame, pb.Frame]
}

func (c *call) Send(b *wire.Buffer) error {
	defer b.Release()
	return c.s.Send(&pb.Frame{Body: b.Body()})
}

func (c *call) Recv() ([]byte, error) {
	f, err := c.s.Recv()
	if err != nil {
		return nil, err
	}
	body := wire.Aligned(len(f.Body))
	copy(body, f.Body)
	return body, nil
}
