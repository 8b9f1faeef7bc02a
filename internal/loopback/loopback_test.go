package loopback

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHost: a port of a host stays free although all others' are taken by the
// time, and it can be listened on and dialled.
func TestHost(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, Host(), Host())
	l, err := net.Listen("tcp", net.JoinHostPort(Host(), "0"))
	require.NoError(t, err)
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	if other, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil { // or somebody has it anyway
		defer other.Close()
	}
	l, err = net.Listen("tcp", address)
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
