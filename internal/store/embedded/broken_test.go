package embedded_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"starfish/internal/store"
	"starfish/internal/store/embedded"
)

// An etcd whose log was cut off would wait for ever.
func TestDamagedDataAreAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, embedded.Config{Dir: dir}).Close()
	logs, err := filepath.Glob(filepath.Join(dir, "member-data", "member", "wal", "*.wal"))
	require.NoError(t, err)
	require.NotEmpty(t, logs)
	for _, file := range logs {
		require.NoError(t, os.Truncate(file, 100))
	}
	_, err = embedded.Start(t.Context(), embedded.Config{Dir: dir, Patience: 3 * time.Second})
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "may be damaged")
}

// Files that cannot grow stand for a full disk. Such an etcd cannot be closed,
// therefore each case is a process of its own.
func TestAFullDiskIsAnError(t *testing.T) {
	t.Parallel()
	const variable, place = "EMBEDDED_TEST_FULL", "EMBEDDED_TEST_DIR"
	if when := os.Getenv(variable); when != "" {
		fmt.Println(fill(t, os.Getenv(place), when))
		os.Exit(0) // without the clean-up, therefore the directory is the parent's
	}
	for when, says := range map[string]string{
		"start": "start etcd in",
		"later": "failed to ", // save the log, or commit to the database
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAFullDiskIsAnError$")
		cmd.Env = append(os.Environ(), variable+"="+when, place+"="+t.TempDir())
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), says)
		require.Contains(t, string(out), "file too large")
		require.NotContains(t, string(out), "goroutine")
	}
}

// fill lets no file grow before or after the start and returns what etcd says.
func fill(t *testing.T, dir, when string) error {
	t.Helper()
	signal.Ignore(unix.SIGXFSZ)
	limit := func() {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 10, Max: 1 << 10}))
	}
	if when == "start" {
		limit()
	}
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
	if err != nil {
		return err
	}
	c := dial(t, s)
	limit()
	go func() {
		for range 100 {
			_, _ = c.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", make([]byte, 1<<12), 0)}})
		}
	}()
	err = <-s.Failed()
	s.Close()
	return err
}
