package mutants

import "slices"

// List returns all mutants, in the order of the invariants they break.
func List() []Mutant {
	var all []Mutant
	for _, part := range [][]Mutant{noMaster(), oneState(), exactlyOnce(), exactlyCounted(), oneWriter(), checkpoints(), protocol(), liveness(), hostility(), elastic(), supervised(), steps()} {
		all = append(all, part...)
	}
	slices.SortStableFunc(all, func(a, b Mutant) int { return a.Invariant - b.Invariant })
	return all
}

// noMaster: invariant 1, any process may die.
func noMaster() []Mutant {
	return []Mutant{
		{
			Name: "dead-takers-keep-their-chunks", Invariant: 1,
			Breaks: "chunks of a trainer that is gone never return to the queue",
			File:   "etcdqueue/steward.go", Old: "case !registered(e):", New: "case false && !registered(e):",
			Package: "./etcdqueue", Run: "TestRequeue|TestCrashAfterTakeCommits|TestWalk",
			Simulation: true,
		},
		{
			Name: "shards-of-the-dead-stay-theirs", Invariant: 1,
			Breaks: "nobody claims the shards of a pserver that is gone",
			File:   "internal/membership/claim.go", Old: "if o.Owned() && registered[o.Name] == o.Incarnation {", New: "if o.Owned() {",
			Package: "./internal/membership", Run: "TestPlan",
			Simulation: true,
		},
		{
			Name: "start-without-the-others-never", Invariant: 1,
			Breaks: "a job whose pservers do not all come never starts",
			File:   "internal/membership/claim.go", Old: "len(registered) < want && !waited", New: "len(registered) < want",
			Package: "./internal/membership", Run: "TestPlan",
		},
		{
			Name: "whatever-the-owners-hold-is-evaluated", Invariant: 1,
			Breaks: "a pass is evaluated on a shard that has just been restored from before it",
			File:   "trainer/passes.go", Old: "return shard.Batches < p.Pass.Batches }", New: "return shard.Batches < 0 }",
			Package: "./trainer", Run: "TestScheduleEvaluationAsksAnOwnerWithoutHistory",
		},
		{
			Name: "an-evaluation-outlives-its-state", Invariant: 1,
			Breaks: "the evaluation of a pass is written although chunks were reopened since",
			File:   "etcdqueue/steward.go", Old: "append(slices.Clone(guards), from.Guard())", New: "guards",
			Package: "./etcdqueue", Run: "TestTurnFrom",
		},
	}
}

