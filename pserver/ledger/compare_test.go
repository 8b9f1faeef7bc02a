package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/wire"
)

func set(t *testing.T, text string) ranges.Set {
	t.Helper()
	s, err := ranges.Parse(text)
	require.NoError(t, err)
	return s
}

// queue makes lanes of texts of complete and failed positions.
func queue(t *testing.T, texts ...[2]string) []Lane {
	t.Helper()
	var out []Lane
	for _, c := range texts {
		out = append(out, Lane{Complete: set(t, c[0]), Failed: set(t, c[1])})
	}
	return out
}

func finish(t *testing.T, l *Ledger, pass int, ranks ...int64) {
	t.Helper()
	for _, r := range ranks {
		push(t, l, &wire.Meta{Pass: pass, Rank: r, Records: 1, Last: true})
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	l := New(2, Replay)
	require.Equal(t, "0-3", l.Missing(0, 0, set(t, "0-3")).String(), "nothing known of the pass")
	finish(t, l, 0, 0, 1, 4) // lane 0: positions 0 and 2, lane 1: position 0
	require.Equal(t, "1,3", l.Missing(0, 0, set(t, "0-3")).String())
	require.Equal(t, "", l.Missing(0, 1, set(t, "0")).String())
	require.True(t, l.Covers(0, queue(t, [2]string{"0,2", ""}, [2]string{"0", "1"})))
	require.False(t, l.Covers(0, queue(t, [2]string{"0,2", ""}, [2]string{"0-1", ""})))
	require.True(t, l.Covers(7, queue(t, [2]string{}, [2]string{})))
}

func TestCollapse(t *testing.T) {
	t.Parallel()
	l := New(2, Replay)
	finish(t, l, 0, 0, 1, 2)
	push(t, l, &wire.Meta{Rank: 3, N: 0, Token: 4}) // fails after its first batch

	require.ErrorIs(t, l.Collapse(0, 4, queue(t, [2]string{"0-1", ""}, [2]string{"0", ""})), ErrNotCovered, "one chunk is open")
	require.ErrorIs(t, l.Collapse(0, 4, queue(t, [2]string{"0-1", ""}, [2]string{"0-1", ""})), ErrNotCovered, "one chunk is missing")
	require.ErrorIs(t, l.Collapse(0, 2, queue(t, [2]string{"0-1", ""})), ErrNotCovered, "a lane was not compared")
	require.Zero(t, l.Passes())

	done := queue(t, [2]string{"0-1", ""}, [2]string{"0", "1"})
	require.NoError(t, l.Collapse(0, 4, done))
	require.NoError(t, l.Collapse(0, 4, done), "again")
	require.Equal(t, 1, l.Passes())
	require.True(t, l.Covers(0, done))
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Rank: 2, N: 5}).Verdict)

	// The failed chunk is requeued by hand: what was applied of it stays so.
	l = restored(t, l, Replay)
	require.Equal(t, "1", l.Missing(0, 1, set(t, "0-1")).String())
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Rank: 3, N: 0, Token: 9}).Verdict)
	require.Equal(t, Applied, push(t, l, &wire.Meta{Rank: 3, N: 1, Token: 9, Last: true}).Verdict)
	require.Equal(t, "", l.Missing(0, 1, set(t, "0-1")).String())
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Rank: 3, N: 1, Token: 9, Last: true}).Verdict)
}

func TestCollapseOfAFailedChunkThatWasFinished(t *testing.T) {
	t.Parallel()
	l := New(1, Replay)
	finish(t, l, 0, 0, 1)
	require.NoError(t, l.Collapse(0, 2, queue(t, [2]string{"0", "1"})))
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Rank: 1, N: 0}).Verdict)
}

func TestCollapseOfPassesInAnyOrder(t *testing.T) {
	t.Parallel()
	l := New(1, Replay)
	finish(t, l, 1, 0)
	require.NoError(t, l.Collapse(1, 1, queue(t, [2]string{"0", ""})))
	require.Zero(t, l.Passes())
	finish(t, l, 0, 0)
	require.NoError(t, l.Collapse(0, 1, queue(t, [2]string{"0", ""})))
	require.Equal(t, 2, l.Passes())
	s := l.Summary()
	require.Equal(t, 2, s.Passes)
	require.Equal(t, []PassSums{{1, Sums{Batches: 1, Records: 1}}}, s.Sums)
	require.Equal(t, Sums{Batches: 1, Records: 1}, s.Past)
}

// A pass of which every chunk failed, or that has none, is covered by nothing.
func TestCollapseOfNothing(t *testing.T) {
	t.Parallel()
	l := New(2, Replay)
	require.NoError(t, l.Collapse(0, 3, queue(t, [2]string{"", "0-1"}, [2]string{"", "0"})))
	require.NoError(t, l.Collapse(1, 0, queue(t, [2]string{}, [2]string{})))
	require.Equal(t, 2, l.Passes())
}

