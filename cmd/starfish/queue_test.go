package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/pb"
)

// fiveChunks submits a job of five chunks of two records, of which the first
// three are quarantined at once.
func fiveChunks(t *testing.T, g *ground, name string) (spec string) {
	t.Helper()
	spec = small(t, name, map[string]string{"data": strings.Repeat("1 1:1\n1 2:1\n", 5)}, "train: {passes: 2, shuffle: false}",
		"shards: 2", "queue: {lanes: 2, max_failures: 1}")
	sized := []string{"--set", "data.chunk=12", "--set", "train.batch=1"}
	g.says(append([]string{"submit", "-f", spec}, sized...)...)
	j, err := job.Load(t.Context(), g.job(name))
	require.NoError(t, err)
	q, err := etcdqueue.New(etcdqueue.Config{Store: g.job(name), Clock: clock.System, MaxFailures: 1, Passes: 2, Name: "t", Incarnation: "i", Lanes: j.Spec.Queue.Lanes})
	require.NoError(t, err)
	defer q.Close()
	tasks, err := q.Take(t.Context(), 3)
	require.NoError(t, err)
	for _, task := range tasks {
		detail, err := job.FailedDetail{Rank: task.Rank, File: "data", Start: 12 * task.Chunk, End: 12 * (task.Chunk + 1), Batches: []*int64{nil, nil}}.Encode()
		require.NoError(t, err)
		require.NoError(t, q.Fail(t.Context(), task, fmt.Sprintf("reader: bad record: data:%d: it is mouldy", 2*task.Chunk+1), detail))
	}
	return spec
}