// oneState: invariants 2 and 3, a chunk is in one place, and Complete means
// trained.
func oneState() []Mutant {
	return []Mutant{
		{
			Name: "requeue-leaves-it-pending", Invariant: 2,
			Breaks: "a requeued chunk is Todo and Pending at once",
			File:   "etcdqueue/lane.go", Old: "\t\tl.Pending = kept\n", New: "",
			Package: "./etcdqueue", Run: "TestLane",
			Simulation: true,
		},
		{
			Name: "reopen-leaves-it-complete", Invariant: 2,
			Breaks: "a reopened chunk is Todo and Complete at once",
			File:   "etcdqueue/lane.go", Old: "\tl.Complete = l.Complete.Minus(at)\n", New: "",
			Package: "./etcdqueue", Run: "TestLane",
			Simulation: true,
		},
		{
			Name: "readmit-beside-the-state", Invariant: 2,
			Breaks: "a chunk that was taken back from quarantine lies in a pass that was turned meanwhile",
			File:   "etcdqueue/readmit.go", Old: ", store.Put(stateKey, s.encode(), 0)}", New: "}",
			Package: "./etcdqueue", Run: "TestScheduleTranscripts",
		},
		{
			Name: "skipped-by-hearsay", Invariant: 2,
			Breaks: "a taker moves a chunk to Failed that was taken back from quarantine",
			File:   "etcdqueue/take.go", Old: "\tconds = append(conds, skipped...)\n", New: "",
			Package: "./etcdqueue", Run: "TestScheduleTranscripts",
		},
		{
			Name: "a-failure-that-came-to-nothing-counts", Invariant: 2,
			Breaks: "a taker believes that a chunk is in quarantine because it once meant to put it there; only the conditions of its takes keep the chunk from being skipped",
			File:   "etcdqueue/write.go", Old: "if after, quarantine, ok = l.Fail(", New: "if after, _, ok = l.Fail(t.Position, q.holder(t), q.c.MaxFailures); ok {\n\t\t\t_, quarantine, _ = l.Fail(t.Position, q.holder(t), q.c.MaxFailures)\n\t\t}\n\t\tif after, _, ok = l.Fail(",
			Package: "./etcdqueue", Run: "TestFailThatCameToNothing",
		},
		{
			Name: "a-lane-is-not-checked", Invariant: 2,
			Breaks: "a record that has a position twice is believed",
			File:   "etcdqueue/lane.go", Old: "n != size || !all.Equal(ranges.Of(0, size-1))", New: "n < 0",
			Package: "./etcdqueue", Run: "TestLaneCheck",
		},
		{
			Name: "finished-at-the-first-batch", Invariant: 3,
			Breaks: "a shard calls a chunk finished when it has its first batch",
			File:   "pserver/ledger/ledger.go", Old: "if p.Last {", New: "if true {",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
			Simulation: true,
		},
		{
			Name: "complete-before-the-last-acknowledgement", Invariant: 3,
			Breaks: "a trainer completes a chunk when its first batch is acknowledged",
			File:   "trainer/round.go", Old: "h.finished = h.finished || last", New: "h.finished = true",
			Package: "./trainer", Run: "TestKilledProcessesLoseNothing",
			Simulation: true,
		},
		{
			Name: "complete-without-the-view", Invariant: 3,
			Breaks: "a chunk is completed with the word of an owner that has been replaced",
			File:   "trainer/pipeline.go", Old: "r.w.queue.Complete(ctx, report, r.view.Guard())", New: "r.w.queue.Complete(ctx, report)",
			Package: "./trainer", Run: "TestCompleteNeedsTheOwnersOfItsView|TestPartitionedProcessesLoseNothing|TestKilledProcessesLoseNothing",
			Simulation: true,
		},
		{
			Name: "one-shard-speaks-for-all", Invariant: 3,
			Breaks: "after a fault a chunk counts as finished when one shard says so",
			File:   "trainer/round.go", Old: "\t\tif finished || p.Next < next {\n\t\t\tnext = p.Next\n\t\t}\n\t\tfinished = false\n",
			New:     "\t\tif finished || p.Next < next {\n\t\t\tnext = p.Next\n\t\t}\n\t\tfinished = finished && shards[0].Finished\n",
			Package: "./trainer", Run: "TestSmallest",
			Simulation: true,
		},
		{
			Name: "what-earlier-owners-have-said-counts", Invariant: 3,
			Breaks: "a chunk is completed under a new view by the answers of an earlier one",
			File:   "trainer/hand.go", Old: "\t\tc.finished = false\n", New: "\t\t_ = c\n",
			Package: "./trainer", Run: "TestHand",
		},
	}
}

