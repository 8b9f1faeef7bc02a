package transport

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"starfish/internal/wire"
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
	// greeting bounds how long a new connection may take to speak HTTP/2.
	greeting = 10 * time.Second
)

// NewServer returns a gRPC server that carries Streams. Its Stop returns when
// no handler runs any more. Extra options come last.
func NewServer(extra ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
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
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(newCodec()),
			grpc.MaxCallRecvMsgSize(maxFrame),
			grpc.MaxCallSendMsgSize(maxFrame),
			// Without a retry buffer a sent body is released once it is sent.
			grpc.MaxRetryRPCBufferSize(0),
		),
	)
}

// messages is the part of gRPC's streams that both ends share.
type messages interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

type stream struct {
	messages
	in incoming
}

// Open starts the stream method on a connection; it ends with ctx.
func Open(ctx context.Context, cc *grpc.ClientConn, desc *grpc.StreamDesc, method string) (Stream, error) {
	s, err := cc.NewStream(ctx, desc, method)
	if err != nil {
		return nil, err
	}
	return &stream{messages: s}, nil
}

// Accept is a Stream over a call that a gRPC server received.
func Accept(s grpc.ServerStream) Stream { return &stream{messages: s} }

func (s *stream) Send(b *wire.Buffer) error { return s.SendMsg(b) }

func (s *stream) Recv() ([]byte, error) {
	if err := s.RecvMsg(&s.in); err != nil {
		return nil, err
	}
	return s.in.body, nil
}
