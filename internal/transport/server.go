package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"

	"starfish/internal/clock"
)

// Server serves gRPC and, on the same port, streams of frames: a connection's
// first bytes say which. Register services with it as with a grpc.Server.
type Server struct {
	*grpc.Server
	handle func(context.Context, Stream) error

	ctx    context.Context // of all streams of frames
	cancel context.CancelFunc
	wg     sync.WaitGroup // the goroutines of all connections

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]struct{} // those that are not gRPC's
}

// NewServer returns a server whose streams of frames are served by handle, each
// in a goroutine of its own, until it returns; nil: there are none. The
// server's end ends the context. Extra options of gRPC come last.
func NewServer(handle func(context.Context, Stream) error, extra ...grpc.ServerOption) *Server {
	s := &Server{Server: newGRPC(extra...), handle: handle, conns: map[net.Conn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Serve accepts connections until the server is stopped.
func (s *Server) Serve(l net.Listener) error {
	sorted := &sorter{
		Listener: l, server: s,
		ready: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
	}
	if !s.begin(nil) {
		_ = l.Close() // as grpc.Server does
		return grpc.ErrServerStopped
	}
	go func() {
		defer s.wg.Done()
		sorted.run()
	}()
	return s.Server.Serve(sorted)
}

// begin notes a goroutine, and its connection if it has one; false if the
// server has been stopped.
func (s *Server) begin(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.wg.Add(1)
	if conn != nil {
		s.conns[conn] = struct{}{}
	}
	return true
}

// forget: a connection is closed, or gRPC's from now on.
func (s *Server) forget(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// Stop ends everything at once, and returns when no handler runs any more.
func (s *Server) Stop() {
	s.cancel()
	s.mu.Lock()
	s.stopped = true
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.Server.Stop()
	s.wg.Wait()
}

// GracefulStop lets calls and streams end by themselves, and takes no new ones.
func (s *Server) GracefulStop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.Server.GracefulStop()
	s.wg.Wait()
}

// sorter is a listener that hands gRPC the connections that are not frames'.
type sorter struct {
	net.Listener
	server *Server
	ready  chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once
}

// run accepts connections until the listener is closed.
func (l *sorter) run() {
	for {
		conn, err := l.Listener.Accept()
		if err == nil {
			if !l.server.begin(conn) {
				_ = conn.Close()
				return
			}
			go func() {
				defer l.server.wg.Done()
				l.sort(conn)
			}()
			continue
		}
		select {
		case l.failed <- err: // gRPC knows which errors pass, and waits
		case <-l.closed:
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// sort looks at a connection's first bytes.
func (l *sorter) sort(conn net.Conn) {
	defer l.server.forget(conn)
	first := make([]byte, len(preface))
	err := conn.SetReadDeadline(clock.System.Now().Add(greeting))
	if err == nil {
		_, err = io.ReadFull(conn, first)
	}
	if err == nil {
		err = conn.SetReadDeadline(noDeadline)
	}
	switch {
	case err != nil || string(first) == preface && l.server.handle == nil:
		_ = conn.Close()
	case string(first) == preface:
		l.server.serve(newFrames(conn))
	default:
		select {
		case l.ready <- &begun{Conn: conn, first: first}:
		case <-l.closed:
			_ = conn.Close()
		}
	}
}

// serve runs the handler on a stream, and tells the peer its error.
func (s *Server) serve(f *frames) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	err := s.handle(ctx, f)
	if err == nil || errors.Is(err, io.EOF) {
		_ = f.conn.Close()
		return
	}
	f.refuse(err)
}

func (l *sorter) Accept() (net.Conn, error) {
	select {
	case conn := <-l.ready:
		return conn, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *sorter) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// begun is a connection of which the first bytes have been read.
type begun struct {
	net.Conn
	first []byte
}

func (c *begun) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}