// exactlyOnce: invariant 4.
func exactlyOnce() []Mutant {
	return []Mutant{
		{
			Name: "a-retry-is-applied-again", Invariant: 4,
			Breaks: "a batch that is sent twice is applied twice",
			File:   "pserver/ledger/ledger.go", Old: "case p.N < f.next:", New: "case p.N+1 < f.next:",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
			Simulation: true,
		},
		{
			Name: "a-finished-chunk-begins-again", Invariant: 4,
			Breaks: "a chunk that is trained again after its end is applied again",
			File:   "pserver/ledger/ledger.go", Old: "if l.finished(p.Pass, p.Rank) {\n\t\treturn Decision{Verdict: Duplicate}, nil",
			New:     "if false {\n\t\treturn Decision{Verdict: Duplicate}, nil",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
			Simulation: true,
		},
		{
			Name: "a-gap-is-swallowed", Invariant: 4,
			Breaks: "a batch that comes after a lost one is applied, and the lost one never",
			File:   "pserver/ledger/ledger.go", Old: "case p.N > f.next && !(p.Gap", New: "case p.N > f.next+1 && !(p.Gap",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
		},
		{
			Name: "a-zombie-trainer-is-heard", Invariant: 4,
			Breaks: "the taker of a chunk and its predecessor are not told apart",
			File:   "pserver/ledger/ledger.go", Old: "case known && p.Token < f.token:", New: "case false:",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
		},
		{
			Name: "an-old-token-completes", Invariant: 4,
			Breaks: "a report counts although the chunk was taken back and taken anew since",
			File:   "etcdqueue/lane.go", Old: "e.Incarnation == h.Incarnation && e.Token == h.Token && e.At", New: "e.Incarnation == h.Incarnation && e.At",
			Package: "./etcdqueue", Run: "TestHistories",
		},
		{
			Name: "complete-whatever-the-guards-say", Invariant: 3,
			Breaks: "the queue writes a Complete whose guards do not hold",
			File:   "etcdqueue/write.go", Old: "verb{name: \"complete\", guards: guards, do", New: "verb{name: \"complete\", do",
			Package: "./etcdqueue", Run: "TestHistories",
			Simulation: true,
		},
		{
			Name: "complete-is-complete", Invariant: 4,
			Breaks: "who comes too late with a chunk that another has completed is told that it was him",
			File:   "etcdqueue/write.go", Old: "if !ok && unsure && (l.V == 0", New: "if !ok && (l.V == 0",
			Package: "./etcdqueue", Run: "TestHistories",
		},
		{
			Name: "sums-are-added-again", Invariant: 4,
			Breaks: "records of a reopened chunk count twice",
			File:   "etcdqueue/lane.go", Old: "if l.Again.Contains(position) {", New: "if false {",
			Package: "./etcdqueue", Run: "TestLane",
		},
		{
			Name: "retries-move-the-schedule", Invariant: 4,
			Breaks: "the learning rate falls with what is sent, not with what is trained",
			File:   "pserver/ledger/ledger.go", Old: "		l.counters.Duplicates++\n", New: "		l.counters.Duplicates++\n		l.counted++\n",
			Package: "./pserver", Run: "TestScheduleCountsBatches",
		},
		{
			Name: "a-restore-begins-the-schedule-anew", Invariant: 4,
			Breaks: "after a restore the learning rate is that of the first batch",
			File:   "pserver/ledger/snapshot.go", Old: "l.counted += s.Sums.counted()", New: "l.counted += 0 * s.Sums.counted()",
			Package: "./pserver", Run: "TestScheduleCountsBatches|TestEveryOptimizerIsSaved",
		},
		{
			Name: "reopened-and-draining", Invariant: 4,
			Breaks: "a chunk that is reopened while the job drains lies where nobody looks",
			File:   "etcdqueue/turn.go", Old: "if s.Phase == PhaseDraining {", New: "if false {",
			Package: "./etcdqueue", Run: "TestScheduleTranscripts|TestTurned|TestWalk",
			Simulation: true,
		},
		{
			Name: "draining-before-the-list-is-empty", Invariant: 4,
			Breaks: "the job drains while an earlier pass has reopened chunks",
			File:   "etcdqueue/turn.go", Old: "case len(s.Reopened) == 0:", New: "case true:",
			Package: "./etcdqueue", Run: "TestHistories|TestScheduleTranscripts|TestTurned|TestWalk",
			Simulation: true,
		},
		{
			Name: "reopen-beside-the-state", Invariant: 4,
			Breaks: "a reopen that is decided before a turn is written after it",
			File:   "etcdqueue/reopen.go", Old: "conds := []store.Cmp{s.Guard()}", New: "conds := []store.Cmp{}",
			Package: "./etcdqueue", Run: "TestHistories|TestScheduleTranscripts|TestReopen",
		},
		{
			Name: "what-failed-is-not-asked-again", Invariant: 4,
			Breaks: "the result claims batches of a failed chunk that a restored shard has lost since",
			File:   "trainer/failed.go", Old: "f.First[i].Batches = batchesOf(progress[i])", New: "_ = batchesOf(progress[i])",
			Package: "./trainer", Run: "TestFailedChunkOfARestoredShard",
		},
		{
			Name: "what-a-restore-lost-is-not-missed", Invariant: 4,
			Breaks: "chunks that a restored shard lacks are not trained again",
			File:   "pserver/restore.go", Old: "if len(missing) > 0 {", New: "if false {",
			Package: "./pserver", Run: "TestKilledPserverIsReplacedByName|TestKilledBeforeTheFirstCheckpoint",
			Simulation: true,
		},
		{
			Name: "handed-over-unsaved", Invariant: 4,
			Breaks: "a shard is given away as its last interval save has it, and everything since is trained again",
			File:   "pserver/handover.go", Old: "if err := t.save(h.ctx, h, saveHandOver); err != nil {", New: "if g.stopped = g.began; h.away.Swap(true) {\n\t\tvar err error",
			Package: "./pserver", Run: "TestPserversComeAndGo",
		},
		{
			Name: "saved-once-is-saved-for-good", Invariant: 4,
			Breaks: "a job is complete although the owner of a shard has not saved it since it took over",
			File:   "trainer/steward.go", Old: "if ms[0].Generation != view.Shards[i].Generation || ms[0].Passes < passes {",
			New:     "if ms[0].Passes < passes {",
			Package: "./trainer", Run: "TestCovered",
			Simulation: true,
		},
		{
			Name: "the-newest-save-is-enough", Invariant: 4,
			Breaks: "lanes are removed while an older listed checkpoint may still need them",
			File:   "trainer/steward.go", Old: "for _, m := range ms {\n\t\t\tif covered < 0", New: "for _, m := range ms[:1] {\n\t\t\tif covered < 0",
			Package: "./trainer", Run: "TestCovered",
			Simulation: true,
		},
	}
}

