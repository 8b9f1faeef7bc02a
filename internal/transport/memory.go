package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"starfish/internal/clock"
)

// Memory is a network inside the process, for tests and simulations. It is
// made of hosts, whose connections can be cut, held up or delayed. It waits
// only on channels and on its clock, so it also runs in virtual time.
type Memory struct {
	clock clock.Clock

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change of hosts
	listeners map[string]*memoryListener
	hosts     map[string]*hostState
	parted    map[[2]string]bool // from one host to another
	recording bool
	ports     int
}

// hostState is what a test has done to a host.
type hostState struct {
	silent bool
	muted  bool
	frozen bool
	delay  time.Duration
	conns  map[*memoryConn]struct{}
	said   []*record // over the connections that it dialled, the newest last
}

// NewMemory returns an empty network.
func NewMemory(c clock.Clock) *Memory {
	return &Memory{
		clock: c, changed: make(chan struct{}),
		listeners: map[string]*memoryListener{}, hosts: map[string]*hostState{}, parted: map[[2]string]bool{},
	}
}

// Host is the network as seen from a host: it listens at name:port.
func (m *Memory) Host(name string) Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.host(name)
	return memoryHost{m, name}
}

// Cut breaks all connections of a host, as a reset does.
func (m *Memory) Cut(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.host(host).conns {
		c.out.fail(syscall.ECONNRESET)
		c.in.fail(syscall.ECONNRESET)
	}
}

// Silence makes a host's packets, both ways, stay under way until it is lifted.
func (m *Memory) Silence(host string, on bool) {
	m.change(func() { m.host(host).silent = on })
}

// Mute makes the packets that a host sends stay under way until it is lifted;
// what others send arrives.
func (m *Memory) Mute(host string, on bool) {
	m.change(func() { m.host(host).muted = on })
}

// Part makes the packets from one host to another stay under way until it is
// lifted; those of other ways, and of the way back, arrive.
func (m *Memory) Part(from, to string, on bool) {
	m.change(func() {
		if on {
			m.parted[[2]string{from, to}] = true
			return
		}
		delete(m.parted, [2]string{from, to})
	})
}

// Freeze is what the network sees of a process that is stopped, or goes on:
// its host receives nothing, and what it writes meanwhile leaves afterwards. What
// it had sent arrives.
func (m *Memory) Freeze(host string, on bool) {
	m.change(func() { m.host(host).frozen = on })
}

// Delay makes a host's packets, both ways, take d longer.
func (m *Memory) Delay(host string, d time.Duration) {
	m.change(func() { m.host(host).delay = d })
}

func (m *Memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// host returns a host's state; m.mu is held.
func (m *Memory) host(name string) *hostState {
	h := m.hosts[name]
	if h == nil {
		h = &hostState{conns: map[*memoryConn]struct{}{}}
		m.hosts[name] = h
	}
	return h
}

// route is the state of the way from one host to another now.
func (m *Memory) route(a, b string) (silent bool, delay time.Duration, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x, y := m.host(a), m.host(b)
	silent = x.silent || y.silent || x.muted || y.frozen || len(m.parted) > 0 && m.parted[[2]string{a, b}]
	return silent, x.delay + y.delay, m.changed
}

// frozen tells whether a host's process is stopped.
func (m *Memory) frozen(host string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.host(host).frozen
}

type memoryHost struct {
	net  *Memory
	name string
}

func (h memoryHost) Listen(addr string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	m := h.net
	m.mu.Lock()
	defer m.mu.Unlock()
	if port == "0" || port == "" {
		m.ports++
		port = strconv.Itoa(10000 + m.ports)
	}
	l := &memoryListener{net: m, addr: memoryAddr(h.name + ":" + port), queue: make(chan net.Conn), closed: make(chan struct{})}
	if _, used := m.listeners[string(l.addr)]; used {
		return nil, fmt.Errorf("listen %s: %w", l.addr, syscall.EADDRINUSE)
	}
	m.listeners[string(l.addr)] = l
	return l, nil
}

func (h memoryHost) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return h.dial(ctx, addr, true)
}

// dial connects; what is sent is kept if it is asked for.
func (h memoryHost) dial(ctx context.Context, addr string, keep bool) (net.Conn, error) {
	m := h.net
	to, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	for {
		silent, delay, changed := m.route(h.name, to)
		unanswered, _, _ := m.route(to, h.name)
		if !silent && !unanswered {
			if err := clock.Sleep(ctx, m.clock, delay); err != nil {
				return nil, err
			}
			return m.connect(ctx, h.name, to, addr, keep)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (m *Memory) connect(ctx context.Context, from, to, addr string, keep bool) (net.Conn, error) {
	m.mu.Lock()
	l := m.listeners[addr]
	m.ports++
	local := memoryAddr(from + ":" + strconv.Itoa(10000+m.ports))
	m.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	up, down := newPipe(m, from, to), newPipe(m, to, from)
	if keep {
		up.record = m.record(from, addr)
	}
	client := &memoryConn{in: down, out: up, local: local, remote: l.addr}
	server := &memoryConn{in: up, out: down, local: l.addr, remote: local}
	m.track(from, to, client)
	client.closing = func() { m.untrack(from, to, client) }
	select {
	case l.queue <- server:
		return client, nil
	case <-l.closed:
		client.closing()
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	case <-ctx.Done():
		client.closing()
		return nil, context.Cause(ctx)
	}
}

func (m *Memory) track(from, to string, c *memoryConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.host(from).conns[c] = struct{}{}
	m.host(to).conns[c] = struct{}{}
}

func (m *Memory) untrack(from, to string, c *memoryConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.host(from).conns, c)
	delete(m.host(to).conns, c)
}

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }

type memoryListener struct {
	net    *Memory
	addr   memoryAddr
	queue  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memoryListener) Addr() net.Addr { return l.addr }

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, string(l.addr))
		close(l.closed)
	})
	return nil
}

// memoryConn is one end of a connection.
type memoryConn struct {
	in, out       *pipe
	local, remote net.Addr
	closing       func() // of the client's end
	once          sync.Once
}

var _ net.Conn = (*memoryConn)(nil)

func (c *memoryConn) Read(b []byte) (int, error)        { return c.in.read(b) }
func (c *memoryConn) Write(b []byte) (int, error)       { return c.out.write(b) }
func (c *memoryConn) LocalAddr() net.Addr               { return c.local }
func (c *memoryConn) RemoteAddr() net.Addr              { return c.remote }
func (c *memoryConn) SetReadDeadline(t time.Time) error { c.in.deadline(&c.in.readBy, t); return nil }
func (c *memoryConn) SetWriteDeadline(t time.Time) error {
	c.out.deadline(&c.out.writeBy, t)
	return nil
}

func (c *memoryConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close ends both directions: what was written still arrives.
func (c *memoryConn) Close() error {
	c.once.Do(func() {
		c.out.finish()
		c.in.fail(net.ErrClosed)
		if c.closing != nil {
			c.closing()
		}
	})
	return nil
}
