package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/pserver/pb"
)

func yes() *bool { v := true; return &v }
func no() *bool  { v := false; return &v }

func TestStatusWaits(t *testing.T) {
	t.Parallel()
	p := memberStatus{Name: "p", Answers: true}
	tr := memberStatus{Name: "t", Answers: true}
	owned := shardStatus{Owner: "p", Serving: yes(), Generation: 2, Passes: 3, current: true}
	with := func(change func(*jobStatus)) *jobStatus {
		s := &jobStatus{Phase: etcdqueue.PhaseTraining, Passes: 3, Pservers: []memberStatus{p}, Trainers: []memberStatus{tr}, Shards: []shardStatus{owned, owned}}
		s.Shards[1].Shard = 1
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		change func(*jobStatus)
		want   []string
	}{
		"nothing":              {func(*jobStatus) {}, []string{}},
		"nobody is there":      {func(s *jobStatus) { s.Pservers, s.Trainers, s.Shards = nil, nil, nil }, []string{"no pserver is registered", "no trainer is registered"}},
		"a trainer that hangs": {func(s *jobStatus) { s.Trainers[0].Stalled = true }, []string{"a batch of t does not get on; nobody waits for it"}},
		"a free shard":         {func(s *jobStatus) { s.Shards[1].Owner = "" }, []string{"nobody owns shard 1; 1 of 2 pservers are registered"}},
		"an owner that is gone": {func(s *jobStatus) { s.Shards[0].Owner, s.Shards[0].Serving = "q", nil },
			[]string{"the owner of shard 0 is not registered any more"}},
		"a restore": {func(s *jobStatus) { s.Shards[0].Serving, s.Shards[1].Serving = no(), no() }, []string{"shards 0, 1 not served yet"}},
		"a silent process": {func(s *jobStatus) {
			s.Pservers[0].Answers, s.Pservers[0].Error, s.Pservers[0].Address = false, "does not answer", "h:1"
		}, []string{"p at h:1: does not answer"}},
		"a trainer's words": {func(s *jobStatus) { s.Trainers[0].Waits = "shard 3" }, []string{"t waits for shard 3"}},
		"etcd is full":      {func(s *jobStatus) { s.full = true }, []string{store.ErrFull.Error()}},
		"last checkpoints": {func(s *jobStatus) {
			s.Phase, s.Shards[0].current, s.Shards[1].Passes = etcdqueue.PhaseDraining, false, 2
		}, []string{"the last checkpoint of shards 0, 1"}},
		"the evaluation": {func(s *jobStatus) { s.Phase = etcdqueue.PhaseDraining }, []string{"the steward's evaluation"}},
		"the end":        {func(s *jobStatus) { s.Phase, s.Pservers = etcdqueue.PhaseComplete, nil }, []string{}},
	} {
		require.Equal(t, c.want, with(c.change).waits(2), name)
	}
}

func TestStatusMeasures(t *testing.T) {
	t.Parallel()
	now := func(batches int64) *jobStatus {
		return &jobStatus{Chunks: 10, Passes: 2, Progress: 0.5, Queue: etcdqueue.Totals{Complete: 9, Failed: 1, Records: 900},
			counted: ledgerCount{known: true, batches: batches, perBatch: 50}}
	}
	s := now(12)
	s.measure(now(10), 2*time.Second)
	require.InDelta(t, 50, *s.RecordsPerSecond, 1e-9)
	require.InDelta(t, 20, *s.ETASeconds, 1e-9, "10 chunks of 100 records")
	require.Equal(t, "[###############---------------] 50%  50 records/s  ETA 20s", s.progressText())
	for name, before := range map[string]*jobStatus{"a restore": now(20), "nothing known": {}} {
		s = now(12)
		s.measure(before, time.Second)
		require.Nil(t, s.RecordsPerSecond, name)
		require.Nil(t, s.ETASeconds, name)
	}
	s = now(10)
	s.measure(now(10), time.Second)
	require.Zero(t, *s.RecordsPerSecond)
	require.Nil(t, s.ETASeconds, "a job that stands has no end in sight")
	require.Equal(t, ledgerCount{known: true, batches: 7, perBatch: 32},
		countOf(&pb.ShardStats{Batches: 6, Skipped: 1, Passes: []*pb.PassStats{{Batches: 3, Skipped: 1, Records: 128}}}))
	require.False(t, countOf(&pb.ShardStats{}).known)
}

