package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a killed run has left is removed by the next one; what is in use, or
// nobody's, stays.
func TestAbandonedDirectories(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	running, err := openWorkdir("")
	require.NoError(t, err)
	killed, err := openWorkdir("")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(killed.log("etcd"), []byte("x"), 0o644))
	require.NoError(t, killed.lock.Close()) // as the kernel does
	others := []string{filepath.Join(tmp, "starfish-run-1"), filepath.Join(tmp, "starfish-e2e")}
	for _, dir := range others {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	next, err := openWorkdir("")
	require.NoError(t, err)
	require.NoDirExists(t, killed.path)
	for _, dir := range append(others, running.path, next.path) {
		require.DirExists(t, dir)
	}
	next.close()
	next.close()
	require.NoDirExists(t, next.path)
	running.close()
}

// A directory that is taken away while it is made is not used.
func TestHold(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lock")
	_, err := hold(file, 0)
	require.ErrorIs(t, err, os.ErrNotExist)
	held, err := hold(file, os.O_CREATE)
	require.NoError(t, err)
	_, err = hold(file, os.O_CREATE)
	require.ErrorIs(t, err, errTaken)
	require.NoError(t, held.Close())
	again, err := hold(file, os.O_CREATE)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
