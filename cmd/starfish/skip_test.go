package main

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

func TestLossesAreSaid(t *testing.T) {
	t.Parallel()
	res := &job.Result{Recovery: job.PolicySkip, Shards: []job.ShardState{
		{Shard: 0, Batches: 100}, {Shard: 1, Batches: 88, Lost: 12, Losses: 2}, {Shard: 2, Batches: 99, Lost: 1, Losses: 1}}}
	var b strings.Builder
	summary(&b, res)
	require.Contains(t, b.String(), "shards    3, each with 100 batches, the lost ones included; 0 skipped, 13 lost, 0 replayed, 0 duplicates ignored\n"+
		"lost      12 batches of shard 1 to 2 failures (recovery.policy: skip)\n"+
		"lost      1 batch of shard 2 to 1 failure (recovery.policy: skip)\nrestarts")
	res.Recovery = job.PolicyReplay
	b.Reset()
	summary(&b, res)
	require.Contains(t, b.String(), "(--allow-reinit)\n")
	for i := range 40 {
		res.Shards = append(res.Shards, job.ShardState{Shard: 3 + i, Batches: 99, Lost: 1, Losses: 1})
	}
	b.Reset()
	summary(&b, res)
	require.Equal(t, shownShards+1, strings.Count(b.String(), "\nlost "))
	require.Contains(t, b.String(), "lost      batches of 26 shards more\n")

	s := &jobStatus{Shards: []shardStatus{{Shard: 0, Ledger: &shardLedger{Batches: 9}}, {Shard: 1, Ledger: &shardLedger{Lost: 12, Losses: 2}}, {Shard: 2}}}
	b.Reset()
	s.shardTable(&b)
	require.Equal(t, 1, strings.Count(b.String(), "lost"))
	require.Contains(t, b.String(), "lost: 12 batches of shard 1 to 2 failures\n")
	for i := range 40 {
		s.Shards = append(s.Shards, shardStatus{Shard: 3 + i, Ledger: &shardLedger{Lost: 1, Losses: 1}})
	}
	b.Reset()
	s.shardTable(&b)
	require.Contains(t, b.String(), "lost: batches of 25 shards more\n")
}

// Real processes under policy skip: pservers and trainers are killed, and at the
// end each shard has applied each batch once, or says that it is lost. What was
// applied is in the model exactly.
func TestRunWithPolicySkip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(t.TempDir(), "counts.txt")
	const passes = 60
	c := newCall(t, "run", "-f", count, "--dir", dir, "--result", "-", "--export", file, "--set", "recovery.policy=skip",
		"--set", "train.passes="+strconv.Itoa(passes), "--chaos", "pserver=700ms,trainer=1s", "--chaos-seed", "4").succeed()
	r := c.result()
	require.Equal(t, "skip", r.Recovery)
	require.EqualValues(t, passes*32561, r.Records)
	require.EqualValues(t, passes*32561, r.Queue.Records)
	require.Positive(t, r.Restarts.Kills.Pserver, "kills that struck")
	var lost int64
	summary := c.stderr.String()
	for _, s := range r.Shards {
		require.Equal(t, r.Queue.Batches, s.Batches+s.Skipped+s.Lost, "shard %d", s.Shard)
		require.LessOrEqual(t, r.Records-s.Records, 64*s.Lost, "shard %d", s.Shard)
		lost += s.Lost
		if s.Lost > 0 {
			require.Contains(t, summary, "lost      "+lossText(s.Shard, s.Lost, s.Losses)+" (recovery.policy: skip)\n")
		}
	}
	require.Positive(t, lost, "pservers were killed between two saves")
	home := r.Shards[job.BlockShard("total", 0, len(r.Shards))]
	require.Contains(t, exported(t, file), "\ntotal\t0\t"+strconv.FormatInt(home.Records, 10)+"\n")
	text := newCall(t, "queue", "audit", "--dir", dir).succeed().stdout.String()
	require.Contains(t, text, "has lost")
	require.NotContains(t, text, "DIFFER")
	t.Logf("kills %+v, %d batches lost", r.Restarts.Kills, lost)
	c.leavesNothing()
}
