package ledger

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/wire"
)

const lanes = 4

func batch(n int64, token int64) *wire.Meta {
	return &wire.Meta{Pass: 1, Rank: 6, N: n, Token: token, Records: 10, Loss: 0.5, Weight: 8}
}

func last(m *wire.Meta) *wire.Meta { m.Last = true; return m }
func void(m *wire.Meta) *wire.Meta { m.Void = true; return m }
func gap(m *wire.Meta) *wire.Meta  { m.Gap = true; return m }

func push(t *testing.T, l *Ledger, m *wire.Meta) Decision {
	t.Helper()
	d, err := l.Decide(m)
	require.NoError(t, err)
	l.Commit(m, d)
	return d
}

func restored(t *testing.T, l *Ledger, policy Policy) *Ledger {
	t.Helper()
	r, err := Restore(l.Snapshot(), int(l.lanes), policy)
	require.NoError(t, err)
	return r
}

func total(l *Ledger) Sums {
	s := l.Summary()
	return s.Total()
}

// The rows of the table of design section 5, in its order. The first one, a
// wrong job or generation, never reaches a ledger.
func TestTable(t *testing.T) {
	t.Parallel()
	one := Sums{Batches: 1, Records: 10, Loss: 0.5, Weight: 8}
	two := Sums{Batches: 2, Records: 20, Loss: 1, Weight: 16}
	cases := map[string]struct {
		policy   Policy
		restored bool
		before   []*wire.Meta
		push     *wire.Meta
		want     Decision
		finished bool
		next     int64
		sums     Sums
	}{
		"token lower than seen": {
			before: []*wire.Meta{batch(0, 9)}, push: batch(1, 8),
			want: Decision{Verdict: Stale}, next: 1, sums: one,
		},
		"token lower than seen, of a batch that is known": {
			before: []*wire.Meta{batch(0, 9)}, push: batch(0, 8),
			want: Decision{Verdict: Stale}, next: 1, sums: one,
		},
		"chunk finished": {
			before: []*wire.Meta{last(batch(0, 9))}, push: batch(0, 9),
			want: Decision{Verdict: Duplicate}, finished: true, sums: one,
		},
		"chunk finished, lower token, higher number": {
			before: []*wire.Meta{last(batch(0, 9))}, push: batch(7, 3),
			want: Decision{Verdict: Duplicate}, finished: true, sums: one,
		},
		"n below next": {
			before: []*wire.Meta{batch(0, 9), batch(1, 9)}, push: batch(0, 9),
			want: Decision{Verdict: Duplicate}, next: 2, sums: two,
		},
		"n = next, the first": {
			push: batch(0, 9),
			want: Decision{Verdict: Applied}, next: 1, sums: one,
		},
		"n = next, under a higher token": {
			before: []*wire.Meta{batch(0, 9)}, push: batch(1, 12),
			want: Decision{Verdict: Applied}, next: 2, sums: two,
		},
		"n = next, last": {
			before: []*wire.Meta{batch(0, 9)}, push: last(batch(1, 9)),
			want: Decision{Verdict: Applied}, finished: true, sums: two,
		},
		"an empty chunk": {
			push: last(&wire.Meta{Pass: 1, Rank: 6, Token: 9}),
			want: Decision{Verdict: Applied}, finished: true, sums: Sums{Batches: 1},
		},
		"n = next, void": {
			before: []*wire.Meta{batch(0, 9)}, push: void(batch(1, 9)),
			want: Decision{Verdict: Skipped}, next: 2, sums: Sums{Batches: 1, Skipped: 1, Records: 20, Loss: 1, Weight: 16},
		},
		"n = next, void and last": {
			push: void(last(batch(0, 9))),
			want: Decision{Verdict: Skipped}, finished: true, sums: Sums{Skipped: 1, Records: 10, Loss: 0.5, Weight: 8},
		},
		"n = next, the loss not finite": {
			push: &wire.Meta{Pass: 1, Rank: 6, Token: 9, Records: 3, Loss: math.NaN()},
			want: Decision{Verdict: Skipped}, next: 1, sums: Sums{Skipped: 1, Records: 3},
		},
		"n below next, void": {
			before: []*wire.Meta{batch(0, 9)}, push: void(batch(0, 9)),
			want: Decision{Verdict: Duplicate}, next: 1, sums: one,
		},
		"n above next, replay": {
			before: []*wire.Meta{batch(0, 9)}, push: batch(3, 9),
			want: Decision{Verdict: GoBack}, next: 1, sums: one,
		},
		"n above next, replay, restored": {
			restored: true, before: []*wire.Meta{batch(0, 9)}, push: batch(3, 9),
			want: Decision{Verdict: GoBack}, next: 1, sums: one,
		},
		"n above next, void": {
			push: void(batch(2, 9)),
			want: Decision{Verdict: GoBack},
		},
		"n above next, skip, not restored": {
			policy: Skip, before: []*wire.Meta{batch(0, 9)}, push: gap(batch(3, 9)),
			want: Decision{Verdict: GoBack}, next: 1, sums: one,
		},
		"n above next, skip, restored, no gap is meant": {
			policy: Skip, restored: true, before: []*wire.Meta{batch(0, 9)}, push: batch(3, 9),
			want: Decision{Verdict: GoBack}, next: 1, sums: one,
		},
		"n above next, replay, restored, a gap is meant": {
			restored: true, before: []*wire.Meta{batch(0, 9)}, push: gap(batch(3, 9)),
			want: Decision{Verdict: GoBack}, next: 1, sums: one,
		},
		"n = next, skip, restored, a gap is meant": {
			policy: Skip, restored: true, before: []*wire.Meta{batch(0, 9)}, push: gap(batch(1, 9)),
			want: Decision{Verdict: Applied}, next: 2, sums: two,
		},
		"n above next, skip, in flight at the restore": {
			policy: Skip, restored: true, before: []*wire.Meta{batch(0, 9)}, push: gap(batch(3, 9)),
			want: Decision{Verdict: AppliedAfterGap, Lost: 2}, next: 4,
			sums: Sums{Batches: 2, Lost: 2, Records: 20, Loss: 1, Weight: 16},
		},
		"n above next, skip, begun after the checkpoint": {
			policy: Skip, restored: true, push: gap(last(batch(3, 9))),
			want: Decision{Verdict: AppliedAfterGap, Lost: 3}, finished: true,
			sums: Sums{Batches: 1, Lost: 3, Records: 10, Loss: 0.5, Weight: 8},
		},
		"n above next, skip, restored, void": {
			policy: Skip, restored: true, push: gap(void(batch(3, 9))),
			want: Decision{Verdict: Skipped, Lost: 3}, next: 4,
			sums: Sums{Skipped: 1, Lost: 3, Records: 10, Loss: 0.5, Weight: 8},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := New(lanes, c.policy)
			for _, m := range c.before {
				require.True(t, push(t, l, m).Applies())
			}
			if c.restored {
				l = restored(t, l, c.policy)
			}
			before := l.Snapshot()
			d, err := l.Decide(c.push)
			require.NoError(t, err)
			require.Equal(t, c.want, d)
			require.Equal(t, before, l.Snapshot(), "Decide has changed something")
			l.Commit(c.push, d)
			finished, next := l.Progress(1, 6)
			require.Equal(t, c.finished, finished)
			require.Equal(t, c.next, next)
			require.Equal(t, c.sums, total(l))
		})
	}
}

