package transport

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

var _ net.Addr = address("")

// What others are told is what was configured, with the listener's port if that
// has none: an orchestrator knows the address of its host, and nobody the port.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, c := range []struct{ configured, listening, want string }{
		{"me:1", "[::]:7000", "me:1"},
		{"[fd00::1]:1", "[::]:7000", "[fd00::1]:1"},
		{"10.1.2.3", "[::]:7000", "10.1.2.3:7000"},
		{"me.example", "0.0.0.0:7000", "me.example:7000"},
		{"fd00::1", "[::]:7000", "[fd00::1]:7000"},
		{"[fd00::1]", "[::]:7000", "[fd00::1]:7000"},
		{"me", "nowhere", "me"},
		{"", "127.0.0.1:7000", "127.0.0.1:7000"},
		{"", "[fd00::1]:7000", "[fd00::1]:7000"},
		{"", "node:7000", "node:7000"},
		{"", "nowhere", "nowhere"},
		{"", "[::]:7000", net.JoinHostPort(host, "7000")},
		{"", "0.0.0.0:7000", net.JoinHostPort(host, "7000")},
	} {
		require.Equal(t, c.want, Advertised(c.configured, address(c.listening)), "%+v", c)
	}
}
