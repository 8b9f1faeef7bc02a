package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An etcd inside that cannot go on, here because no file may grow any more as on
// a full disk, is the end of the run, within seconds and with the reason; the
// processes go with it, and the same command goes on where the job stood.
func TestEmbeddedEtcdFails(t *testing.T) {
	dir := t.TempDir()
	args := []string{"run", "-f", count, "--dir", dir, "--result", "-", "--set", "train.passes=60"}
	c := newCall(t, args...).start()
	c.until(func() bool { s, err := statusOf(t, dir); return err == nil && s.Queue.Complete > 0 })
	full := unix.Rlimit{Cur: 1 << 10, Max: unix.RLIM_INFINITY}
	require.NoError(t, unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_FSIZE, &full, nil))
	began := time.Now()
	require.Equal(t, 1, c.wait(), c.stderr.String())
	require.Less(t, time.Since(began), 10*time.Second, c.stderr.String())
	require.Contains(t, c.last(), "starfish: etcd has failed: "+dir)
	require.Contains(t, c.last(), "file too large")
	require.NotContains(t, c.stderr.String(), "goroutine")
	c.leavesNothing()
	again := newCall(t, args...).succeed()
	require.EqualValues(t, 60*32561, again.result().Records)
}
