package mutants

// steps: trainers that keep step with each other (docs/sync.md).
func steps() []Mutant {
	const file, pkg = "pserver/barrier.go", "./pserver"
	return []Mutant{
		{
			Name: "the-ledger-is-not-asked-at-the-close", Invariant: 4,
			Breaks: "of two trainers that wait with the same batch both count",
			File:   file, Old: "\t\tif d.Applies() {\n\t\t\tapplied = append", New: "\t\tif d.Applies() || d.Verdict == 3 {\n\t\t\tapplied = append",
			Package: pkg, Run: "TestBarrierAppliesABatchOnce",
		},
		{
			Name: "once-idle-always-idle", Invariant: 9,
			Breaks: "whoever had no work is not waited for in the next pass, and steps depend on who is quicker",
			File:   file, Old: "a.idle && a.pass < pass", New: "a.idle && a.pass < -pass",
			Package: pkg, Run: "TestBarrierDoesNotWaitForTheIdle",
		},
		{
			Name: "a-duplicate-is-no-arrival", Invariant: 9,
			Breaks: "a trainer whose batch a shard has already is waited for there",
			File:   file, Old: "\t\t\tb.arrived(source, at, p, out)\n", New: "",
			Package: pkg, Run: "TestBarrierCountsADuplicateAsArrival",
		},
		{
			Name: "a-late-batch-joins-the-open-step", Invariant: 9,
			Breaks: "two trainers wait crosswise at two shards",
			File:   file, Old: "if b.known && at.Step < b.step {", New: "if b.known && at.Step < 0 {",
			Package: pkg, Run: "TestBarrierTellsTheOpenStep",
		},
		{
			Name: "whoever-is-first-is-summed-first", Invariant: 4,
			Breaks: "a model depends on the order in which batches come",
			File:   file, Old: "cmp.Compare(p.Pass, q.Pass), cmp.Compare(p.Rank, q.Rank), ", New: "",
			Package: pkg, Run: "TestBarrierSumsInTheOrderOfTheBatches",
		},
		{
			Name: "summed-in-any-order", Invariant: 4,
			Breaks: "the same job gives another model each time",
			File:   file, Old: "return cmp.Or(cmp.Compare(p.Pass, q.Pass)", New: "return 0 * cmp.Or(cmp.Compare(p.Pass, q.Pass)",
			Package: "./trainer", Run: "TestSyncSameBits",
		},
		{
			Name: "the-stalled-are-waited-for", Invariant: 9,
			Breaks: "a trainer that lives and hangs in a computation stops all of them for good",
			File:   "pserver/turns.go", Old: " && !m.Stalled {", New: " {",
			Package: "./trainer", Run: "TestSyncTrainerHangs",
		},
		{
			Name: "one-step-further-ahead", Invariant: 9,
			Breaks: "values are older than the bound on staleness says",
			File:   file, Old: "b.members != nil && b.step <= a.step-b.Ahead:", New: "b.members != nil && b.step < a.step-b.Ahead:",
			Package: "./trainer", Run: "TestBoundedStalenessOfAJob",
		},
		{
			Name: "a-new-owner-is-not-heard-of", Invariant: 9,
			Breaks: "the answer of an owner that has been replaced is all that a trainer has of a shard, whose new owner waits for it (S4)",
			File:   "pserver/client/session.go", Old: "shard := changed(s.view, v); shard >= 0 {", New: "shard := changed(s.view, v); shard >= len(v.Shards) {",
			Package: "./trainer", Run: "TestScheduleAnswerOfADeadOwner",
		},
		{
			Name: "one-pserver-after-the-other", Invariant: 9,
			Breaks: "two trainers that wait at two shards have not sent each other's batch (S5)",
			File:   "pserver/client/session.go", Old: "\t\tif c.concerns(p) {\n",
			New: "\t\tfor c.turn.kind == wire.Arrive && i > 0 && int(c.waiting.Load()) > len(s.peers)-i && s.Err() == nil {\n" +
				"\t\t\t<-s.client.c.Clock.Timer(1e6).C()\n\t\t}\n\t\tif c.concerns(p) {\n",
			Package: "./trainer", Run: "TestScheduleCrosswise",
		},
		{
			Name: "calls-are-counted", Invariant: 4,
			Breaks: "a trainer that repeats its call is taken for another that is missing",
			File:   file, Old: "\ta := b.note(source, at)\n\ta.pass, a.fault",
			New: "\tfor id := range b.members {\n\t\tif old := b.arrivals[at.Trainer]; old != nil && old.pending && (b.arrivals[id] == nil || b.arrivals[id].step < at.Step) {\n" +
				"\t\t\tat.Trainer = id\n\t\t\tbreak\n\t\t}\n\t}\n\ta := b.note(source, at)\n\ta.pass, a.fault",
			Package: pkg, Run: "TestBarrierWaitsForEveryLiveTrainer",
		},
		{
			Name: "idle-is-said-once", Invariant: 9,
			Breaks: "an old push of an idle trainer that comes late is waited for",
			File:   "trainer/turns.go", Old: "idle = idle && p.r.w.stepped()", New: "idle = idle && p.r.w.stepped() && pass < 0",
			Package: "./trainer", Run: "TestSyncAnOldPushComesLate",
		},
		{
			Name: "who-has-answered-is-not-asked-again", Invariant: 9,
			Breaks: "two trainers wait for each other at two shards to which old messages of theirs came late",
			File:   "pserver/client/turns.go", Old: "if !concerned && !m.call.turn.again {", New: "if !concerned {",
			Package: "./pserver/client", Run: "TestAwaitAgainAsksEveryShard",
		},
		{
			Name: "no-step-is-adopted", Invariant: 9,
			Breaks: "a restored shard never learns where the trainers are",
			File:   file, Old: "b.known, b.adopt, b.recovering = false, how == StartRecovery", New: "b.known, b.adopt, b.recovering = false, false",
			Package: pkg, Run: "TestBarrierInRecovery",
		},
	}
}
