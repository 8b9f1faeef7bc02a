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
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"starfish/internal/clock"
	"starfish/internal/loopback"
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
	return e.exchange(g.Context(), transport.Accept(g))
}

func (e *echo) exchange(_ context.Context, s transport.Stream) error {
	buffers := wire.NewPool(4)
	for {
		body, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.bodies.Add(1); string(body) == "go away" {
			return errors.New("as you wish")
		}
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
	e := &echo{}
	return serveWith(t, n, addr, e, e.exchange), e
}

func serveWith(t testing.TB, n transport.Network, addr string, service pb.PServerServer, streams func(context.Context, transport.Stream) error) string {
	t.Helper()
	l, err := n.Listen(addr)
	require.NoError(t, err)
	s := transport.NewServer(streams)
	pb.RegisterPServerServer(s, service)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; !errors.Is(err, grpc.ErrServerStopped) { // a test may be over before its server begins
			require.NoError(t, err)
		}
	})
	return l.Addr().String()
}

func dial(t testing.TB, n transport.Network, addr string) *grpc.ClientConn {
	t.Helper()
	cc, err := transport.NewClient(n, addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// open opens a stream that ends with the test.
func open(t testing.TB, n transport.Network, addr string) transport.Stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := transport.Open(ctx, n, addr)
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
			s := open(t, n, addr)
			buffers := wire.NewPool(4)
			random := rand.New(rand.NewPCG(1, 2))
			for _, size := range []int{0, 1, 7, 8, 100, 16 << 10, 64<<10 - 8, 64<<10 + 1, 1 << 20, 9<<20 + 3, 3, wire.MaxMessage, 5} {
				want := wire.Aligned(size)
				for i := range min(size, 10<<20) {
					want[i] = byte(random.Uint32())
				}
				// The echo of a large body may begin before it is sent to its end.
				sent := make(chan error, 1)
				go func() { sent <- s.Send(bufferOf(buffers, want)) }()
				got, err := s.Recv()
				require.NoError(t, err)
				require.NoError(t, <-sent)
				require.True(t, bytes.Equal(want, got), "%d bytes", size)
				require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(got)))%8)
			}
			// The calls have the same port.
			id, err := pb.NewPServerClient(dial(t, n, addr)).Identify(t.Context(), &pb.IdentifyRequest{})
			require.NoError(t, err)
			require.Equal(t, "echo", id.Name)
		})
	}
}

// A stock protobuf stub must be able to exchange messages too.
func TestFramesAreProtobuf(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := pb.NewPServerClient(dial(t, transport.TCP, addr)).Exchange(ctx)
	require.NoError(t, err)
	for _, body := range []string{"", "x", string(make([]byte, 300)), string(make([]byte, 5<<20))} {
		require.NoError(t, s.Send(&pb.Frame{Body: []byte(body)}))
		f, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, body, string(f.Body))
	}
}

func TestSentBuffersComeBack(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	s := open(t, transport.TCP, addr)
	buffers := wire.NewPool(1)
	b := bufferOf(buffers, []byte("first"))
	require.NoError(t, s.Send(b))
	require.Same(t, b, buffers.Get())
}

func TestExchangeAllocatesNothing(t *testing.T) {
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	s := open(t, transport.TCP, addr)
	buffers, body := wire.NewPool(1), make([]byte, 100_000)
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if s.Send(bufferOf(buffers, body)) != nil {
			t.Error("not sent")
		}
		if got, err := s.Recv(); err != nil || len(got) != len(body) {
			t.Error("not received")
		}
	}))
}

func TestTooLargeABodyIsRefused(t *testing.T) {
	t.Parallel()
	addr, e := serve(t, transport.TCP, "127.0.0.1:0")
	s := open(t, transport.TCP, addr)
	require.ErrorIs(t, s.Send(bufferOf(wire.NewPool(0), make([]byte, wire.MaxMessage+8))), transport.ErrTooLarge)
	require.Zero(t, e.bodies.Load())
}

func TestTheReasonArrives(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, transport.TCP, "127.0.0.1:0")
	s := open(t, transport.TCP, addr)
	require.NoError(t, s.Send(bufferOf(wire.NewPool(0), []byte("go away"))))
	_, err := s.Recv()
	require.ErrorIs(t, err, transport.ErrRefused)
	require.ErrorContains(t, err, "as you wish")
}

