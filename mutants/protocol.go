package mutants

// protocol: lines by which processes agree, of invariants 2 to 5. The simulation
// catches them; where a smaller test does, it is named.
func protocol() []Mutant {
	return []Mutant{
		{
			Name: "last-is-forgotten", Invariant: 3,
			Breaks: "no push says that it is a chunk's last, and no chunk is ever finished",
			File:   "trainer/round.go", Old: "it.meta.Token, it.meta.Last, it.meta.Void = h.task.Token, it.data.Last, false", New: "it.meta.Token, it.meta.Last, it.meta.Void = h.task.Token, false, false",
			Simulation: true,
		},
		{
			Name: "the-view-is-read-late", Invariant: 3,
			Breaks: "a chunk is completed under the owners of now, by the answers of those before",
			File:   "trainer/round.go", Old: "\tif !same {\n\t\treturn errOwnersChanged\n\t}\n", New: "\t_ = same\n",
			Simulation: true,
		},
		{
			Name: "a-take-does-not-take", Invariant: 2,
			Breaks: "a taken chunk is Todo as well",
			File:   "etcdqueue/lane.go", Old: "\tl.Todo = l.Todo.Minus(at)\n\tl.Pending = append", New: "\tl.Pending = append",
			Simulation: true,
		},
		{
			Name: "tokens-do-not-grow", Invariant: 2,
			Breaks: "each take of a trainer has the same token",
			File:   "etcdqueue/take.go", Old: "ok, h := false, Holder{q.c.Incarnation, s.seen}", New: "ok, h := false, Holder{q.c.Incarnation, 1 + 0*s.seen}",
			Simulation: true,
		},
		{
			Name: "lanes-are-not-compared", Invariant: 2,
			Breaks: "a report is written over what others have written to the lane since",
			File:   "etcdqueue/edit.go", Old: "conds = append(conds, store.Unchanged(id.key(), slots[id].rev))", New: "conds = append(conds, store.Unchanged(\"none\", 0*slots[id].rev))",
			Simulation: true,
		},
		{
			Name: "reopened-without-the-state", Invariant: 4,
			Breaks: "a chunk is reopened in a pass that `state` does not list",
			File:   "etcdqueue/reopen.go", Old: "\t\tputs = append(puts, store.Put(stateKey, after.encode(), 0))\n", New: "\t\t_ = after\n",
			Simulation: true,
		},
		{
			Name: "the-pass-is-not-compared", Invariant: 4,
			Breaks: "lanes of a pass that was removed are written anew",
			File:   "etcdqueue/take.go", Old: "conds = append(conds, store.Created(passKey(p.number), p.created))", New: "conds = append(conds, store.Created(passKey(1<<30), 0*p.created))",
			Package: "./etcdqueue", Run: "TestScheduleTranscripts|TestWalk|TestRemove|TestTake",
		},
		{
			Name: "turned-while-chunks-are-open", Invariant: 4,
			Breaks: "a turn that was decided before a reopen is written after it",
			File:   "etcdqueue/steward.go", Old: "q.commit(ctx, []store.Cmp{from.Guard()}, guards, puts)", New: "q.commit(ctx, []store.Cmp{}, guards, puts)",
			Package: "./etcdqueue", Run: "TestScheduleTranscripts",
		},
		{
			Name: "off-the-list-unfinished", Invariant: 4,
			Breaks: "a reopened pass is forgotten although chunks of it are to be trained",
			File:   "etcdqueue/turn.go", Old: "s.Reopened = slices.DeleteFunc(slices.Clone(s.Reopened), finished)", New: "s.Reopened = slices.DeleteFunc(slices.Clone(s.Reopened), func(p int) bool { return p < s.Pass || finished(p) })",
			Simulation: true,
		},
		{
			Name: "the-next-batch-is-lost", Invariant: 4,
			Breaks: "after a batch the ledger takes the next one for one that it has",
			File:   "pserver/ledger/ledger.go", Old: "f.next = p.N + 1\n", New: "f.next = p.N + 2\n",
			Package: "./pserver/ledger", Run: "TestTable|TestAgainstModel",
			Simulation: true,
		},
		{
			Name: "a-restore-forgets-what-is-in-flight", Invariant: 4,
			Breaks: "a restored shard applies again what it had of the chunks in flight",
			File:   "pserver/ledger/snapshot.go", Old: "l.flight[c] = inFlight{token: s.Token, next: s.Next, replay: s.Replay}", New: "l.flight[c] = inFlight{token: s.Token, next: 0, replay: s.Replay}",
			Simulation: true,
		},
		{
			Name: "a-ledger-of-later", Invariant: 4,
			Breaks: "a checkpoint's ledger is of a later moment than its weights",
			File:   "pserver/snapshot.go", Old: "if err := emitGob(emit, sectionLedger, &c.ledger); err != nil {", New: "if c.ledger = c.content.ledger.Snapshot(); emitGob(emit, sectionLedger, &c.ledger) != nil {\n\t\tvar err error",
			Simulation: true,
		},
		{
			Name: "not-compared-after-a-claim", Invariant: 4,
			Breaks: "an owner does not look for what its shard lacks of the current pass",
			File:   "pserver/restore.go", Old: "for pass := h.core.Stats().Summary.Passes; pass <= st.Pass; pass++ {", New: "for pass := h.core.Stats().Summary.Passes; pass < st.Pass; pass++ {",
			Simulation: true,
		},
		{
			Name: "one-pass-is-not-covered", Invariant: 4,
			Breaks: "a job is complete although the last pass is in no checkpoint",
			File:   "trainer/steward.go", Old: "if covered(view, metas, s.w.job.Spec.Train.Passes) {", New: "if covered(view, metas, s.w.job.Spec.Train.Passes-1) {",
			Simulation: true,
		},
		{
			Name: "removed-too-early", Invariant: 4,
			Breaks: "lanes are removed that a listed checkpoint may need",
			File:   "trainer/steward.go", Old: "below := min(coveredByAll(metas), state.Pass)", New: "below := min(coveredByAll(metas)+1, state.Pass)",
			Simulation: true,
		},
		{
			Name: "retaken-without-the-owners", Invariant: 5,
			Breaks: "who takes a name over writes owners that were",
			File:   "internal/membership/register.go", Old: "\t\tt.If = append(t.If, at.view.Guard())\n", New: "",
			Simulation: true,
		},
		{
			Name: "registered-over-another", Invariant: 5,
			Breaks: "two processes that want one name both believe that they have it",
			File:   "internal/membership/register.go", Old: "If:   []store.Cmp{store.Unchanged(r.key(), at.old.Revision), store.Created(specKey, r.SpecRev)},", New: "If:   []store.Cmp{store.Created(specKey, r.SpecRev)},",
			Package: "./internal/membership", Run: "TestOneOfManyGetsTheName|TestRegister",
		},
		{
			Name: "a-generation-for-two", Invariant: 5,
			Breaks: "an owner and its successor have one generation",
			File:   "internal/membership/owners.go", Old: "Generation: o.Generation + 1, Listed", New: "Generation: max(o.Generation, 1), Listed",
			Simulation: true,
		},
	}
}
