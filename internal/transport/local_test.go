package transport

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo answers every connection with what it says, until the listener is closed.
func echo(t *testing.T, l net.Listener) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				done <- err
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		require.ErrorIs(t, <-done, net.ErrClosed)
	})
}

// says sends a word over a new connection, and returns the kind of the connection.
func says(t *testing.T, addr string) string {
	t.Helper()
	conn, err := TCP.Dial(t.Context(), addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "word")
	require.NoError(t, err)
	word := make([]byte, 4)
	_, err = io.ReadFull(conn, word)
	require.NoError(t, err)
	require.Equal(t, "word", string(word))
	return conn.RemoteAddr().Network()
}

// Two processes of one host speak over a socket of the system, and who knows only
// TCP is answered too.
func TestLocal(t *testing.T) {
	t.Parallel()
	l, err := TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	require.Equal(t, "tcp", l.Addr().Network())
	echo(t, l)
	want := "tcp"
	if runtime.GOOS == "linux" {
		want = "unix"
	}
	for range 3 {
		require.Equal(t, want, says(t, l.Addr().String()))
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		_, err = io.WriteString(conn, "word")
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// A listener of another program has no socket beside it, nor has a taken name, an
// address of all interfaces, or a name of a host.
func TestLocalIsOptional(t *testing.T) {
	t.Parallel()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	echo(t, plain)
	require.Equal(t, "tcp", says(t, plain.Addr().String()))

	all, err := TCP.Listen(":0")
	require.NoError(t, err)
	echo(t, all)
	_, port, err := net.SplitHostPort(all.Addr().String())
	require.NoError(t, err)
	require.Equal(t, "tcp", says(t, "127.0.0.1:"+port))

	one, err := TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	echo(t, one)
	_, port, err = net.SplitHostPort(one.Addr().String())
	require.NoError(t, err)
	require.Equal(t, "tcp", says(t, "localhost:"+port))
}

// The same program under another user could be anybody.
func TestLocalIsOfTheSameUser(t *testing.T) {
	t.Parallel()
	l, err := TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	echo(t, l)
	addr := l.Addr().String()
	require.Nil(t, dialLocal(t.Context(), addr, os.Geteuid()+1))
	if conn := dialLocal(t.Context(), addr, os.Geteuid()); runtime.GOOS == "linux" {
		require.NotNil(t, conn)
		require.NoError(t, conn.Close())
	}
}

// Whoever a user namespace does not know is the same user to it.
func TestLocalIsOfAKnownUser(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return
	}
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	require.False(t, listensAs(here, 65534), "the connection is not even looked at")
}

// Closing ends Accept, both listeners, and what nobody has taken.
func TestLocalCloses(t *testing.T) {
	t.Parallel()
	l, err := TCP.Listen("127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	conn, err := TCP.Dial(t.Context(), addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Close(), net.ErrClosed)
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = TCP.Dial(t.Context(), addr)
	require.Error(t, err)
	again, err := TCP.Listen(addr)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestIsLocal(t *testing.T) {
	t.Parallel()
	for addr, is := range map[string]bool{
		"127.0.0.1:7000": true, "10.0.0.1:1": true, "[fd00::1]:7000": true,
		"": false, "127.0.0.1": false, "127.0.0.1:0": false, ":7000": false, "0.0.0.0:7000": false, "[::]:7000": false,
		"localhost:7000": false, "host:7000": false,
	} {
		require.Equal(t, is, isLocal(addr), addr)
	}
}
