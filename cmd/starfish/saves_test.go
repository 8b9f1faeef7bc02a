package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"starfish/pserver/pb"
)

func TestSaves(t *testing.T) {
	t.Parallel()
	var s saves
	require.Empty(t, s.trouble())
	require.Empty(t, s.waits())
	s.note(0, "p0", &pb.ShardStats{Doing: "serving"})
	require.Empty(t, s.waits())
	s.note(1, "p1", &pb.ShardStats{Doing: "writing the last checkpoint"})
	s.note(2, "p0", &pb.ShardStats{Doing: "comparing the ledger with the queue"})
	s.note(3, "p1", &pb.ShardStats{Doing: "writing the last checkpoint"})
	require.Empty(t, s.trouble())
	require.Equal(t, "shards 1, 3: writing the last checkpoint", s.waits())
	s.note(4, "p0", &pb.ShardStats{Doing: "serving", CheckpointError: "checkpoint: write a: no space left on device"})
	require.Equal(t, "shard 4 cannot be saved: shard 4 on p0: write a: no space left on device", s.trouble())
	s.note(5, "p1", &pb.ShardStats{CheckpointError: "checkpoint: write b: no space left on device"})
	require.Equal(t, "shards 4, 5 cannot be saved: shard 4 on p0: write a: no space left on device", s.waits())
	require.Equal(t, "p0, p1", pserversOf(s.failing))
}

// The job is trained, and no file may grow any more, as on a full disk: the run
// and the status say what is waited for and why, and once there is room the job
// ends by itself.
func TestSavesThatFailAreTold(t *testing.T) {
	dir := t.TempDir()
	c := newCall(t, "run", "-f", count, "--dir", dir, "--result", "-", "--set", "train.passes=5", "--set", "checkpoint.interval=1h").start()
	limit := func(size uint64) {
		for _, pid := range c.pids("pserver") {
			require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}, nil))
		}
	}
	c.until(func() bool { return len(c.pids("pserver")) == 2 })
	limit(100)
	const full = "file too large"
	c.until(func() bool {
		s, err := statusOf(t, dir)
		if err != nil || s.Phase != "draining" {
			return false
		}
		waits := strings.Join(s.Waits, "\n")
		return strings.Contains(waits, "the last checkpoint of shards 0, 1, 2, 3") &&
			strings.Contains(waits, "shards 0, 1, 2, 3 cannot be saved: shard 0 on pserver-") && strings.Contains(waits, full) &&
			strings.Contains(s.Shards[2].CheckpointError, "file too large")
	})
	c.until(func() bool {
		stderr := c.stderr.String()
		return strings.Contains(stderr, "checkpoints cannot be written") && strings.Contains(stderr, "3 trainers  shards 0, 1, 2, 3 cannot be saved: shard 0 on pserver-")
	})
	limit(unix.RLIM_INFINITY)
	require.Zero(t, c.wait(), c.stderr.String())
	require.EqualValues(t, 5*32561, c.result().Records)
	c.leavesNothing()
}

// pids are the processes of the call that run a program.
func (c *call) pids(program string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var pids []int
	for _, f := range files {
		env, _ := os.ReadFile(f)
		exe, _ := os.Readlink(filepath.Join(filepath.Dir(f), "exe"))
		if bytes.Contains(env, []byte(c.mark)) && filepath.Base(exe) == program {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			require.NoError(c.t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}
