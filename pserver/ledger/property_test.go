package ledger

import (
	"bytes"
	"encoding/gob"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
	"starfish/internal/wire"
)

// model is the ledger as plain sets of batches: what has been counted for each
// chunk, by number.
type model struct {
	policy   Policy
	restored bool
	chunks   map[chunk]modelChunk
}

type modelChunk struct {
	known    bool // has an entry
	touched  bool
	finished bool
	token    int64
	counted  string // one letter a batch: a applied, s skipped, l lost, - nothing
}

func (m model) clone() model {
	m.chunks = maps.Clone(m.chunks)
	return m
}

func (m model) restore() model {
	m = m.clone()
	m.restored = true
	for c, e := range m.chunks {
		e.touched = true
		m.chunks[c] = e
	}
	return m
}

// push says what the push must be, by looking at the set, and changes the set.
func (m model) push(p *wire.Meta, nonFinite bool) (v Verdict, applied bool) {
	c := chunk{p.Pass, p.Rank}
	e := m.chunks[c]
	defer func() { m.chunks[c] = e }()
	switch {
	case e.finished:
		return Duplicate, false
	case e.known && p.Token < e.token:
		return Stale, false
	}
	isNew := !e.known
	if isNew {
		e.touched = m.restored
	}
	next := int64(len(e.counted))
	if p.N < next {
		e.token = max(e.token, p.Token)
		return Duplicate, false
	}
	e.known, e.token = true, max(e.token, p.Token)
	if p.N > next && !(m.policy == Skip && e.touched && p.Gap) {
		return GoBack, false
	}
	v = Applied
	for ; next < p.N; next++ {
		e.counted += "l"
		v = AppliedAfterGap
	}
	if p.Void || nonFinite {
		e.counted += "s"
		v = Skipped
	} else {
		e.counted += "a"
	}
	e.touched, e.finished = false, p.Last
	return v, v != Skipped
}

func (m model) sums(records int64) (s Sums) {
	for _, e := range m.chunks {
		for _, b := range e.counted {
			switch b {
			case 'a':
				s.Batches++
				s.Records += records
			case 's':
				s.Skipped++
				s.Records += records
			case 'l':
				s.Lost++
			}
		}
	}
	s.Loss = float64(s.Batches + s.Skipped)
	s.Weight = 2 * s.Loss
	return s
}

const (
	propPasses  = 2
	propChunks  = 5
	propLanes   = 2
	propRecords = 3
)

func batchesOf(rank int64) int64 { return 1 + rank%3 }

// machine drives ledger and model with the same pushes. The weight of a batch
// is the number of times that it has been applied in the life that counts: a
// restore sets it back together with the ledger.
type machine struct {
	ledger  *Ledger
	model   model
	weights map[wire.Meta]int
	saved   []save
}

type save struct {
	ledger  Snapshot
	model   model
	weights map[wire.Meta]int
}

func (x *machine) push(t *rapid.T, p *wire.Meta, nonFinite bool) Verdict {
	p.Last = p.N == batchesOf(p.Rank)-1
	p.Records, p.Loss, p.Weight = propRecords, 1, 2
	d, err := x.ledger.Decide(p)
	require.NoError(t, err)
	if nonFinite {
		d = d.Skip()
	}
	x.ledger.Commit(p, d)
	want, applied := x.model.push(p, nonFinite)
	require.Equal(t, want, d.Verdict, "%+v", p)
	require.Equal(t, applied, d.Applies())
	if applied {
		x.weights[wire.Meta{Pass: p.Pass, Rank: p.Rank, N: p.N}]++
	}
	return d.Verdict
}

func (x *machine) check(t *rapid.T) {
	for b, times := range x.weights {
		require.Equal(t, 1, times, "%+v was applied more than once", b)
	}
	for c, e := range x.model.chunks {
		finished, next := x.ledger.Progress(c.pass, c.rank)
		require.Equal(t, e.finished, finished)
		if !finished {
			require.Equal(t, int64(len(e.counted)), next)
		}
	}
	sums := total(x.ledger)
	require.Equal(t, x.model.sums(propRecords), sums)
	require.Equal(t, sums.counted(), x.ledger.Counted())
}

func (x *machine) restoreFrom(t *rapid.T, s save) {
	var b bytes.Buffer
	require.NoError(t, gob.NewEncoder(&b).Encode(s.ledger))
	var back Snapshot
	require.NoError(t, gob.NewDecoder(&b).Decode(&back))
	l, err := Restore(back, propLanes, x.model.policy)
	require.NoError(t, err)
	x.ledger, x.model, x.weights = l, s.model.restore(), maps.Clone(s.weights)
}

// train is what correct trainers do until all is finished: they follow next.
func (x *machine) train(t *rapid.T, pass int) {
	for rank := range int64(propChunks) {
		for n := int64(0); ; n++ {
			p := &wire.Meta{Pass: pass, Rank: rank, N: n, Token: 1000}
			if v := x.push(t, p, false); v == GoBack || v == Stale {
				t.Fatalf("a correct trainer was told %v", v)
			}
			if finished, _ := x.ledger.Progress(pass, rank); finished {
				break
			}
		}
	}
}

func propQueue() (lanes []Lane) {
	for i := range int64(propLanes) {
		lanes = append(lanes, Lane{Complete: ranges.Of(0, (propChunks-1-i)/propLanes)})
	}
	return lanes
}

