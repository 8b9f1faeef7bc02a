package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"starfish/internal/clock"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/pserver/pb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers each body with itself.
type echo struct {
	pb.UnimplementedPServerServer
	bodies atomic.Int64
}

func (e *echo) Exchange(g grpc.BidiStreamingServer[pb.Frame, pb.Frame]) error {
	s, buffers := transport.Accept(g), wire.NewPool(4)
	for {
		body, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		e.bodies.Add(1)
		if err := s.Send(bufferOf(buffers, body)); err != nil {
			return err
		}
	}
}

func (e *echo) Identify(context.Context, *pb.IdentifyRequest) (*pb.IdentifyResponse, error) {
	return &pb.IdentifyResponse{Name: "echo"}, nil
}

func bufferOf(p *wire.Pool, body []byte) *wire.Buffer {
	b := p.Get()
	copy(b.Extend(len(body)), body)
	return b
}

// serve starts the echo server and returns its address.
func serve(t testing.TB, n transport.Network, addr string) (string, *echo) {
	t.Helper()
	l, err := n.Listen(addr)
	require.NoError(t, err)
	e, s := &echo{}, transport.NewServer()
	pb.RegisterPServerServer(s, e)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-done)
	})
	return l.Addr().String(), e
}

func dial(t testing.TB, n transport.Network, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := transport.NewClient(n, addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func open(ctx context.Context, t testing.TB, cc *grpc.ClientConn) transport.Stream {
	t.Helper()
	s, err := transport.Open(ctx, cc, &pb.PServer_ServiceDesc.Streams[0], pb.PServer_Exchange_FullMethodName)
	require.NoError(t, err)
	return s
}

func TestStreamCarriesBodies(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]transport.Network{
		"tcp": transport.TCP, "memory": transport.NewMemory(clock.System).Host("127.0.0.1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := serve(t, n, "127.0.0.1:0")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cc := dial(t, n, addr)
			s := open(ctx, t, cc)
			buffers := wire.NewPool(4)
			random := rand.New(rand.NewPCG(1, 2))
			for _, size := range []int{0, 1, 7, 8, 100, 16 << 10, 16<<10 + 1, 1 << 20, 5<<20 + 3, 3} {
				want := wire.Aligned(size)
				for i := range want {
					want[i] = byte(random.Uint32())
				}
				require.NoError(t, s.Send(bufferOf(buffers, want)))
				got, err := s.Recv()
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "%d bytes", size)
			}
			// The unary calls share the connection and its codec.
			id, err := pb.NewPServerClient(cc).Identify(ctx, &pb.IdentifyRequest{})
			require.NoError(t, err)
			require.Equal(t, "echo", id.Name)
		})
	}
}

// A stock protobuf stub must be able to talk to the hot path too.
func TestFramesAreProtobuf(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := pb.NewPServerClient(dial(t, transport.TCP, addr)).Exchange(ctx)
	require.NoError(t, err)
	for _, body := range []string{"", "x", string(make([]byte, 300))} {
		require.NoError(t, s.Send(&pb.Frame{Body: []byte(body)}))
		f, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, body, string(f.Body))
	}
}

func TestSentBuffersComeBack(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := open(ctx, t, dial(t, transport.TCP, addr))
	buffers := wire.NewPool(1)
	b := bufferOf(buffers, []byte("first"))
	require.NoError(t, s.Send(b))
	_, err := s.Recv()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return buffers.Get() == b }, 5*time.Second, time.Millisecond)
}

func TestTooLargeABodyIsRefused(t *testing.T) {
	t.Parallel()
	addr, e := serve(t, transport.TCP, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := open(ctx, t, dial(t, transport.TCP, addr))
	err := s.Send(bufferOf(wire.NewPool(0), make([]byte, wire.MaxMessage+8)))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Zero(t, e.bodies.Load())
}

// A connection to a dead address fails the call instead of waiting.
func TestDeadAddressFailsAtOnce(t *testing.T) {
	t.Parallel()
	l, err := transport.TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cc := dial(t, transport.TCP, l.Addr().String())
	_, err = pb.NewPServerClient(cc).Identify(t.Context(), &pb.IdentifyRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
}

// Garbage on the port: the connection is closed, memory stays flat, and the
// next client is served.
func TestServerSurvivesGarbage(t *testing.T) {
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	random := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	cases := map[string][]byte{
		"random bytes":       noise,
		"HTTP GET":           []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"2 GB frame length":  append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1),
		"nothing but zeroes": make([]byte, 1<<16),
	}
	before := heap()
	for name, garbage := range cases {
		for range 8 {
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err, name)
			go func() { _, _ = conn.Write(garbage) }() // fails when the server hangs up
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			_, err = io.Copy(io.Discard, conn)
			var timeout net.Error
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%s: the server does not hang up", name)
			require.NoError(t, conn.Close())
		}
	}
	require.Less(t, heap(), before+32<<20)
	_, err := pb.NewPServerClient(dial(t, transport.TCP, addr)).Identify(t.Context(), &pb.IdentifyRequest{})
	require.NoError(t, err)
}

// A message header that claims 2 GB inside a good HTTP/2 stream.
func TestServerRefusesAHugeMessageHeader(t *testing.T) {
	addr, e := serve(t, transport.TCP, "127.0.0.1:0")
	before := heap()
	for _, claim := range []uint32{2 << 30, 1<<32 - 1, wire.MaxMessage + 100} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		_, err = conn.Write(rawCall(claim))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
		requireEndOfStream(t, conn)
		require.NoError(t, conn.Close())
	}
	require.Less(t, heap(), before+32<<20)
	require.Zero(t, e.bodies.Load())
	_, err := pb.NewPServerClient(dial(t, transport.TCP, addr)).Identify(t.Context(), &pb.IdentifyRequest{})
	require.NoError(t, err)
}

