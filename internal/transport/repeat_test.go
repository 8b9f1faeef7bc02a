package transport_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/transport"
)

// Two hosts are parted in one direction: what is sent stays under way, and nobody
// connects either way; the other direction carries on.
func TestPart(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		defer a.Close()
		defer b.Close()
		began := time.Now()
		m.Part("a", "b", true)
		time.AfterFunc(time.Minute, func() { m.Part("a", "b", false) })
		text := make([]byte, 2)
		_, err := b.Write([]byte("up"))
		require.NoError(t, err)
		_, err = io.ReadFull(a, text)
		require.NoError(t, err)
		require.Equal(t, time.Now(), began)
		_, err = a.Write([]byte("ok"))
		require.NoError(t, err)
		_, err = io.ReadFull(b, text)
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(began))
	})
}

// A process that is stopped receives nothing, and what it writes leaves when it
// goes on; what it had sent before arrives.
func TestFreeze(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		a, b := connected(t, m)
		defer a.Close()
		defer b.Close()
		began := time.Now()
		text := make([]byte, 2)
		_, err := a.Write([]byte("up"))
		require.NoError(t, err)
		m.Freeze("a", true)
		time.AfterFunc(time.Minute, func() { m.Freeze("a", false) })
		_, err = a.Write([]byte("ok"))
		require.NoError(t, err)
		_, err = b.Write([]byte("hi"))
		require.NoError(t, err)
		_, err = io.ReadFull(b, text)
		require.NoError(t, err)
		require.Equal(t, "up", string(text))
		require.Equal(t, time.Now(), began)
		_, err = io.ReadFull(a, text)
		require.NoError(t, err)
		require.Equal(t, "hi", string(text))
		require.Equal(t, time.Minute, time.Since(began))
		_, err = io.ReadFull(b, text)
		require.NoError(t, err)
		require.Equal(t, "ok", string(text))
	})
}

// What a host has sent arrives once more over connections of its own, also when
// the first ones have ended.
func TestRepeat(t *testing.T) {
	virtual(t, func(t *testing.T, m *transport.Memory) {
		m.Record()
		l, err := m.Host("b").Listen(":0")
		require.NoError(t, err)
		accepted := make(chan net.Conn)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					close(accepted)
					return
				}
				accepted <- c
			}
		}()
		dial := func(text string) {
			a, err := m.Host("a").Dial(t.Context(), l.Addr().String())
			require.NoError(t, err)
			_, err = a.Write([]byte(text))
			require.NoError(t, err)
			require.NoError(t, a.Close())
		}
		all := func() map[string]int {
			got := map[string]int{}
			for range 2 {
				c := <-accepted
				text, err := io.ReadAll(c)
				require.NoError(t, err)
				_, _ = c.Write([]byte("answer")) // nobody reads it
				require.NoError(t, c.Close())
				got[string(text)]++
			}
			return got
		}
		go func() {
			dial("one")
			dial("two")
		}()
		require.Equal(t, map[string]int{"one": 1, "two": 1}, all())
		for range 2 { // what is repeated is not recorded
			m.Repeat(t.Context(), "a")
			require.Equal(t, map[string]int{"one": 1, "two": 1}, all())
		}
		m.Repeat(t.Context(), "b")
		synctest.Wait()
		require.NoError(t, l.Close())
		_, open := <-accepted
		require.False(t, open)
	})
}