// The end of a stream's context ends it at once, at both ends.
func TestStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	addr := serveWith(t, transport.TCP, "127.0.0.1:0", &echo{}, func(_ context.Context, s transport.Stream) error {
		_, err := s.Recv()
		ended <- err
		return nil
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := transport.Open(ctx, transport.TCP, addr)
	require.NoError(t, err)
	reason := errors.New("enough")
	time.AfterFunc(10*time.Millisecond, func() { cancel(reason) })
	_, err = s.Recv()
	require.ErrorIs(t, err, reason)
	require.ErrorIs(t, s.Send(bufferOf(wire.NewPool(0), nil)), io.EOF)
	require.ErrorIs(t, <-ended, io.EOF)
}

// The server's end ends the handlers of its streams.
func TestStopEndsStreams(t *testing.T) {
	t.Parallel()
	l, err := transport.TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	began, ended := make(chan struct{}), make(chan struct{})
	s := transport.NewServer(func(ctx context.Context, _ transport.Stream) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	stream := open(t, transport.TCP, l.Addr().String())
	silent, err := net.Dial("tcp", l.Addr().String()) // says nothing
	require.NoError(t, err)
	defer silent.Close()
	<-began
	s.Stop()
	select {
	case <-ended:
	default:
		t.Fatal("Stop has returned before the handler")
	}
	require.NoError(t, <-done)
	_, err = stream.Recv()
	require.Error(t, err)
	require.ErrorIs(t, s.Serve(l), grpc.ErrServerStopped)
}

func TestStreamsAreRefusedWhereThereAreNone(t *testing.T) {
	t.Parallel()
	addr := serveWith(t, transport.TCP, "127.0.0.1:0", &echo{}, nil)
	_, err := open(t, transport.TCP, addr).Recv()
	require.Error(t, err)
	_, err = pb.NewPServerClient(dial(t, transport.TCP, addr)).Identify(t.Context(), &pb.IdentifyRequest{})
	require.NoError(t, err)
}

// A connection to a dead address fails the call instead of waiting.
func TestDeadAddressFailsAtOnce(t *testing.T) {
	t.Parallel()
	l, err := transport.TCP.Listen(net.JoinHostPort(loopback.Host(), "0"))
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cc := dial(t, transport.TCP, l.Addr().String())
	_, err = pb.NewPServerClient(cc).Identify(t.Context(), &pb.IdentifyRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = transport.Open(t.Context(), transport.TCP, l.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, transport.Lost(t.Context(), cc), transport.ErrLost)
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
		"frame of no kind":   []byte("sfframe1\x01\x00\x00\x00\x07\x00\x00\x00x"),
		"frame of 4 GB":      []byte("sfframe1\xff\xff\xff\xff\x00\x00\x00\x00x"),
		"reason of 4 GB":     []byte("sfframe1\xff\xff\xff\xff\x01\x00\x00\x00x"),
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

// Memory grows with what arrives, not with what a head announces.
func TestAnnouncedBytesAreNotAllocated(t *testing.T) {
	addr, e := serve(t, transport.TCP, "127.0.0.1:0")
	before := heap()
	for range 16 {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		head := binary.LittleEndian.AppendUint32([]byte("sfframe1"), wire.MaxMessage)
		_, err = conn.Write(append(head, make([]byte, 4+1000)...))
		require.NoError(t, err)
	}
	_, err := pb.NewPServerClient(dial(t, transport.TCP, addr)).Identify(t.Context(), &pb.IdentifyRequest{})
	require.NoError(t, err)
	time.Sleep(50 * time.Millisecond) // if they were allocated, it would be by now
	require.Less(t, heap(), before+16*wire.PartSize+64<<20)
	require.Zero(t, e.bodies.Load())
}

// FuzzFrames: what a peer sends can be anything.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00abc\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff\x00\x00\x00\x00abc"))
	f.Add([]byte("\x03\x00\x00\x00\x01\x00\x00\x00why"))
	n := transport.NewMemory(clock.System)
	received := make(chan [][]byte, 1)
	addr := serveWith(f, n.Host("server"), ":0", &echo{}, func(_ context.Context, s transport.Stream) error {
		var all [][]byte
		for {
			body, err := s.Recv()
			if err != nil {
				received <- all
				return err
			}
			all = append(all, bytes.Clone(body))
		}
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		conn, err := n.Host("client").Dial(t.Context(), addr)
		require.NoError(t, err)
		_, _ = conn.Write(append([]byte("sfframe1"), sent...)) // fails when the server hangs up
		require.NoError(t, conn.Close())
		for _, body := range <-received {
			require.Equal(t, binary.LittleEndian.AppendUint32(nil, uint32(len(body))), sent[:4])
			require.Equal(t, make([]byte, 4), sent[4:8])
			require.True(t, bytes.Equal(body, sent[8:8+len(body)]))
			sent = sent[8+len(body):]
		}
	})
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
	addr := serveWith(t, n, "h:0", &echo{}, func(ctx context.Context, _ transport.Stream) error {
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := transport.Open(ctx, n, addr)
	require.NoError(t, err)
	var sent atomic.Int64
	blocked := make(chan error, 1)
	go func() {
		buffers := wire.NewPool(1)
		for {
			if err := stream.Send(bufferOf(buffers, make([]byte, 128<<10))); err != nil {
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

// The whole of gRPC over the memory network in virtual time.
func TestVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory(clock.System)
		l, err := m.Host("server").Listen(":0")
		require.NoError(t, err)
		s := transport.NewServer((&echo{}).exchange)
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
		m.Delay("server", 700*time.Millisecond) // connecting takes three ways, which is less than the time that it has
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

		// Without a call too; a stream alone does not notice.
		stream, err := transport.Open(t.Context(), m.Host("client"), l.Addr().String())
		require.NoError(t, err)
		fresh, err := transport.NewClient(m.Host("client"), l.Addr().String())
		require.NoError(t, err)
		lost := make(chan error, 1)
		go func() { lost <- transport.Lost(t.Context(), fresh) }()
		time.Sleep(time.Minute)
		require.Empty(t, lost)
		m.Silence("server", true)
		start = time.Now()
		require.ErrorIs(t, <-lost, transport.ErrLost)
		require.Less(t, time.Since(start), 16*time.Second)
		m.Silence("server", false)
		require.NoError(t, stream.Send(bufferOf(wire.NewPool(0), []byte("x"))))
		_, err = stream.Recv()
		require.NoError(t, err)

		require.NoError(t, fresh.Close())
		require.NoError(t, cc.Close())
		s.Stop()
		require.NoError(t, <-done)
	})
}

// A server that is stopped before it serves does not.
func TestStoppedBeforeItServes(t *testing.T) {
	t.Parallel()
	for range 20 {
		l, err := transport.TCP.Listen("127.0.0.1:0")
		require.NoError(t, err)
		s, done := transport.NewServer(nil), make(chan error, 1)
		go func() { done <- s.Serve(l) }()
		s.GracefulStop()
		if err := <-done; !errors.Is(err, grpc.ErrServerStopped) {
			require.NoError(t, err)
		}
	}
}
