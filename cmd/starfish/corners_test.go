package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

// served starts a job with one pserver of one shard and waits until it serves.
func (g *ground) served(spec string, sets ...string) *call {
	g.t.Helper()
	args := []string{"--spec", spec, "--set", "shards=1", "--set", "run.pservers=1", "--set", "checkpoint.dir=" + filepath.Join(g.t.TempDir(), "checkpoints")}
	p := g.daemon("pserver-0", append(args, sets...)...)
	p.until(func() bool {
		var s jobStatus
		c := g.call("status", "--job", "corner", "--measure", "0s", "-o", "json")
		if c.run() != 0 {
			return false
		}
		decodeStrictly(g.t, c, &s)
		return len(s.Shards) == 1 && s.Shards[0].Serving != nil && *s.Shards[0].Serving
	})
	return p
}

// One of a shard's checkpoints is broken and the one before loads: code 1. And a
// pserver that does not answer a request keeps nobody waiting beyond --timeout.
func TestBrokenAndMissingCheckpoints(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	p := g.served(small(t, "corner", map[string]string{"data": twoLines}), "--set", "checkpoint.interval=1h")
	var first, second, all checkpointList
	g.ask(&first, "checkpoint", "now", "--job", "corner")
	g.ask(&second, "checkpoint", "now", "--job", "corner")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	g.call("checkpoint", "now", "--job", "corner", "--timeout", "300ms").refuses(1, "no checkpoint within 300ms of shard 0 (owned by pserver-0)")

	newest := filepath.Join(second.Directory, second.Checkpoints[0].Path)
	require.NoError(t, os.WriteFile(newest, []byte("x"), 0o600))
	c := g.call("checkpoint", "verify", "--job", "corner", "-o", "json")
	require.Equal(t, 1, c.run())
	decodeStrictly(t, c, &all)
	require.GreaterOrEqual(t, len(all.Checkpoints), 2)
	for _, listed := range all.Checkpoints {
		require.Equal(t, listed.Path != second.Checkpoints[0].Path, *listed.Loads, listed.Path)
	}
	require.Regexp(t, `^starfish: 1 of \d+ do not load; each shard has one that does\n$`, c.stderr.String())
}

// While pservers live they are asked what they have of a chunk that has failed;
// when they are gone the record of the failure tells.
func TestQueueFailedAsksThePservers(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	spec := small(t, "corner", map[string]string{"bad": strings.Repeat("1 1:1\n", 3) + "nonsense\n", "data": twoLines}, "train: {batch: 1, passes: 900000, shuffle: false}")
	p := g.served(spec)
	trainer := g.daemon("trainer-0", "--job", "corner")
	failed := func() (l failedList) {
		g.ask(&l, "queue", "failed", "--job", "corner")
		return l
	}
	trainer.until(func() bool { return len(failed().Failed) > 0 })
	kvs, _, err := store.List(t.Context(), g.job("corner"), "failed/", "failed0")
	require.NoError(t, err)
	require.Len(t, kvs, 1)
	record := regexp.MustCompile(`"batches":\[\d+\]`).ReplaceAll(kvs[0].Value, []byte(`"batches":[77]`))
	require.NotEqual(t, string(kvs[0].Value), string(record))
	write(t, g.job("corner"), store.Put(kvs[0].Key, record, 0))
	require.LessOrEqual(t, *failed().Failed[0].Batches[0], int64(3))
	for _, c := range []*call{trainer, p} {
		require.NoError(t, c.cmd.Process.Kill())
		c.wait()
	}
	require.EqualValues(t, 77, *failed().Failed[0].Batches[0])
}