// Whatever is pushed, doubled, reordered, saved and restored, each batch is
// applied at most once in the life that counts, exactly once in the end, and
// the verdicts are those of the plain model.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]Policy{Replay, Skip}).Draw(t, "policy")
		x := &machine{
			ledger:  New(propLanes, policy),
			model:   model{policy: policy, chunks: map[chunk]modelChunk{}},
			weights: map[wire.Meta]int{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"": x.check,
			"push": func(t *rapid.T) {
				rank := rapid.Int64Range(0, propChunks-1).Draw(t, "rank")
				x.push(t, &wire.Meta{
					Pass:  rapid.IntRange(0, propPasses-1).Draw(t, "pass"),
					Rank:  rank,
					N:     rapid.Int64Range(0, batchesOf(rank)-1).Draw(t, "n"),
					Token: rapid.Int64Range(1, 4).Draw(t, "token"),
					Void:  rapid.IntRange(0, 5).Draw(t, "void") == 0,
					Gap:   rapid.Bool().Draw(t, "gap"),
				}, rapid.IntRange(0, 5).Draw(t, "non-finite") == 0)
			},
			"save": func(t *rapid.T) {
				x.saved = append(x.saved, save{x.ledger.Snapshot(), x.model.clone(), maps.Clone(x.weights)})
			},
			"restore": func(t *rapid.T) {
				if len(x.saved) > 0 {
					x.restoreFrom(t, rapid.SampledFrom(x.saved).Draw(t, "cut"))
				}
			},
			"collapse": func(t *rapid.T) {
				pass := rapid.IntRange(0, propPasses-1).Draw(t, "pass")
				err := x.ledger.Collapse(pass, propChunks, propQueue())
				covered := x.ledger.Covers(pass, propQueue())
				require.Equal(t, covered, err == nil)
			},
		})
		for pass := range propPasses {
			x.train(t, pass)
			require.NoError(t, x.ledger.Collapse(pass, propChunks, propQueue()))
		}
		x.check(t)
		require.Equal(t, propPasses, x.ledger.Passes())
		all := total(x.ledger)
		var want int64
		for rank := range int64(propChunks) {
			want += propPasses * batchesOf(rank)
		}
		require.Equal(t, want, all.Batches+all.Skipped+all.Lost)
		require.Equal(t, want, x.ledger.Counted())
		if policy == Replay {
			require.Zero(t, all.Lost)
			require.Equal(t, want*propRecords, all.Records)
		}
	})
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	good := func() Snapshot {
		l := New(lanes, Replay)
		push(t, l, last(batch(0, 3)))
		push(t, l, &wire.Meta{Pass: 1, Rank: 2})
		s := l.Snapshot()
		s.Recent = []RecentSnapshot{{Pass: 1, Rank: 6, Batches: 4}}
		return s
	}
	for name, spoil := range map[string]func(*Snapshot){
		"version":           func(s *Snapshot) { s.V = 3 },
		"lanes":             func(s *Snapshot) { s.Lanes = 5 },
		"negative pass":     func(s *Snapshot) { s.Passes[0].Pass = -1 },
		"pass twice":        func(s *Snapshot) { s.Passes = append(s.Passes, s.Passes[0]) },
		"lane":              func(s *Snapshot) { s.Passes[0].Lanes[0].Lane = lanes },
		"ranges":            func(s *Snapshot) { s.Passes[0].Lanes[0].Finished = "3-1" },
		"negative rank":     func(s *Snapshot) { s.Flight[0].Rank = -1 },
		"chunk twice":       func(s *Snapshot) { s.Flight = append(s.Flight, s.Flight[0]) },
		"finished, however": func(s *Snapshot) { s.Flight[0].Rank = 6 },
		"reckoned":          func(s *Snapshot) { s.Passes[0].Lanes[0].Reckoned = -1 },
		"recent rank":       func(s *Snapshot) { s.Recent[0].Rank = -1 },
		"recent batches":    func(s *Snapshot) { s.Recent[0].Batches = 0 },
		"recent twice":      func(s *Snapshot) { s.Recent = append(s.Recent, s.Recent[0]) },
		"recent in flight":  func(s *Snapshot) { s.Recent[0].Rank = 2 },
	} {
		s := good()
		_, err := Restore(s, lanes, Replay)
		require.NoError(t, err)
		spoil(&s)
		_, err = Restore(s, lanes, Replay)
		require.ErrorIs(t, err, ErrSnapshot, name)
	}
}

// TestOldSnapshot: version 1 had no sums of weights, and its losses were means
// over records.
func TestOldSnapshot(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	push(t, l, &wire.Meta{Last: true, Records: 4, Loss: 2})
	push(t, l, &wire.Meta{Pass: 1, Records: 3, Loss: 6})
	require.NoError(t, l.Collapse(0, 1, []Lane{{Complete: ranges.From(0)}, {}, {}, {}}))
	old := l.Snapshot()
	require.NotZero(t, old.Past.Records)
	old.V = 1
	l, err := Restore(old, lanes, Replay)
	require.NoError(t, err)
	require.InDelta(t, 4, l.Summary().Past.Weight, 0)
	loss, ok := l.Summary().Sums[0].MeanLoss()
	require.True(t, ok)
	require.InDelta(t, 2, loss, 0)
	require.Zero(t, old.Passes[0].Sums.Weight, "what was given is not changed")
	require.Equal(t, SnapshotVersion, l.Snapshot().V)
}

func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	for rank := range int64(20) {
		push(t, l, &wire.Meta{Pass: int(rank % 3), Rank: rank, Token: rank, Last: rank%2 == 0})
	}
	l.Reopened(1, 3, ranges.From(1, 2))
	require.NoError(t, l.Collapse(5, 1, []Lane{{Failed: ranges.From(0)}, {}, {}, {}}))
	require.Equal(t, l.Snapshot(), restored(t, l, Replay).Snapshot())
}
