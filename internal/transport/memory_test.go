package transport_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/transport"
)

// connected returns both ends of a connection from host a to host b.
func connected(t *testing.T, m *transport.Memory) (a, b net.Conn) {
	t.Helper()
	l, err := m.Host("b").Listen(":0")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	a, err = m.Host("a").Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	b = <-accepted
	require.Equal(t, a.LocalAddr(), b.RemoteAddr())
	require.Equal(t, a.RemoteAddr(), b.LocalAddr())
	require.NoError(t, l.Close())
	return a, b
}

func virtual(t *testing.T, f func(t *testing.T, m *transport.Memory)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, transport.NewMemory(clock.System)) })
}

func TestMemoryCarriesBytesUpToTheEnd(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		want := bytes.Repeat([]byte("starfish"), 1<<18) // more than is ever under way
		go func() {
			_, _ = a.Write(want)
			_ = a.Close()
		}()
		got, err := io.ReadAll(b)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
		_, err = b.Write([]byte("x"))
		require.Error(t, err)
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = a.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func TestMemoryDelays(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		m.Delay("a", 2*time.Second)
		m.Delay("b", time.Second)
		start := time.Now()
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		_, err = b.Read(make([]byte, 1))
		require.NoError(t, err)
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}

// TestMemoryMute: what a muted host sends stays under way, what is sent to it
// arrives, and nobody reaches it anew.
func TestMemoryMute(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		m.Mute("b", true)
		_, err := b.Write([]byte("x"))
		require.NoError(t, err)
		_, err = a.Write([]byte("y"))
		require.NoError(t, err)
		buf := make([]byte, 1)
		_, err = io.ReadFull(b, buf)
		require.NoError(t, err)
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = a.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.Host("a").Dial(ctx, "b:1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		m.Mute("b", false)
		require.NoError(t, a.SetReadDeadline(time.Time{}))
		_, err = io.ReadFull(a, buf)
		require.NoError(t, err)
		require.Equal(t, "x", string(buf))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

func TestMemorySilence(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		m.Silence("b", true)
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = b.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = m.Host("a").Dial(ctx, "b:1")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		m.Silence("b", false)
		require.NoError(t, b.SetDeadline(time.Time{}))
		n, err := b.Read(make([]byte, 9))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

func TestMemoryCut(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		failed := make(chan error, 2)
		for _, c := range []net.Conn{a, b} {
			go func() {
				_, err := c.Read(make([]byte, 1))
				failed <- err
			}()
		}
		synctest.Wait()
		m.Cut("b")
		require.ErrorIs(t, <-failed, syscall.ECONNRESET)
		require.ErrorIs(t, <-failed, syscall.ECONNRESET)
		_, err := a.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

func TestMemoryDeadlines(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, _ := connected(t, m)
		require.NoError(t, a.SetDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(make([]byte, 8<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Positive(t, n)
		// A deadline that moves into the past wakes a waiting reader.
		require.NoError(t, a.SetReadDeadline(time.Time{}))
		failed := make(chan error, 1)
		go func() {
			_, err := a.Read(make([]byte, 1))
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, a.SetReadDeadline(time.Now()))
		require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
	})
}

func TestMemoryListeners(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		l, err := m.Host("a").Listen("x:7")
		require.NoError(t, err)
		require.Equal(t, "a:7", l.Addr().String())
		_, err = m.Host("a").Listen(":7")
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		_, err = m.Host("a").Listen("nonsense")
		require.Error(t, err)

		// Nobody accepts: a dial that waits ends with the listener.
		failed := make(chan error, 1)
		go func() {
			_, err := m.Host("b").Dial(t.Context(), "a:7")
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-failed, syscall.ECONNREFUSED)
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = m.Host("b").Dial(t.Context(), "a:7")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = m.Host("b").Dial(t.Context(), "nonsense")
		require.Error(t, err)
	})
}