// oneWriter: invariant 5.
func oneWriter() []Mutant {
	return []Mutant{
		{
			Name: "no-look-under-the-lock", Invariant: 5,
			Breaks: "a pserver applies pushes after its lease may have ended",
			File:   "pserver/shard.go", Old: "if ok != nil && !ok() {", New: "if false {",
			Package: "./pserver", Run: "TestNotOwner",
		},
		{
			Name: "any-generation-is-served", Invariant: 5,
			Breaks: "a push for another generation of a shard is taken",
			File:   "pserver/server.go", Old: "case h.generation != generation:", New: "case false:",
			Package: "./pserver", Run: "TestAnswers|TestZombie",
		},
		{
			Name: "lease-counted-from-the-answer", Invariant: 5,
			Breaks: "an owner believes in its lease for longer than etcd does",
			File:   "internal/membership/member.go", Old: "\t\t\tm.extend(sent, ttl)\n", New: "\t\t\tm.extend(m.c.Clock.Now(), ttl)\n\t\t\t_ = sent\n",
			Package: "./internal/membership", Run: "TestTheLeaseIsCountedFromTheSending",
		},
		{
			Name: "claim-from-the-living", Invariant: 5,
			Breaks: "a shard is claimed whose owner is registered",
			File:   "internal/membership/claim.go", Old: "if old.Owned() && roster.Members[old.Name].Incarnation == old.Incarnation {", New: "if false {",
			Package: "./internal/membership", Run: "TestClaim",
			Simulation: true,
		},
		{
			Name: "the-giver-goes-on-serving", Invariant: 5,
			Breaks: "a pserver acknowledges pushes to a shard that it has handed over",
			File:   "pserver/saver.go", Old: "\t\th.away.Store(true)", New: "\t\th.away.Store(false)",
			Package: "./pserver", Run: "TestTheGiverIsSilentFromTheCutOn",
		},
		{
			Name: "handed-to-one-that-leaves", Invariant: 5,
			Breaks: "a shard is given to a pserver that is gone or stopping by then",
			File:   "internal/membership/handover.go", Old: "t.If = append(t.If, store.Unchanged(PServers+\"/\"+move.To, to.Revision))", New: "_ = to",
			Package: "./internal/membership", Run: "TestHandOverIsGuarded",
		},
		{
			Name: "handed-over-under-the-old-generation", Invariant: 5,
			Breaks: "giver and receiver are owners of one generation",
			File:   "internal/membership/owners.go", Old: "Generation: o.Generation + 1,", New: "Generation: max(o.Generation, 1),",
			Package: "./internal/membership", Run: "TestHandOver",
			Simulation: true,
		},
		{
			Name: "claim-without-comparing", Invariant: 5,
			Breaks: "two pservers that claim at once both believe that they own the shard",
			File:   "internal/membership/claim.go", Old: "store.Created(specKey, specRev), v.Guard()}", New: "store.Created(specKey, specRev)}",
			Package: "./internal/membership", Run: "TestClaim",
			Simulation: true,
		},
		{
			Name: "kept-whoever-was-between", Invariant: 5,
			Breaks: "a pserver that claims a shard again serves what it has in memory, although another has owned it since",
			File:   "pserver/claims.go", Old: "if h.generation+1 == generation && h.loaded.Load() {", New: "if h.loaded.Load() {",
			Package: "./pserver", Run: "TestSuccessor",
		},
		{
			Name: "lost-and-kept-whoever-was-between", Invariant: 5,
			Breaks: "a pserver without a lease keeps the memory of a shard that another has owned since",
			File:   "pserver/claims.go", Old: " && v.Shards[shard].Generation == h.generation:", New: ":",
			Package: "./pserver", Run: "TestSuccessor",
		},
		{
			Name: "guards-go-by-name", Invariant: 5,
			Breaks: "what a superseded owner of the same name saves is listed",
			File:   "checkpoint/publish.go", Old: "if o.Incarnation != own.Incarnation || o.Generation != own.Generation {", New: "if o.Name == \"\" {",
			Package: "./checkpoint", Run: "TestSuperseded|TestPublish",
		},
		{
			Name: "publish-without-comparing", Invariant: 5,
			Breaks: "an owner that is superseded while it publishes lists its checkpoint",
			File:   "checkpoint/publish.go", Old: "t := store.Txn{If: []store.Cmp{p.view.Guard()}}", New: "t := store.Txn{}",
			Package: "./checkpoint", Run: "TestSuperseded|TestPublish",
			Simulation: true,
		},
	}
}