// A ledger that began anew gives up the passes that nobody can replay: what it
// never counted of them is lost, and nothing is pushed to them any more.
func TestForget(t *testing.T) {
	t.Parallel()
	l := New(2, Replay)
	l.MarkRestored()
	push(t, l, &wire.Meta{Pass: 1, Rank: 3, N: 0})             // by somebody who is late
	push(t, l, &wire.Meta{Pass: 1, Rank: 5, Void: true})       // skipped
	push(t, l, &wire.Meta{Pass: 3, Rank: 0, N: 0, Last: true}) // the present pass
	push(t, l, &wire.Meta{Pass: 3, Rank: 1, N: 0})

	require.EqualValues(t, 28, l.Forget(3, 30))
	require.Zero(t, l.Forget(3, 30), "again")
	require.Equal(t, 3, l.Passes())
	require.Equal(t, 1, l.Summary().InFlight, "that of the present pass")
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Pass: 1, Rank: 3, N: 1}).Verdict)
	require.Zero(t, l.Missing(0, 0, set(t, "0-9")).Len())
	sum := total(l)
	require.EqualValues(t, 28, sum.Lost)
	require.EqualValues(t, 3+1+28, sum.Batches+sum.Skipped+sum.Lost, "30, and two of the present pass")

	// It is saved, and a floor that has risen since is counted from where it was.
	l = restored(t, l, Replay)
	require.EqualValues(t, 8, l.Forget(4, 40))
	require.EqualValues(t, 40, total(l).Batches+total(l).Skipped+total(l).Lost)
}

// Batches of chunks that failed are counted here, and not in the lanes.
func TestForgetOfMoreThanThereWas(t *testing.T) {
	t.Parallel()
	l := New(1, Replay)
	finish(t, l, 0, 0, 1, 2)
	require.Zero(t, l.Forget(1, 2))
	require.Zero(t, total(l).Lost)
	require.Equal(t, 1, l.Passes())
}

// Chunks that are finished in order, two at a time in the wrong one, take one
// range a lane; after the collapse only sums are left.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const chunks, lanes = 50_000, 64
	l := New(lanes, Replay)
	var whole []Lane
	for i := range int64(lanes) {
		whole = append(whole, Lane{Complete: ranges.Of(0, (chunks-1-i)/lanes)})
	}
	for pass := range 3 {
		for rank := range int64(chunks) {
			m := &wire.Meta{Pass: pass, Rank: rank ^ 1, Last: true}
			d, err := l.Decide(m)
			if err != nil || !d.Applies() {
				t.Fatal(d, err)
			}
			l.Commit(m, d)
		}
		for i := range l.passes[pass].lanes {
			require.Equal(t, 1, l.passes[pass].lanes[i].finished.Spans())
		}
		require.NoError(t, l.Collapse(pass, chunks, whole))
		require.Nil(t, l.passes[pass].lanes)
	}
	require.Empty(t, l.flight)
	require.Equal(t, 3, l.Passes())
}

// Passes that are finished without exception become a number and a sum.
func TestLedgerDoesNotGrowWithThePasses(t *testing.T) {
	l := New(2, Replay)
	lanes := []Lane{{Complete: ranges.Of(0, 0)}, {Complete: ranges.Of(0, 0)}}
	const passes = 1000
	for pass := range passes {
		for rank := range int64(2) {
			m := &wire.Meta{Pass: pass, Rank: rank, Last: true, Records: 3, Loss: 0.5}
			d, err := l.Decide(m)
			require.NoError(t, err)
			require.Equal(t, Applied, d.Verdict)
			l.Commit(m, d)
		}
		require.NoError(t, l.Collapse(pass, 2, lanes))
		require.LessOrEqual(t, len(l.passes), 2)
	}
	restored, err := Restore(l.Snapshot(), 2, Replay)
	require.NoError(t, err)
	for _, l := range []*Ledger{l, restored} {
		s := l.Summary()
		require.Equal(t, passes, l.Passes())
		require.Equal(t, []PassSums{{passes - 1, Sums{Batches: 2, Records: 6, Loss: 1}}}, s.Sums)
		require.Equal(t, Sums{Batches: 2 * passes, Records: 6 * passes, Loss: passes}, s.Total())
		require.EqualValues(t, 2*passes, l.Counted())
		// A pass that is no more than a number still knows its chunks.
		d, err := l.Decide(&wire.Meta{Pass: 7, Rank: 1, N: 0})
		require.NoError(t, err)
		require.Equal(t, Duplicate, d.Verdict)
		require.Zero(t, l.Missing(7, 0, ranges.Of(0, 0)).Len())
		l.Reopened(7, 0, ranges.Of(0, 0))
		require.NoError(t, l.Collapse(7, 2, lanes))
		require.Len(t, l.passes, 1)
	}
}
