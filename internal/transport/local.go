package transport

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Processes of one host have a shorter way to each other than TCP: a socket of the
// system, which costs two thirds of it. So who listens at an address of an interface
// listens at a socket of that name too, and who dials an address tries that name
// first. A process of another host, of another network namespace, of before, or
// of a system without such sockets has none, and is dialled by TCP.
//
// The name is of Linux's abstract ones: it belongs to the network namespace, as
// the address does, and is gone with the process. Such a name has no owner, so
// anybody could have taken it before: a listener of another user is not spoken
// to.

// local is the name of the socket beside an address.
func local(addr string) string { return "@starfish/" + addr }

// isLocal tells whether an address is of the form that may have a socket beside
// it: an IP, not a name, which may mean another one elsewhere, and not that of all
// interfaces.
func isLocal(addr string) bool {
	host, port, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && port != "0" && ip != nil && !ip.IsUnspecified()
}

// listenLocal adds the socket to a listener, where there are such sockets. If it
// cannot be had, it is done without.
func listenLocal(l net.Listener) net.Listener {
	addr := l.Addr().String()
	if !hasLocal || !isLocal(addr) {
		return l
	}
	beside, err := net.Listen("unix", local(addr))
	if err != nil {
		return l
	}
	j := &joined{Listener: l, beside: beside, conns: make(chan accepted), closed: make(chan struct{})}
	j.accepting.Go(func() { j.accept(l) })
	j.accepting.Go(func() { j.accept(beside) })
	return j
}

// dialLocal returns nil where the address has no socket of this user's.
func dialLocal(ctx context.Context, addr string, user int) net.Conn {
	if !hasLocal || !isLocal(addr) {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", local(addr))
	if err != nil {
		return nil
	}
	if !listensAs(conn, user) {
		_ = conn.Close()
		return nil
	}
	return conn
}

// joined is a listener at two places; its address is that of the first.
type joined struct {
	net.Listener
	beside    net.Listener
	conns     chan accepted
	closed    chan struct{}
	once      sync.Once
	accepting sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

// accept hands on what one of the two accepts, until it is closed.
func (l *joined) accept(from net.Listener) {
	for {
		conn, err := from.Accept()
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.closed:
			if err == nil {
				_ = conn.Close()
			}
			return
		}
	}
}

func (l *joined) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *joined) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		close(l.closed)
		err = errors.Join(l.Listener.Close(), l.beside.Close())
		l.accepting.Wait()
	})
	return err
}