// checkpoints: invariants 6 and 7.
func checkpoints() []Mutant {
	return []Mutant{
		{
			Name: "renamed-before-it-is-safe", Invariant: 6,
			Breaks: "a crash leaves a listed file without its content",
			File:   "checkpoint/save.go", Old: "err = f.Sync()", New: "err = nil",
			Package: "./checkpoint", Run: "TestCrashAtEveryStep",
		},
		{
			Name: "directory-not-synced", Invariant: 6,
			Breaks: "a crash forgets the name of a listed file",
			File:   "checkpoint/save.go", Old: "if err := fsys.SyncDir(dir); err != nil {", New: "if err := error(nil); err != nil {",
			Package: "./checkpoint", Run: "TestCrashAtEveryStep",
		},
		{
			Name: "digest-not-compared", Invariant: 6,
			Breaks: "a file with a flipped bit is loaded",
			File:   "checkpoint/load.go", Old: "r.size != m.Size || !strings.EqualFold(sum, m.MD5) {", New: "r.size != m.Size || sum == \"\" {",
			Package: "./checkpoint", Run: "TestFallBack|TestNoneLoads",
		},
		{
			Name: "a-push-writes-into-the-cut", Invariant: 6,
			Breaks: "a checkpoint has rows of after its moment",
			File:   "pserver/table.go", Old: "if t.cut != nil {", New: "if false {",
			Package: "./pserver", Run: "TestCutUnderPushes|TestCutIsOneMoment|TestCutIsIsolated",
		},
		{
			Name: "a-push-writes-into-the-cut-block", Invariant: 6,
			Breaks: "a checkpoint has dense blocks of after its moment",
			File:   "pserver/dense.go", Old: "if d.cut != nil {", New: "if false {",
			Package: "./pserver", Run: "TestCutUnderPushes|TestCutIsOneMoment|TestCutIsIsolated",
		},
		{
			Name: "a-cut-reads-rows-of-later", Invariant: 6,
			Breaks: "a checkpoint has rows that did not exist at its moment, and does not load",
			File:   "pserver/kept.go", Old: "n := min(c.n-c.next, 1<<c.shift)", New: "n := min(uint32(c.rows.N)-c.next, 1<<c.shift)",
			Package: "./pserver", Run: "TestCutUnderPushes|TestCutIsOneMoment|TestCutIsIsolated",
		},
		{
			Name: "a-flat-cut-reads-rows-of-later", Invariant: 6,
			Breaks: "a checkpoint has rows of a flat table that did not exist at its moment, and does not load",
			File:   "pserver/kept.go", Old: "		r.exists = r.was.exists\n", New: "",
			Package: "./pserver", Run: "TestCutUnderPushes|TestCutIsOneMoment",
		},
		{
			Name: "a-flat-row-is-not-noted", Invariant: 6,
			Breaks: "a row of a flat table that was trained is in no checkpoint",
			File:   "pserver/flat.go", Old: "	f.exists[place>>5] |= 1 << (place & 31)\n", New: "",
			Package: "./pserver", Run: "TestFlat",
		},
		{
			Name: "a-zero-row-is-none", Invariant: 6,
			Breaks: "a row of a flat table that a push has named and left at zero is in no checkpoint",
			File:   "pserver/flat.go", Old: "		if zero(f.rows.Row(row)) && !f.has(row) {\n", New: "		if !zero(f.rows.Row(row)) && !f.has(row) {\n",
			Package: "./pserver", Run: "TestFlat",
		},
		{
			Name: "suspects-are-innocent", Invariant: 4,
			Breaks: "a key that comes twice in a push changes its row by one of the two",
			File:   "pserver/repeats.go", Old: "		if some[i] == some[i-1] {\n", New: "		if false {\n",
			Package: "./pserver", Run: "TestRepeatedKeys|TestRepeats",
		},
		{
			Name: "a-cut-keeps-the-last-change", Invariant: 6,
			Breaks: "a row that is pushed twice during a save is written as it was between",
			File:   "pserver/kept.go", Old: "	if r.kept[place>>6]>>(place&63)&1 != 0 {\n		return\n	}\n", New: "",
			Package: "./pserver", Run: "TestCutUnderPushes|TestCutIsOneMoment|TestMemoryOfACut",
		},
		{
			Name: "a-lost-list-is-a-new-shard", Invariant: 7,
			Breaks: "a shard that has had checkpoints begins anew without a word",
			File:   "pserver/restore.go", Old: "if h.claim.Listed && !t.cfg.AllowReinit {", New: "if false {",
			Package: "./pserver", Run: "TestNoCheckpointLoads",
		},
		{
			Name: "broken-files-are-a-new-shard", Invariant: 7,
			Breaks: "a shard of which no checkpoint loads begins anew unasked",
			File:   "pserver/restore.go", Old: "errors.Is(err, checkpoint.ErrNoneLoads) && t.cfg.AllowReinit", New: "errors.Is(err, checkpoint.ErrNoneLoads)",
			Package: "./pserver", Run: "TestNoCheckpointLoads",
		},
	}
}