// What a predecessor of another generation says counts for nothing.
func TestStatusNotesStats(t *testing.T) {
	t.Parallel()
	s := &jobStatus{Pass: 1, Shards: []shardStatus{{Shard: 0, Owner: "p", Address: "a", Generation: 2}, {Shard: 1, Owner: "p", Address: "a", Generation: 2},
		{Shard: 2, Owner: "q", Address: "b"}, {Shard: 3}}}
	s.noteStats(map[string]bool{"a": true}, map[int]*pb.ShardStats{
		0: {Shard: 0, Generation: 1, Batches: 5},
		1: {Shard: 1, Generation: 2, Batches: 7, Passes: []*pb.PassStats{{Pass: 1, Batches: 7, Records: 10, Weight: 10, Loss: 5}}},
	})
	require.False(t, *s.Shards[0].Serving)
	require.Nil(t, s.Shards[0].Ledger)
	require.True(t, *s.Shards[1].Serving)
	require.EqualValues(t, 7, s.Shards[1].Ledger.Batches)
	require.Nil(t, s.Shards[2].Serving)
	require.Nil(t, s.Shards[3].Serving)
	require.InDelta(t, 0.5, *s.Loss, 1e-9)
	require.Equal(t, 1, *s.LossPass)

	// The pass has just turned, and nothing of the new one is trained.
	s = &jobStatus{Pass: 2, Phase: etcdqueue.PhaseTraining, Shards: []shardStatus{{Owner: "p", Address: "a"}}}
	s.noteStats(map[string]bool{"a": true}, map[int]*pb.ShardStats{0: {Passes: []*pb.PassStats{{Pass: 0, Weight: 10, Loss: 9}, {Pass: 1, Weight: 10, Loss: 5}, {Pass: 2}}}})
	require.Contains(t, textOf(s), "\nloss     0.50000 in pass 2 so far, each batch before its update\n")
}

// Bad records that were left out are told of where there are any.
func TestBadRecordsAreTold(t *testing.T) {
	t.Parallel()
	s := &jobStatus{Queue: etcdqueue.Totals{Records: 1200, Batches: 20}}
	require.Contains(t, textOf(s), "\nrecords  1,200 in 20 batches\n")
	s.Queue.Bad = 1
	require.Contains(t, textOf(s), "\nrecords  1,200 in 20 batches; 1 bad record was left out\n")
}

// Of very many shards the screen shows those that need a look.
func TestStatusOfManyShards(t *testing.T) {
	t.Parallel()
	s := &jobStatus{Phase: etcdqueue.PhaseTraining}
	for i := range 1000 {
		s.Shards = append(s.Shards, shardStatus{Shard: i, Owner: "p", Serving: yes()})
	}
	s.Shards[777].Serving = no()
	text := textOf(s)
	require.Less(t, strings.Count(text, "\n"), 40)
	require.Contains(t, text, "\n777    p")
	require.Contains(t, text, "and 984 more; 999 of all 1,000 are served\n")
	require.Equal(t, "shards 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1 more", numbered("shard", "shards", strings.Split("0 1 2 3 4 5 6 7 8 9 10 11 12", " ")))
}

// A job that trains, asked from outside: with its speed, its loss, and what its
// processes answer; and once they have been stopped.
func TestStatusOfARun(t *testing.T) {
	at := filepath.Join(t.TempDir(), "run")
	c := newCall(t, "run", "-f", adult, "--dir", at, "--set", "train.passes=100000", "--set", "checkpoint.interval=1s").start()
	c.until(func() bool {
		s, err := statusOf(t, at)
		return err == nil && s.Pass >= 2 && s.Shards[3].Checkpoints > 0
	})
	var s jobStatus
	decodeStrictly(t, newCall(t, "status", "--dir", at, "-o", "json").succeed(), &s)
	require.Equal(t, "training", string(s.Phase))
	require.Positive(t, *s.RecordsPerSecond)
	require.Positive(t, *s.ETASeconds)
	require.Greater(t, *s.Loss, 0.1)
	require.Less(t, *s.Loss, 1.0)
	require.Len(t, s.Pservers, 2)
	require.Len(t, s.Trainers, 2)
	for _, m := range append(s.Pservers, s.Trainers...) {
		require.True(t, m.Answers, m.Name)
	}
	for _, sh := range s.Shards {
		require.True(t, *sh.Serving)
		require.Positive(t, sh.Ledger.Batches)
		require.Positive(t, sh.SavedAt)
	}
	text := newCall(t, "status", "--dir", at).succeed().stdout.String()
	for _, says := range []string{"phase    training, pass ", "records/s  ETA ", "loss     0.", "data     36 chunks a pass in 1 file\n", " ago\n", "PROCESS", "2 shards"} {
		require.Contains(t, text, says)
	}
	watched := newCall(t, "status", "--dir", at, "--watch").start()
	watched.until(func() bool { return strings.Count(watched.stdout.String(), "phase    training") >= 2 })
	require.NotContains(t, watched.stdout.String(), "\x1b", "no terminal, no drawing")
	require.NoError(t, watched.cmd.Process.Signal(syscall.SIGINT))
	require.Zero(t, watched.wait())
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.wait(), c.stderr.String())
	text = newCall(t, "status", "--dir", at).succeed().stdout.String()
	require.Contains(t, text, "waits    no pserver is registered\n         no trainer is registered\n")
	newCall(t, "status", "--dir", at, "--measure", "-1s").refuses(2, "--measure -1s: a time is not negative")
	newCall(t, "status", "--dir", at, "--wathc").refuses(2, "unknown flag: --wathc, did you mean --watch?; `starfish status --help` lists the flags")
	c.leavesNothing()
}
