package trainer

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
)

// Flags are checked before etcd is reached.
func TestFlagsOfATrainer(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	args := []string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--take", "-1"}
	require.Equal(t, 2, cli.Execute(t.Context(), command(nil), args, &stderr))
	require.Contains(t, stderr.String(), "--take -1 is negative")
}