// liveness: invariants 8 and 9, clocks and waits.
func liveness() []Mutant {
	return []Mutant{
		{
			Name: "shards-go-to-and-fro", Invariant: 9,
			Breaks: "a shard is handed over though the holdings are even within one, and then back, for ever",
			File:   "internal/membership/handover.go", Old: "if held[from]-held[to] < 2 {", New: "if held[from]-held[to] < 1 {",
			Package: "./internal/membership", Run: "TestPlanBalance|TestBalanceComesToAnEnd",
		},
		{
			Name: "a-hand-over-goes-by-an-old-plan", Invariant: 9,
			Breaks: "a shard is handed over to a pserver that needs none any more",
			File:   "internal/membership/handover.go", Old: "return held[from]-held[to] >= 2", New: "return held[from] >= 0*held[to]",
			Package: "./internal/membership", Run: "TestUneven|TestBalanceComesToAnEnd",
		},
		{
			Name: "a-silent-receiver-holds-up-all", Invariant: 9,
			Breaks: "a pserver that has come gets no shard for seconds, because another one was silent",
			File:   "pserver/claims.go", Old: "\t\t\t\t\tt.failed = time.Time{}\n", New: "",
			Package: "./pserver", Run: "TestTheSilentHoldUpNobody",
		},
		{
			Name: "age-by-absolute-time", Invariant: 8,
			Breaks: "the age of an entry is taken from a calendar instead of from when this process saw it",
			File:   "etcdqueue/steward.go", Old: "case now.Sub(old.since) >= q.c.StallTimeout:", New: "case now.Sub(time.Time{}) >= q.c.StallTimeout:",
			Package: "./etcdqueue", Run: "TestStall|TestRequeueSparesProgress",
		},
		{
			Name: "progress-does-not-count", Invariant: 9,
			Breaks: "a slow trainer loses its chunks although it goes on",
			File:   "etcdqueue/steward.go", Old: "if !known || old.beat != e.Beat {", New: "if !known {",
			Package: "./etcdqueue", Run: "TestStall|TestRequeueSparesProgress",
		},
		{
			Name: "nobody-is-woken", Invariant: 9,
			Breaks: "a trainer without work does not hear of new work",
			File:   "etcdqueue/follow.go", Old: "\t\tq.news++\n", New: "",
			Package: "./etcdqueue", Run: "TestWaiters",
		},
	}
}

