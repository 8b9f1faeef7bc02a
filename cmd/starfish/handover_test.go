package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
)

// daemon starts a daemon of a job on this etcd.
func (g *ground) daemon(name string, args ...string) *call {
	g.t.Helper()
	return g.daemonIn(filepath.Dir(starfishProgram(g.t)), name, args...)
}

// daemonIn is daemon with the programs of a directory.
func (g *ground) daemonIn(dir, name string, args ...string) *call {
	g.t.Helper()
	kind, _, _ := strings.Cut(name, "-")
	return newCall(g.t, append([]string{"--name", name, "--etcd-endpoints", g.endpoints, "--admin-address", ""}, args...)...).as(filepath.Join(dir, kind)).start()
}

// Real processes: pservers 1, 3, 2 in the middle of a job. One that comes gets its
// share, one that is asked to stop hands over what it has, and every record
// counts once.
func TestPserversComeAndGo(t *testing.T) {
	g := newGround(t)
	const passes, shards = 80, 6
	checkpoints := filepath.Join(t.TempDir(), "checkpoints")
	spec := []string{"--spec", count, "--set", "train.passes=80", "--set", "shards=6", "--set", "run.pservers=1",
		"--set", "checkpoint.dir=" + checkpoints}
	st := g.job("count")
	view := func() membership.View {
		v, err := membership.ReadView(t.Context(), st)
		require.NoError(t, err)
		return v
	}
	// each waits until so many shards are owned by each of them, and by nobody else.
	each := func(n int, names ...string) time.Duration {
		began := time.Now()
		require.Eventually(t, func() bool {
			held := map[string]int{}
			for _, o := range view().Shards {
				held[o.Name]++
			}
			for _, name := range names {
				if held[name] != n {
					return false
				}
			}
			return len(held) == len(names)
		}, 20*time.Second, 10*time.Millisecond, "%v: %+v", names, view())
		return time.Since(began)
	}
	ps := []*call{g.daemon("pserver-0", spec...)}
	trainers := []*call{g.daemon("trainer-0", spec...), g.daemon("trainer-1", spec...)}
	each(6, "pserver-0")
	ps = append(ps, g.daemon("pserver-1", spec...), g.daemon("pserver-2", spec...))
	t.Logf("balanced after %v", each(2, "pserver-0", "pserver-1", "pserver-2"))

	require.NoError(t, ps[0].cmd.Process.Signal(syscall.SIGTERM))
	took := each(3, "pserver-1", "pserver-2")
	t.Logf("handed over after %v", took)
	require.Less(t, took, 5*time.Second, "and not when a lease has ended")
	require.Zero(t, ps[0].wait(), ps[0].stderr.String())
	for shard, o := range view().Shards {
		require.Equal(t, o.HandOvers+1, o.Generation, "shard %d was never free", shard)
	}
	for _, c := range append(trainers, ps[1:]...) {
		require.Zero(t, c.wait(), c.stderr.String())
	}
	kv, err := store.Lookup(t.Context(), st, job.KeyResult)
	require.NoError(t, err)
	var r job.Result
	require.NoError(t, json.Unmarshal(kv.Value, &r))
	require.EqualValues(t, passes*32561, r.Records)
	require.Len(t, r.Shards, shards)
	for _, s := range r.Shards {
		require.Equal(t, r.Queue.Batches, s.Batches, "shard %d", s.Shard)
		require.Zero(t, s.Replayed)
		if s.HandOvers > 0 {
			require.Positive(t, s.HandOverSeconds)
		}
		t.Logf("shard %d: %d hand-overs, %.3f s", s.Shard, s.HandOvers, s.HandOverSeconds)
	}
	file := filepath.Join(t.TempDir(), "counts.txt")
	g.says("export", "--job", "count", "-o", file)
	requireExact(t, file, passes)
}