func TestSkipOnlyOnceAfterRestore(t *testing.T) {
	t.Parallel()
	l := New(lanes, Skip)
	push(t, l, batch(0, 9))
	l = restored(t, l, Skip)
	require.Equal(t, AppliedAfterGap, push(t, l, gap(batch(2, 9))).Verdict)
	require.Equal(t, GoBack, push(t, l, gap(batch(4, 9))).Verdict, "this gap is the trainer's")
	require.Equal(t, Applied, push(t, l, batch(3, 9)).Verdict)
}

func TestTokensAreNotedByWhatIsRefused(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	push(t, l, batch(0, 5))
	push(t, l, batch(0, 8)) // a duplicate of the next taker
	require.Equal(t, Stale, push(t, l, batch(1, 5)).Verdict)
	push(t, l, batch(4, 11)) // told to go back
	require.Equal(t, Stale, push(t, l, batch(1, 8)).Verdict)
	require.Equal(t, Applied, push(t, l, batch(1, 11)).Verdict)
	require.Equal(t, Counters{Duplicates: 1, Stale: 2, GoBacks: 1}, l.Summary().Counters)
}

func TestSkipOfADecision(t *testing.T) {
	t.Parallel()
	require.Equal(t, Decision{Verdict: Skipped, Lost: 3}, Decision{Verdict: AppliedAfterGap, Lost: 3}.Skip())
	require.Equal(t, Decision{Verdict: GoBack}, Decision{Verdict: GoBack}.Skip())
	l := New(lanes, Replay)
	d, err := l.Decide(batch(0, 1))
	require.NoError(t, err)
	l.Commit(batch(0, 1), d.Skip())
	require.Equal(t, Sums{Skipped: 1, Records: 10, Loss: 0.5, Weight: 8}, total(l), "records and loss as on the shards that applied it")
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*wire.Meta{
		"pass":       {Pass: -1},
		"large pass": {Pass: MaxPass + 1},
		"rank":       {Rank: -1},
		"large rank": {Rank: MaxRank + 1},
		"n":          {N: -1},
		"large n":    {N: math.MaxInt64},
		"token":      {Token: -1},
		"records":    {Records: -1},
		"weight":     {Weight: -1},
		"nan":        {Weight: math.NaN()},
		"infinite":   {Weight: math.Inf(1)},
	} {
		_, err := New(1, Replay).Decide(m)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	l := New(1, Replay)
	m := &wire.Meta{Pass: MaxPass, Rank: MaxRank, N: 0, Last: true}
	require.Equal(t, Applied, push(t, l, m).Verdict)
	require.Equal(t, Duplicate, push(t, l, m).Verdict)
	require.Panics(t, func() { New(0, Replay) })
}

// A summary must always have a JSON form.
func TestLossSumStaysFinite(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	for n, loss := range []float64{1e308, 1e308, math.Inf(1), math.NaN(), -1e307} {
		push(t, l, &wire.Meta{N: int64(n), Loss: loss, Weight: 1})
	}
	require.InEpsilon(t, 9e307, total(l).Loss, 1e-9)
	require.InDelta(t, 2, total(l).Weight, 0, "a loss that is left out takes its weight with it")
	_, err := json.Marshal(l.Summary())
	require.NoError(t, err)
}

func TestInFlightIsBounded(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	for rank := range int64(MaxInFlight) {
		l.flight[chunk{0, rank}] = inFlight{}
	}
	_, err := l.Decide(batch(0, 1))
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, Applied, push(t, l, &wire.Meta{Rank: 5}).Verdict, "a chunk in flight goes on")
}