// hostility: invariant 10, bad input.
func hostility() []Mutant {
	return []Mutant{
		{
			Name: "a-short-message-is-read-on", Invariant: 10,
			Breaks: "a message that is cut short makes the server panic",
			File:   "internal/wire/layout.go", Old: "if n < 0 || n > len(s.rest) {", New: "if n < 0 {",
			Package: "./internal/wire", Run: "TestDecode|FuzzRequest",
		},
		{
			Name: "a-non-finite-gradient-is-applied", Invariant: 10,
			Breaks: "one NaN spoils the model",
			File:   "pserver/shard.go", Old: "if fault != optimizer.OK {", New: "if fault != optimizer.OK && false {",
			Package: "./pserver", Run: "TestNonFinite",
		},
		{
			Name: "an-absurd-value-is-taken", Invariant: 10,
			Breaks: "one 1e19 undoes what the model has learnt",
			File:   "reader/libsvm.go", Old: "p.limit > 0 && (v > p.limit || v < -p.limit)", New: "p.limit > 0 && v < -p.limit",
			Package: "./reader", Run: "TestMaxValue",
		},
		{
			Name: "a-loss-may-explode", Invariant: 10,
			Breaks: "a job that diverges is complete in the end, with an absurd model",
			File:   "trainer/growth.go", Old: "return g.sum >= enough", New: "return g.sum > enough*mostOfOne",
			Package: "./trainer", Run: "TestGrowthOnTraining",
		},
		{
			Name: "the-last-batches-go-unwatched", Invariant: 10,
			Breaks: "a job whose few data end while it diverges is complete",
			File:   "trainer/pipeline.go", Old: "if end && len(p.open) == 0 {", New: "if false {",
			Package: "./trainer", Run: "TestGrowingLoss",
		},
		{
			Name: "bad-records-are-passed-over", Invariant: 10,
			Breaks: "more broken records than allowed do not fail a chunk",
			File:   "reader/reader.go", Old: "if r.bad > r.o.MaxBad {", New: "if false {",
			Package: "./reader", Run: "TestMaxBad|TestBadLines",
		},
		{
			Name: "unknown-fields-are-ignored", Invariant: 10,
			Breaks: "a misspelt field of the spec is not noticed",
			File:   "job/parse.go", Old: "p.addAt(at, full, \"unknown field%s\", meant(key.Value, known.names))", New: "_ = full",
			Package: "./job", Run: "TestRefused|TestAllErrorsAtOnce",
		},
	}
}
