package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Three jobs share an etcd, and all their processes have the same names. One is
// deleted while it trains: its run says so and ends. The others do not notice,
// and count exactly.
func TestJobsOfOneEtcd(t *testing.T) {
	g := newGround(t)
	dir := t.TempDir()
	const passes = "train.passes=25"
	begin := func(name string) *call {
		return g.call("run", "-f", count, "--dir", filepath.Join(dir, name), "--set", "job="+name, "--set", passes, "--set", "shards=2",
			"--pservers", "1", "--trainers", "1", "--result", "-", "--export", filepath.Join(dir, name+".txt")).start()
	}
	gone, one, two := begin("gone"), begin("one"), begin("two")
	training := func(name string) bool {
		c := g.call("status", "--job", name, "-o", "json", "--measure", "0")
		if c.run() != 0 { // it has not been created yet
			return false
		}
		var s jobStatus
		decodeStrictly(t, c, &s)
		return s.Phase == "training" && s.Queue.Complete > 0
	}
	for _, name := range []string{"gone", "one", "two"} {
		gone.until(func() bool { return training(name) })
	}
	require.True(t, training("one") && training("two"), "they train at once")
	g.says("delete", "gone", "--yes", "--force")
	require.Equal(t, 1, gone.wait(), gone.stderr.String())
	require.Regexp(t, "^starfish: job gone(: it was deleted from etcd while it ran| has failed: it is being deleted)", gone.last())
	gone.leavesNothing()
	for name, c := range map[string]*call{"one": one, "two": two} {
		require.Zero(t, c.wait(), c.stderr.String())
		r := c.result()
		require.Equal(t, name, r.Job)
		require.EqualValues(t, 25*32561, r.Records)
		require.Zero(t, r.Restarts.Pserver+r.Restarts.Trainer)
		for _, s := range r.Shards {
			require.Equal(t, r.Queue.Batches, s.Batches)
			require.EqualValues(t, 1, s.Generation)
		}
		requireExact(t, filepath.Join(dir, name+".txt"), 25)
		c.leavesNothing()
	}
	var l jobList
	g.ask(&l, "jobs")
	require.Len(t, l.Jobs, 2)
}
