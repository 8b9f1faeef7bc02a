package spell

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	flags := []string{"pservers", "trainers", "job", "dir", "etcd-endpoints"}
	for word, want := range map[string]string{
		"pserver": "pservers", "pservres": "pservers", "jbo": "job", "jb": "job", "etcd-endpoint": "etcd-endpoints",
		"job": "job", "frobnicate": "", "": "", "xyz": "", strings.Repeat("job", 50): "",
	} {
		require.Equal(t, want, Nearest(word, flags), word)
	}
	require.Empty(t, Nearest("job", nil))
	require.Empty(t, Nearest("y", []string{"x"}), "a letter resembles no other")
}