// rawCall is an HTTP/2 connection that opens Exchange and begins a message of
// claim bytes.
func rawCall(claim uint32) []byte {
	frame := func(kind, flags byte, stream uint32, payload []byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
		b = append(b, kind, flags)
		b = binary.BigEndian.AppendUint32(b, stream)
		return append(b, payload...)
	}
	text := func(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }
	headers := []byte{0x83, 0x86} // :method POST, :scheme http
	headers = text(append(headers, 0x04), pb.PServer_Exchange_FullMethodName)
	headers = text(append(headers, 0x01), "localhost")
	headers = text(append(headers, 0x0f, 0x10), "application/grpc")
	headers = text(text(append(headers, 0x00), "te"), "trailers")
	b := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	b = append(b, frame(4, 0, 0, nil)...)     // SETTINGS
	b = append(b, frame(1, 4, 1, headers)...) // HEADERS
	message := binary.BigEndian.AppendUint32([]byte{0}, claim)
	return append(b, frame(0, 0, 1, append(message, 0x0a))...) // DATA
}

// requireEndOfStream reads frames up to the one that ends stream 1.
func requireEndOfStream(t *testing.T, r io.Reader) {
	t.Helper()
	head := make([]byte, 9)
	for {
		_, err := io.ReadFull(r, head)
		require.NoError(t, err)
		_, err = io.CopyN(io.Discard, r, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
		require.NoError(t, err)
		ended := head[3] == 1 && head[4]&1 != 0 || head[3] == 3 // trailers or RST_STREAM
		if ended && binary.BigEndian.Uint32(head[5:]) == 1 {
			return
		}
	}
}

func TestStreamRefusesOtherMessages(t *testing.T) {
	t.Parallel()
	addr, e := serve(t, transport.TCP, "127.0.0.1:0")
	cc := dial(t, transport.TCP, addr)
	for name, raw := range map[string][]byte{
		"another field":  {0x12, 1, 'x'},
		"a varint field": {0x08, 1},
		"too short":      {0x0a, 5, 'x'},
		"too long":       {0x0a, 1, 'x', 'y'},
		"no length":      {0x0a},
		"endless length": {0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		s, err := cc.NewStream(ctx, &pb.PServer_ServiceDesc.Streams[0], pb.PServer_Exchange_FullMethodName, grpc.ForceCodecV2(lying{}))
		require.NoError(t, err)
		require.NoError(t, s.SendMsg(raw))
		require.Equal(t, codes.Internal, status.Code(s.RecvMsg(new(pb.Frame))), name)
		cancel()
	}
	require.Zero(t, e.bodies.Load())
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestSendStopsWhileThePeerDoesNotRead(t *testing.T) {
	t.Parallel()
	// A server that never reads its stream.
	n := transport.NewMemory(clock.System).Host("h")
	l, err := n.Listen("h:0")
	require.NoError(t, err)
	s := transport.NewServer()
	pb.RegisterPServerServer(s, deaf{})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := open(ctx, t, dial(t, n, l.Addr().String()))
	var sent atomic.Int64
	blocked := make(chan error, 1)
	go func() {
		buffers := wire.NewPool(1)
		for {
			if err := stream.Send(bufferOf(buffers, make([]byte, 1<<20))); err != nil {
				blocked <- err
				return
			}
			sent.Add(1)
		}
	}()
	last := int64(-1)
	require.Eventually(t, func() bool {
		now := sent.Load()
		stopped := now > 0 && now == last
		last = now
		return stopped
	}, 20*time.Second, 200*time.Millisecond)
	require.Less(t, sent.Load(), int64(64), "the sender is never held up")
	cancel()
	require.Error(t, <-blocked)
}

type deaf struct{ pb.UnimplementedPServerServer }

func (deaf) Exchange(g grpc.BidiStreamingServer[pb.Frame, pb.Frame]) error {
	<-g.Context().Done()
	return g.Context().Err()
}

// The whole of gRPC over the memory network in virtual time.
func TestVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory(clock.System)
		l, err := m.Host("server").Listen(":0")
		require.NoError(t, err)
		s := transport.NewServer()
		pb.RegisterPServerServer(s, &echo{})
		done := make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		cc, err := transport.NewClient(m.Host("client"), l.Addr().String())
		require.NoError(t, err)
		client := pb.NewPServerClient(cc)

		start := time.Now()
		m.Delay("server", time.Minute/4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		_, err = client.Identify(ctx, &pb.IdentifyRequest{}, grpc.WaitForReady(true))
		require.Error(t, err, "nothing connects over so long a way")
		cancel()
		m.Delay("server", time.Second)
		_, err = client.Identify(t.Context(), &pb.IdentifyRequest{}, grpc.WaitForReady(true))
		require.NoError(t, err)
		require.Greater(t, time.Since(start), time.Hour)

		// A peer that falls silent is noticed by the pings.
		m.Delay("server", 0)
		m.Silence("server", true)
		start = time.Now()
		_, err = client.Identify(t.Context(), &pb.IdentifyRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Less(t, time.Since(start), time.Minute)
		m.Silence("server", false)

		require.NoError(t, cc.Close())
		s.Stop()
		require.NoError(t, <-done)
	})
}

// lying is a codec that sends what it is given.
type lying struct{}

func (lying) Name() string { return "proto" }

func (lying) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (lying) Unmarshal(mem.BufferSlice, any) error { return nil }
