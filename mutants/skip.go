package mutants

// exactlyCounted: invariant 4 under policy skip, what is lost is counted.
func exactlyCounted() []Mutant {
	const inLedger, inJobs = "TestTable|TestAgainstModel|TestReckon", "TestSkip"
	return []Mutant{
		{
			Name: "a-gap-that-nobody-meant", Invariant: 4,
			Breaks: "under policy skip a push that comes after a refused one is applied, and the refused one is lost",
			File:   "pserver/ledger/ledger.go", Old: "!(p.Gap && l.mayLose(f, known))", New: "!l.mayLose(f, known)",
			Package: "./pserver/ledger", Run: inLedger,
		},
		{
			Name: "what-was-just-finished-is-lost", Invariant: 4,
			Breaks: "chunks that were finished here since the last reckoning are counted as lost",
			File:   "pserver/ledger/compare.go", Old: "had[i] += batches", New: "had[i] += 0 * batches",
			Package: "./pserver/ledger", Run: inLedger,
		},
		{
			Name: "what-was-in-flight-is-lost-twice", Invariant: 4,
			Breaks: "the batches that a restored shard has of a lost chunk are counted as lost too",
			File:   "pserver/ledger/compare.go", Old: "had[i] += f.next", New: "had[i] += 0 * f.next",
			Package: "./pserver/ledger", Run: inLedger,
		},
		{
			Name: "reckoned-from-the-beginning", Invariant: 4,
			Breaks: "what was reckoned before is counted as lost",
			File:   "pserver/ledger/compare.go", Old: "at.reckoned = lanes[i].Batches", New: "at.reckoned = 0",
			Package: "./pserver/ledger", Run: inLedger,
		},
		{
			Name: "a-restore-forgets-what-was-finished", Invariant: 4,
			Breaks: "a restored ledger does not know how many batches its finished chunks have",
			File:   "pserver/ledger/snapshot.go", Old: "l.recent[c] = s.Batches", New: "_ = l.recent[c]",
			Package: "./pserver/ledger", Run: inLedger,
		},
		{
			Name: "lost-and-not-told", Invariant: 4,
			Breaks: "batches of complete chunks that a restore has lost are finished and not counted",
			File:   "pserver/ledger/compare.go", Old: "l.lose(&p.sums, loss.Batches)", New: "l.lose(&p.sums, 0*loss.Batches)",
			Package: "./trainer", Run: inJobs,
		},
		{
			Name: "skip-goes-back", Invariant: 4,
			Breaks: "under policy skip a trainer trains again what a lost owner had acknowledged",
			File:   "trainer/round.go", Old: "h.gap = r.w.skip && ", New: "h.gap = false && ",
			Package: "./trainer", Run: "TestSkipDoesNotGoBack",
		},
		{
			Name: "beyond-the-last-batch", Invariant: 4,
			Breaks: "a chunk that was acknowledged whole and lost in part never ends on the restored shard",
			File:   "trainer/round.go", Old: "h.acknowledged = it.meta.N\n", New: "h.acknowledged = it.meta.N + 1\n",
			Package: "./trainer", Run: "TestSkipOfAFinishedChunk",
		},
		{
			Name: "a-refused-gap-is-tried-again", Invariant: 9,
			Breaks: "a trainer whose gap is refused tries it for ever",
			File:   "trainer/hand.go", Old: "c.acknowledged = 0", New: "c.acknowledged += 0",
			Package: "./trainer", Run: "TestRefusedGap",
		},
		{
			Name: "skip-never-reckons-in-a-pass", Invariant: 4,
			Breaks: "what the ledger notes for its reckoning grows with the pass",
			File:   "pserver/keeper.go", Old: "if h.core.Unreckoned() > 0 {", New: "if h.core.Unreckoned() < 0 {",
			Package: "./pserver", Run: "TestSkipReckonsBeforeItSaves",
		},
		{
			Name: "skip-replays", Invariant: 4,
			Breaks: "under policy skip lost chunks are trained again",
			File:   "pserver/restore.go", Old: "if t.job.Spec.Recovery.Policy == job.PolicySkip {", New: "if false {",
			Package: "./pserver", Run: "TestSkipGivesUp",
		},
	}
}
