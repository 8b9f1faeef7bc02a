package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/job"
)

// Checkpoints of a job that trains are listed, made on request and read; those
// of one that has ended are still there, and broken ones are named. In the end
// the job is deleted, with them.
func TestCheckpointCommandsAndDelete(t *testing.T) {
	g := newGround(t)
	at := filepath.Join(t.TempDir(), "run")
	c := g.call("run", "-f", count, "--dir", at, "--set", "train.passes=100000", "--set", "checkpoint.interval=1h").start()
	c.until(func() bool { s, err := statusOf(t, at); return err == nil && s.Pass >= 1 })
	var now, again checkpointList
	decodeStrictly(t, newCall(t, "checkpoint", "now", "--dir", at, "-o", "json").succeed(), &now)
	decodeStrictly(t, newCall(t, "checkpoint", "now", "--dir", at, "-o", "json").succeed(), &again)
	require.Len(t, now.Checkpoints, 4)
	for i, saved := range again.Checkpoints {
		require.Greater(t, saved.Seq, now.Checkpoints[i].Seq)
		require.GreaterOrEqual(t, saved.Batches, now.Checkpoints[i].Batches)
	}
	kv, err := store.Lookup(t.Context(), g.job("count"), "requests/checkpoint")
	require.NoError(t, err)
	require.False(t, kv.Exists(), "the request is withdrawn")

	g.call("delete", "count", "--yes").refuses(2, "5 processes of the job are registered: pserver-0, pserver-1, trainer-0, trainer-1, trainer-2; stop them, or --force")
	g.call("delete", "count").refuses(2, "5 processes of the job are registered: pserver-0, pserver-1, trainer-0, trainer-1, trainer-2; stop them, or --force")
	g.call("delete", "cuont", "--yes").refuses(2, `there is no job "cuont", did you mean "count"?`)
	g.call("delete").refuses(2, "name one job to delete; `starfish jobs` lists them")
	g.call("checkpoint", "now", "--job", "count", "--timeout", "0s").refuses(2, "--timeout 0s: a time to wait is positive")

	// Its processes end by themselves when it is deleted.
	copied := t.TempDir()
	dir := filepath.Join(at, "checkpoints")
	g.call("delete", "count", "--yes", "--force", "--checkpoints", "--checkpoint-dir", copied).
		refuses(2, "--checkpoints: the directory does not belong to the job yet: "+filepath.Join(copied, "JOB")+" is missing")
	var a deleted
	g.ask(&a, "delete", "count", "--yes", "--force", "--checkpoints", "--checkpoint-dir", dir)
	require.Positive(t, *a.Files)
	require.Equal(t, 1, c.wait(), c.stderr.String())
	require.NoDirExists(t, dir)
	require.Equal(t, "no jobs\n", g.says("jobs"))
	c.leavesNothing()
}

func TestCheckpointVerify(t *testing.T) {
	at := filepath.Join(t.TempDir(), "run")
	newCall(t, "run", "-f", count, "--dir", at, "--set", "train.passes=3", "--set", "shards=2").succeed()
	var l checkpointList
	decodeStrictly(t, newCall(t, "checkpoint", "verify", "--dir", at, "-o", "json").succeed(), &l)
	require.NotEmpty(t, l.Checkpoints)
	for _, saved := range l.Checkpoints {
		require.True(t, *saved.Loads)
		require.Len(t, saved.MD5, 32)
		require.Positive(t, saved.Size)
	}
	require.Contains(t, newCall(t, "checkpoint", "ls", "--dir", at).succeed().stdout.String(), l.Checkpoints[0].Path)
	newCall(t, "checkpoint", "now", "--dir", at).refuses(1, "the job is complete: nothing is saved any more; `starfish checkpoint ls` lists what there is")

	for _, saved := range l.Checkpoints {
		if saved.Shard == 1 {
			require.NoError(t, os.WriteFile(filepath.Join(l.Directory, saved.Path), []byte("x"), 0o644))
		}
	}
	v := newCall(t, "checkpoint", "verify", "--dir", at)
	require.Equal(t, 5, v.run())
	require.Equal(t, "starfish: no checkpoint of shard 1 loads\n", v.stderr.String())
	require.Contains(t, v.stdout.String(), "1 bytes long, its record says")
	newCall(t, "delete", "--dir", at, "--job", "count").refuses(2, "--yes is missing: a deletion cannot be taken back")
	require.Equal(t, "job count is deleted\n", newCall(t, "delete", "count", "--dir", at, "--yes").succeed().stdout.String())
}

// However many records there are, and whatever is left of a job, it goes.
func TestDeleteOfRemains(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.says("submit", "-f", small(t, "a", map[string]string{"data": twoLines}))
	g.says("submit", "-f", small(t, "ab", map[string]string{"data": twoLines}))
	var ops []store.Op
	for i := range 1200 {
		ops = append(ops, store.Put(job.Prefix("a")+"queue/000000/"+strings.Repeat("9", 1+i%4)+string(rune('a'+i%26))+strings.Repeat("x", i/26), nil, 0))
		if len(ops) == 100 {
			write(t, g.store, ops...)
			ops = nil
		}
	}
	require.Equal(t, "job a is deleted\n", g.says("delete", "a", "--yes"))
	require.NotContains(t, g.says("jobs"), "a   ")
	require.Contains(t, g.says("jobs"), "ab ")
	write(t, g.job("rest"), store.Put("queue/000000/0001", []byte("{}"), 0), store.Put("state", []byte("?"), 0))
	require.Equal(t, "job rest is deleted\n", g.says("delete", "rest", "--yes"))
	left, _, err := store.List(t.Context(), g.job("rest"), "", "\x00")
	require.NoError(t, err)
	require.Empty(t, left)
}
