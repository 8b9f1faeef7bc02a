package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// TestErase: only checkpoint files go, and only of the job that the directory
// belongs to.
func TestErase(t *testing.T) {
	t.Parallel()
	dir, job := t.TempDir(), uuid.New()
	_, err := Erase(OS, dir, job)
	require.ErrorIs(t, err, ErrNoMarker)
	require.NoError(t, Mark(OS, dir, job))
	name := fileName(3, 7, uuid.New())
	for _, file := range []string{name, name + tmpSuffix, fileName(0, 1, uuid.New()) + badSuffix, "notes.txt", "0001-x.ckpt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
	}
	_, err = Erase(OS, dir, uuid.New())
	require.ErrorIs(t, err, ErrForeign)
	n, err := Erase(OS, dir, job)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2, "what is nobody's checkpoint")
	_, err = Erase(OS, dir, job)
	require.ErrorIs(t, err, ErrNoMarker)
}