func TestQueueCommands(t *testing.T) {
	g := newGround(t)
	spec := fiveChunks(t, g, "q")
	var failed failedList
	g.ask(&failed, "queue", "failed", "--job", "q")
	require.Len(t, failed.Failed, 3)
	require.Equal(t, job.FailedChunk{Chunk: 1, Reason: "bad record: data:3: it is mouldy", Failures: 1, Trainer: "t",
		FailedDetail: job.FailedDetail{Rank: 1, File: "data", Start: 12, End: 24, Batches: []*int64{nil, nil}}}, failed.Failed[1])
	require.Contains(t, g.says("queue", "failed", "--job", "q"), `chunk 1 failed 1 time, last in pass 1, reported by t
  reason   bad record: data:3: it is mouldy
  data     data, bytes 12 to 24
  applied  unknown: no shard tells
`)
	var s jobStatus
	g.ask(&s, "status", "--job", "q")
	require.Len(t, s.Failed, 3)
	require.Contains(t, g.says("status", "--job", "q"), "failed   chunk 0: bad record: data:1: it is mouldy\n")

	g.call("queue", "requeue", "--job", "q").refuses(2, "name the chunks to take back, or --all; `starfish queue failed` lists them")
	g.call("queue", "requeue", "1", "--all", "--job", "q").refuses(2, "name the chunks to take back, or --all; `starfish queue failed` lists them")
	g.call("queue", "requeue", "one", "--job", "q").refuses(2, `"one" is not the number of a chunk`)
	g.call("queue", "requeue", "4", "--job", "q").refuses(2, "readmit chunk 4: not quarantined")
	var back requeued
	g.ask(&back, "queue", "requeue", "2", "0", "2", "--job", "q")
	require.Equal(t, []int64{2, 0}, back.Chunks)
	require.Zero(t, *back.Pass)

	var l queueList
	g.ask(&l, "queue", "ls", "--job", "q")
	require.Equal(t, []passLine{{0, etcdqueue.Totals{Chunks: 5, Todo: 4, Failed: 1, Takes: 3}}}, l.Passes)
	require.Equal(t, []laneLine{{0, etcdqueue.Totals{Chunks: 3, Todo: 3, Takes: 2}}, {1, etcdqueue.Totals{Chunks: 2, Todo: 1, Failed: 1, Takes: 1}}}, l.Lanes)
	require.Nil(t, l.Lane)
	g.call("queue", "ls", "--job", "q", "--pass", "1").refuses(2, "--pass 1: there are lanes of the passes 0 to 0")
	g.call("queue", "ls", "--job", "q", "--lane", "2").refuses(2, "--lane 2: there are 2 lanes, from 0")
	g.call("queue", "ls", "--job", "q", "--lane", "-1").refuses(2, "--pass and --lane count from 0")
	newCall(t, "queue", "sl").refuses(2, "unknown command \"sl\", did you mean \"ls\"?; `starfish queue --help` lists the commands")
	require.Contains(t, newCall(t, "queue").succeed().stdout.String(), "Available Commands")

	// What was taken back is trained, what was not is missing in both passes.
	at := filepath.Join(t.TempDir(), "run")
	c := g.call("run", "-f", spec, "--set", "data.chunk=12", "--set", "train.batch=1", "--dir", at, "--result", "-")
	require.Equal(t, 7, c.run(), c.stderr.String())
	r := c.result()
	require.EqualValues(t, 16, r.Records)
	require.EqualValues(t, 2, r.Queue.Failed)
	require.EqualValues(t, 8, r.Queue.Complete)
	text := g.says("queue", "ls", "--job", "q")
	require.Contains(t, text, "PASS  TODO  PENDING  COMPLETE  FAILED  BATCHES  RECORDS  TAKES  REQUEUED  SPECULATED  REOPENED\n1     0     0        4         1       8        8")
	require.Contains(t, g.says("queue", "ls", "--job", "q", "--pass", "1"), "LANE  TODO  PENDING  COMPLETE  FAILED  BATCHES  RECORDS  TAKES  REQUEUED  SPECULATED  REOPENED\n0     0     0        3         0       6        6")
	require.Equal(t, "lane 1 of pass 2, by positions\ncomplete  1\nfailed    0\n", g.says("queue", "ls", "--job", "q", "--lane", "1"))
	g.call("queue", "requeue", "--all", "--job", "q").refuses(1, "readmit chunk 1: wrong phase: the job is complete, no pass is left")

	var a auditList
	g.ask(&a, "queue", "audit", "--job", "q")
	require.True(t, a.Agree)
	require.Equal(t, []ledgerSource{{Shard: 0, Source: "checkpoint"}, {Shard: 1, Source: "checkpoint"}}, a.Shards)
	for _, p := range a.Passes {
		require.Equal(t, auditAgree, p.Verdict)
		require.EqualValues(t, 8, p.Batches)
		require.Len(t, p.Shards, 2)
		require.EqualValues(t, 8, *p.Shards[1].Records)
	}
	require.Contains(t, g.says("queue", "audit", "--job", "q"), "agree, but for batches of failed chunks\n")
	// A lane that claims more than the shards have.
	kv, err := store.Lookup(t.Context(), g.job("q"), "queue/000001/0000")
	require.NoError(t, err)
	write(t, g.job("q"), store.Put(kv.Key, []byte(strings.Replace(string(kv.Value), `"batches":6`, `"batches":7`, 1)), 0))
	bad := g.call("queue", "audit", "--job", "q")
	require.Equal(t, 1, bad.run())
	require.Contains(t, bad.stdout.String(), "DIFFER: shard 0 has -1 batches, +0 records\n")
	require.Equal(t, "starfish: lanes and ledgers differ\n", bad.stderr.String())
}

// While a job trains the pservers are asked, and what is running is not compared.
func TestQueueOfARun(t *testing.T) {
	g := newGround(t)
	at := filepath.Join(t.TempDir(), "run")
	c := g.call("run", "-f", count, "--dir", at, "--set", "train.passes=100000", "--set", "checkpoint.interval=1s").start()
	var a auditList
	c.until(func() bool {
		call := g.call("queue", "audit", "--job", "count", "-o", "json")
		if call.run() != 0 {
			return false
		}
		a = auditList{}
		decodeStrictly(t, call, &a)
		// The last pass may have ended just then.
		return len(a.Passes) >= 3 && a.Passes[1].Verdict == auditAgree && a.Passes[len(a.Passes)-1].Verdict == auditRunning
	})
	for _, s := range a.Shards {
		require.Equal(t, fromOwner, s.Source)
	}
	c.until(func() bool {
		var l queueList
		g.ask(&l, "queue", "ls", "--job", "count", "--lane", "3")
		for _, e := range l.Lane.Pending {
			require.NotEmpty(t, e.Chunks)
			require.Positive(t, e.Token)
		}
		return len(l.Lane.Pending) > 0
	})
	require.NoError(t, c.cmd.Process.Kill())
	c.wait()
	c.leavesNothing()
}

