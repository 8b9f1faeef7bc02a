package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// The audit: the model `count` on the adult data, in three cuts, without faults
// and with trainers and pservers that are killed all the time. `total` and each
// row of `seen` must be exact, and the ledgers of all shards must agree with the
// lanes.
//
// An ordinary test run spends seconds on it. With STARFISH_CAMPAIGN=60s each
// part lasts about that long, and at least 20 kills of each kind must have struck
// between first take and last complete (`make audit`).
func TestAudit(t *testing.T) {
	campaign := campaignTime(t)
	cuts := []struct{ chunk, batch string }{{"64KiB", "64"}, {"16KiB", "1000"}, {"300001B", "7"}}
	faults := map[string][]string{
		"no faults": nil,
		"chaos":     {"--chaos", "trainer=1s"},
		"both":      {"--chaos", "trainer=1s,pserver=2s"},
	}
	if campaign == 0 {
		cuts = cuts[:2]
		faults["chaos"] = []string{"--chaos", "trainer=300ms"}
		faults["both"] = []string{"--chaos", "trainer=400ms,pserver=700ms"}
	}
	for _, cut := range cuts {
		for _, name := range []string{"no faults", "chaos", "both"} {
			t.Run(fmt.Sprintf("chunk %s batch %s %s", cut.chunk, cut.batch, name), func(t *testing.T) {
				a := audit{t: t, sets: []string{"--set", "data.chunk=" + cut.chunk, "--set", "train.batch=" + cut.batch}}
				passes := 16
				if name != "no faults" {
					passes = 48 // enough for kills on a machine that has nothing else to do
				}
				if campaign > 0 {
					passes = a.passesFor(campaign)
				}
				r := a.run(passes, faults[name]...)
				if name != "no faults" {
					least := 2
					if campaign >= time.Minute {
						least = 20
					}
					require.GreaterOrEqual(t, r.Restarts.Kills.Trainer, least, "kills that struck")
					if name == "both" && campaign > 0 {
						require.GreaterOrEqual(t, r.Restarts.Kills.Pserver, least, "kills that struck")
					}
					require.GreaterOrEqual(t, r.Restarts.Trainer, r.Restarts.Kills.Trainer)
				}
			})
		}
	}
}

// Twenty trainers at once on an empty etcd: every chunk is taken exactly once,
// and every record counts once.
func TestTwentyTrainers(t *testing.T) {
	a := audit{t: t, sets: []string{"--trainers", "20", "--set", "data.chunk=16KiB"}}
	r := a.run(2)
	require.Equal(t, r.Queue.Complete, r.Queue.Takes)
	require.Zero(t, r.Queue.Requeued)
}

// TestAuditModel: kills cost a real model nothing. The AUC of the example adult
// is that of a run without faults, to 0.002.
func TestAuditModel(t *testing.T) {
	passes, least, chaos := 30, 1, "pserver=700ms,trainer=400ms"
	train := func(passes int, flags ...string) job.Result {
		args := []string{"run", "-f", adult, "--result", "-", "--set", "lease_ttl=2s", "--set", fmt.Sprintf("train.passes=%d", passes)}
		r := newCall(t, append(args, flags...)...).succeed().result()
		require.EqualValues(t, passes*32561, r.Records)
		for _, s := range r.Shards {
			require.Equal(t, r.Queue.Batches, s.Batches, "batches of shard %d and of the lanes", s.Shard)
		}
		return r
	}
	if campaign := campaignTime(t); campaign > 0 {
		const few = 20
		passes = few * int(math.Ceil(campaign.Seconds() / *train(few).Seconds))
		chaos = "pserver=2s,trainer=1s"
		if campaign >= time.Minute {
			least = 20
		}
	}
	quiet, r := train(passes), train(passes, "--chaos", chaos)
	require.GreaterOrEqual(t, r.Restarts.Kills.Pserver, least)
	require.GreaterOrEqual(t, r.Restarts.Kills.Trainer, least)
	require.InDelta(t, *quiet.Test.Metrics["auc"], *r.Test.Metrics["auc"], 0.002)
	t.Logf("%d passes: AUC %.5f without faults in %.0f s, %.5f with the kills %+v in %.0f s", passes,
		*quiet.Test.Metrics["auc"], *quiet.WallSeconds, *r.Test.Metrics["auc"], *r.Restarts.Kills, *r.WallSeconds)
}

func campaignTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("STARFISH_CAMPAIGN")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

// audit runs the model `count` with some settings.
type audit struct {
	t    *testing.T
	sets []string
}

// run runs it for some passes and demands that everything is exact.
func (a *audit) run(passes int, flags ...string) job.Result {
	a.t.Helper()
	file := filepath.Join(a.t.TempDir(), "counts.txt")
	args := append([]string{"run", "-f", count, "--result", "-", "--export", file, "--pservers", "2", "--trainers", "3",
		"--set", fmt.Sprintf("train.passes=%d", passes)}, a.sets...)
	c := newCall(a.t, append(args, flags...)...).succeed()
	r := c.result()
	requireExact(a.t, file, passes)
	require.EqualValues(a.t, passes*32561, r.Records)
	require.Equal(a.t, r.Queue.Records, r.Records, "lanes and ledgers")
	require.Len(a.t, r.Shards, 4)
	for _, s := range r.Shards {
		require.Equal(a.t, r.Queue.Batches, s.Batches, "batches of shard %d and of the lanes", s.Shard)
		require.Equal(a.t, r.Records, s.Records, "records of shard %d", s.Shard)
		require.Zero(a.t, s.Lost)
		require.Zero(a.t, s.Skipped)
	}
	require.Zero(a.t, r.Queue.Failed)
	c.leavesNothing()
	a.t.Logf("%d passes in %.1f s; kills %+v, %d takes, %d requeued", passes, *r.WallSeconds, r.Restarts.Kills, r.Queue.Takes, r.Queue.Requeued)
	return r
}

// passesFor is about how many passes take so long.
func (a *audit) passesFor(d time.Duration) int {
	a.t.Helper()
	const few = 10
	return few * int(math.Ceil(d.Seconds() / *a.run(few).Seconds))
}

// requireExact demands of an export of `count` on the adult data exactly what
// the data holds, times the passes.
func requireExact(t *testing.T, file string, passes int) {
	t.Helper()
	want := map[string]int{"total\t0": 0}
	f, err := os.Open(filepath.Join(filepath.Dir(adult), "a9a"))
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		want["total\t0"] += passes
		for _, field := range strings.Fields(lines.Text())[1:] {
			key, _, _ := strings.Cut(field, ":")
			want["seen\t"+key] += passes
		}
	}
	require.Equal(t, 32561*passes, want["total\t0"])
	var lines []string
	for k, n := range want {
		lines = append(lines, fmt.Sprintf("%s\t%d", k, n))
	}
	require.ElementsMatch(t, lines, strings.Split(strings.TrimSpace(exported(t, file)), "\n"))
}
