package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// own copies the audit job with its data into a directory of its own.
func own(t *testing.T) (dir, spec, data string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile(count)
	require.NoError(t, err)
	spec, data = filepath.Join(dir, "count.yaml"), filepath.Join(dir, "a9a")
	require.NoError(t, os.WriteFile(spec, []byte(strings.Replace(string(text), "../adult/a9a", "a9a", 1)), 0o644))
	copyFile(t, filepath.Join(filepath.Dir(adult), "a9a"), data)
	return dir, spec, data
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o644))
}

// A chunk with a broken record is quarantined; the others are trained; the run
// says so by its exit code and names the record.
func TestQuarantine(t *testing.T) {
	dir, spec, data := own(t)
	b, err := os.ReadFile(data)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(b), "\n")
	lines[10599] = "nonsense\n"
	require.NoError(t, os.WriteFile(data, []byte(strings.Join(lines, "")), 0o644))

	args := []string{"run", "-f", spec, "--dir", filepath.Join(dir, "run"), "--set", "train.passes=2",
		"--set", "train.shuffle=false", "--result", "-", "--log-level", "error"}
	c := newCall(t, args...)
	require.Equal(t, 7, c.run(), c.stderr.String())
	require.Contains(t, c.stderr.String(), "a9a:10600")
	r := c.result()
	require.EqualValues(t, 2, r.Queue.Failed, "the same chunk in both passes")
	require.EqualValues(t, 2*36-2, r.Queue.Complete)
	require.Less(t, r.Records, int64(2*32561))
	for _, s := range r.Shards {
		require.Equal(t, r.Records, s.Records)
	}
	require.EqualValues(t, 1, r.Failed.Chunks)
	f := r.Failed.First[0]
	require.Equal(t, 3, f.Failures, "queue.max_failures")
	require.Contains(t, f.Reason, "bad record: "+data+`:10600: the label "nonsense"`)
	require.Equal(t, data, f.File)
	bad := len(strings.Join(lines[:10599], ""))
	require.True(t, f.Start <= int64(bad) && int64(bad) < f.End, "%d is in %d to %d", bad, f.Start, f.End)
	for i, s := range r.Shards { // what was applied of it
		require.Equal(t, s.Batches-r.Queue.Batches, *f.Batches[i])
	}
	require.Positive(t, *f.Batches[0])
	require.Contains(t, c.stderr.String(), fmt.Sprintf("failed    chunk %d (%s, bytes %d to %d): bad record: ", f.Chunk, data, f.Start, f.End))
	require.Contains(t, c.stderr.String(), fmt.Sprintf("; applied: %d batches before it failed, on each shard\n", *f.Batches[0]))
	require.Contains(t, c.stderr.String(), "1 chunk was quarantined and not trained (--allow-failed-chunks accepts that); chunk")
	require.Zero(t, newCall(t, append(args, "--allow-failed-chunks")...).run())

	// The pservers are gone: what they had when it failed is in the record.
	var l failedList
	call := newCall(t, "queue", "failed", "--dir", filepath.Join(dir, "run"), "-o", "json").succeed()
	decodeStrictly(t, call, &l)
	require.Equal(t, r.Failed.First, l.Failed)
}

// Data that vanishes while the job runs ends the run with code 6. Once it is
// back the same command goes on, and nothing was lost.
func TestDataVanishes(t *testing.T) {
	dir, spec, data := own(t)
	args := []string{"run", "-f", spec, "--dir", filepath.Join(dir, "run"), "--set", "train.passes=60",
		"--export", filepath.Join(dir, "counts.txt")}
	c := newCall(t, args...).start()
	c.until(func() bool {
		s, err := statusOf(t, filepath.Join(dir, "run"))
		return err == nil && s.Queue.Complete > 50
	})
	require.NoError(t, os.Rename(data, data+".away"))
	require.Equal(t, 6, c.wait(), c.stderr.String())
	require.Contains(t, c.stderr.String(), data)
	c.leavesNothing()
	require.NoError(t, os.Rename(data+".away", data))
	newCall(t, args...).succeed()
	requireExact(t, filepath.Join(dir, "counts.txt"), 60)
}

// A shard whose listed checkpoints are all broken is never silently fresh: code
// 5, naming a file, unless the user allows to begin anew.
func TestStateLost(t *testing.T) {
	dir, spec, _ := own(t)
	args := []string{"run", "-f", spec, "--dir", filepath.Join(dir, "run"), "--set", "train.passes=60"}
	c := newCall(t, args...).start()
	c.until(func() bool {
		s, err := statusOf(t, filepath.Join(dir, "run"))
		return err == nil && s.Queue.Complete > 50
	})
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.wait(), c.stderr.String())
	files, err := filepath.Glob(filepath.Join(dir, "run", "checkpoints", "0002-*.ckpt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, os.Truncate(f, 100))
	}
	c = newCall(t, args...)
	require.Equal(t, 5, c.run(), c.stderr.String())
	require.Contains(t, c.stderr.String(), filepath.Base(files[0]))
	require.Contains(t, c.stderr.String(), "shard 2")
	c.leavesNothing()

	r := newCall(t, append(args, "--allow-reinit", "--result", "-")...).succeed().result()
	require.Equal(t, "complete", r.Phase)
	require.True(t, anyLogSays(t, filepath.Join(dir, "run"), "the shard begins anew"))
}

func anyLogSays(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), text) {
			return true
		}
	}
	return false
}