func TestAuditCompares(t *testing.T) {
	t.Parallel()
	sums := func(batches, records int64) ledger.Sums { return ledger.Sums{Batches: batches, Records: records} }
	whole := etcdqueue.Totals{Chunks: 2, Complete: 2, Batches: 10, Records: 100}
	part := etcdqueue.Totals{Chunks: 2, Complete: 1, Pending: 1, Batches: 5, Records: 50}
	// Passes 0 and 1 are removed, 4 is running; one shard has folded 0 to 2.
	s := etcdqueue.State{Floor: 2, Pass: 4, Past: whole.Add(whole)}
	lanes := map[int]etcdqueue.Totals{2: whole, 3: whole, 4: part}
	owner := countsOf(&pb.ShardStats{Batches: 46, Skipped: 1, Passes: []*pb.PassStats{{Pass: 3, Batches: 9, Skipped: 1, Records: 100}, {Pass: 4, Batches: 7, Records: 70}}})
	require.Equal(t, counts{source: fromOwner, folded: true, through: 3, covered: owner.covered, past: sums(30, 0),
		passes: map[int]ledger.Sums{3: {Batches: 9, Skipped: 1, Records: 100}, 4: sums(7, 70)}}, owner)
	saved := counts{source: fromCheckpoint, through: 2, covered: 3, past: sums(20, 200), passes: map[int]ledger.Sums{2: sums(10, 100), 3: sums(4, 40)}}
	verdicts := func(shards ...counts) (v []string) {
		for _, p := range spans(s, lanes, lanes, shards) {
			p.compare(shards)
			v = append(v, fmt.Sprintf("%d-%d %s", p.From, p.To, p.Verdict))
		}
		return v
	}
	require.Equal(t, []string{"0-2 agree", "3-3 behind", "4-4 running"}, verdicts(owner, saved))
	require.Equal(t, []string{"0-2 agree", "3-3 agree", "4-4 running"}, verdicts(owner))
	owner.past.Batches--
	require.Equal(t, []string{"0-2 differ", "3-3 agree", "4-4 running"}, verdicts(owner))
	owner.passes[3] = sums(10, 99)
	require.Equal(t, []string{"0-2 differ", "3-3 differ", "4-4 running"}, verdicts(owner))
	p := auditedPass{Batches: 10, Records: 100, Failed: 1}
	has := func(batches, records int64) string { return p.differs(shardAudit{Batches: batches, Records: &records}) }
	require.Empty(t, has(12, 120), "batches of the failed chunk")
	require.Equal(t, "-1 batches, +0 records", has(9, 120))
	// What is lost is counted, and its records are not there.
	p.Failed = 0
	records := int64(90)
	require.Empty(t, p.differs(shardAudit{Batches: 8, Lost: 2, Records: &records}))
	require.Equal(t, "-1 batches, +0 records", p.differs(shardAudit{Batches: 8, Lost: 1, Records: &records}))
	require.Equal(t, counts{source: fromOwner, folded: true, lost: 5, through: 3, covered: owner.covered, past: ledger.Sums{Batches: 2, Lost: 3},
		passes: map[int]ledger.Sums{3: {Batches: 4, Lost: 2}}},
		countsOf(&pb.ShardStats{Batches: 6, Lost: 5, Passes: []*pb.PassStats{{Pass: 3, Batches: 4, Lost: 2}}}))
	moved := map[int]etcdqueue.Totals{2: whole, 3: part, 4: part}
	require.Equal(t, auditRunning, spans(s, lanes, moved, nil)[2].Verdict)
}

func TestAppliedText(t *testing.T) {
	t.Parallel()
	n := func(n int64) *int64 { return &n }
	require.Equal(t, "3 batches before it failed, on each shard", appliedText([]*int64{n(3), n(3)}))
	require.Equal(t, "1 batch before it failed, on each shard; unknown on 1 shard", appliedText([]*int64{n(1), nil}))
	require.Equal(t, "batches before it failed: 3 on shard 0, 2 on shard 2; unknown on 1 shard", appliedText([]*int64{n(3), nil, n(2)}))
}
