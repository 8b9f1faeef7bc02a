package mutants

// elastic: what processes that come, go and are slow could break.
func elastic() []Mutant {
	return []Mutant{
		{
			Name: "rows-beyond-the-limit", Invariant: 10,
			Breaks: "a pserver makes rows beyond its memory limit",
			File:   "pserver/memory.go", Old: "m.limit > 0 && used > m.limit", New: "m.limit > 0 && used-bytes > m.limit",
			Package: "./pserver", Run: "TestMemory",
		},
		{
			Name: "what-was-refused-stays-reserved", Invariant: 9,
			Breaks: "each push that is refused for want of memory makes the memory less",
			File:   "pserver/memory.go", Old: "\t\tm.used.Add(-bytes)\n", New: "",
			Package: "./pserver", Run: "TestMemory",
		},
		{
			Name: "given-away-and-still-counted", Invariant: 9,
			Breaks: "the memory of shards that were given away is not there for others",
			File:   "pserver/claims.go", Old: "t.keepers.Go(func() { <-h.done; h.letGo() })", New: "t.keepers.Go(func() { <-h.done })",
			Package: "./trainer", Run: "TestMemoryLimitIsWaitedOut",
		},
		{
			Name: "claimed-whatever-its-size", Invariant: 10,
			Breaks: "a pserver claims a shard that it is known not to hold",
			File:   "pserver/room.go", Old: "if need > room {", New: "if false {",
			Package: "./pserver", Run: "TestShardsThatDoNotFit",
		},
		{
			Name: "the-full-hold-up-the-others", Invariant: 9,
			Breaks: "a shard that was planned for a pserver that cannot hold it stays free",
			File:   "pserver/room.go", Old: "if !free || now.Sub(t.free) < declinedTime {", New: "if now.Sub(t.free) >= 0 {",
			Package: "./pserver", Run: "TestShardsThatDoNotFit",
		},
		{
			Name: "back-off-beside-the-watch", Invariant: 9,
			Breaks: "a trainer sits out its back-off although the shard has a new owner",
			File:   "pserver/client/client.go", Old: "if faults <= 0 || v.Revision == 0 {", New: "if true {",
			Package: "./trainer", Run: "TestTrainersGoOnAtOnce",
		},
		{
			Name: "a-restore-is-asked-after-again-and-again", Invariant: 9,
			Breaks: "a trainer asks for a shard that is being restored with longer and longer pauses",
			File:   "pserver/server.go", Old: "\ts.awaitServed(ctx, ref.Generation, h)\n", New: "",
			Package: "./trainer", Run: "TestTrainersGoOnAtOnce",
		},
		{
			Name: "overtaken-and-still-there", Invariant: 2,
			Breaks: "a chunk that was taken over is Pending with two trainers",
			File:   "etcdqueue/lane.go", Old: "if e.At = e.At.Minus(at); e.At.IsEmpty() {", New: "if e.At.Minus(at).IsEmpty() {",
			Package: "./etcdqueue", Run: "TestLane|TestWalk",
		},
		{
			Name: "overtaken-under-the-old-token", Invariant: 4,
			Breaks: "the trainer from which a chunk was taken over is not fenced by its token",
			File:   "etcdqueue/take.go", Old: "l.Overtake(k.at, k.from, q.c.Name, h)", New: "l.Overtake(k.at, k.from, q.c.Name, Holder{h.Incarnation, k.from.Token})",
			Package: "./etcdqueue", Run: "TestOvertake|TestWalk",
		},
		{
			Name: "overtaken-by-the-busy", Invariant: 9,
			Breaks: "trainers that have work take chunks from each other",
			File:   "etcdqueue/overtake.go", Old: " || len(q.takes.granted) > 0", New: "",
			Package: "./etcdqueue", Run: "TestOvertakeIsPatient",
		},
		{
			Name: "settled-and-out-of-work", Invariant: 9,
			Breaks: "a taker says that nothing is Todo, and has not looked at the lanes that it does not follow",
			File:   "etcdqueue/take.go", Old: "return nil, nil, nil, nil, errBehind", New: "return nil, nil, nil, nil, &EmptyError{Pass: q.view.state.Pass}",
			Package: "./etcdqueue", Run: "TestSettledFindsWhatCameBack",
		},
		{
			Name: "waits-for-what-it-does-not-follow", Invariant: 9,
			Breaks: "who waits for the end of a pass hears of it at the next look",
			File:   "etcdqueue/take.go", Old: "q.unsettleLocked() && cond()", New: "cond()",
			Package: "./etcdqueue", Run: "TestSettledSteward",
		},
		{
			Name: "progress-keeps-nothing", Invariant: 9,
			Breaks: "a trainer that gets on is overtaken all the same",
			File:   "etcdqueue/overtake.go", Old: "if !known || old.beat != e.Beat {", New: "if !known {",
			Package: "./etcdqueue", Run: "TestOvertake",
		},
		{
			Name: "chunks-go-to-and-fro", Invariant: 9,
			Breaks: "a chunk that is slow for everybody is taken over again and again",
			File:   "etcdqueue/overtake.go", Old: "least << min(e.Run, maxRun)", New: "least",
			Package: "./etcdqueue", Run: "TestOvertakeIsPatient",
		},
	}
}