func TestReplayedIsCounted(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	push(t, l, batch(0, 9))
	l = restored(t, l, Replay)
	require.Equal(t, GoBack, push(t, l, batch(3, 9)).Verdict)
	for n := range int64(4) {
		push(t, l, batch(n+1, 9))
	}
	require.EqualValues(t, 2, l.Summary().Replayed, "batches 1 and 2; 3 and 4 are new")

	l.Reopened(1, 3, ranges.From(1)) // rank 7
	reopened := &wire.Meta{Pass: 1, Rank: 7, Token: 20}
	push(t, l, reopened)
	l = restored(t, l, Replay)
	reopened.N, reopened.Last = 1, true
	push(t, l, reopened)
	require.EqualValues(t, 4, l.Summary().Replayed)
	require.Empty(t, l.passes[1].lanes[3].reopened.String())
}

func TestReopenedInFlight(t *testing.T) {
	t.Parallel()
	l := New(lanes, Replay)
	push(t, l, batch(0, 9)) // rank 6 is lane 2, position 1
	l.Reopened(1, 2, ranges.From(0, 1))
	push(t, l, last(batch(1, 12)))
	require.EqualValues(t, 1, l.Summary().Replayed)
}

func TestVerdictString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "go back", GoBack.String())
	require.Equal(t, "verdict(9)", Verdict(9).String())
}
