package ledger

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
	"starfish/internal/wire"
)

// rank is the chunk at a position of a lane, with two lanes.
func rankOf(lane int, position int64) int64 { return position*2 + int64(lane) }

// chunkOf pushes batches from … to of the chunk at rank of pass 0.
func chunkOf(t *testing.T, l *Ledger, rank, from, to int64, whole bool) {
	t.Helper()
	for n := from; n < to; n++ {
		require.True(t, push(t, l, &wire.Meta{Rank: rank, N: n, Last: whole && n == to-1}).Applies())
	}
}

// What is Complete in the queue and was lost is finished, and what it had is
// told from the lane's sum, whatever else of the lane is in flight, finished and
// not Complete yet, or Failed.
func TestReckon(t *testing.T) {
	t.Parallel()
	l := New(2, Skip)
	chunkOf(t, l, rankOf(1, 0), 0, 3, true)  // Complete
	chunkOf(t, l, rankOf(1, 1), 0, 2, false) // Complete with 7: 5 are lost
	chunkOf(t, l, rankOf(1, 2), 0, 9, true)  // not Complete yet
	chunkOf(t, l, rankOf(1, 3), 0, 1, false) // in flight
	chunkOf(t, l, rankOf(1, 4), 0, 6, true)  // Failed, although it was read once
	chunkOf(t, l, rankOf(0, 0), 0, 2, true)  // of another lane
	l = restored(t, l, Skip)
	require.Equal(t, 4, l.Unreckoned())
	lanes := queue(t, [2]string{"0", ""}, [2]string{"0-1,5-6", "4"})
	lanes[0].Batches, lanes[1].Batches = 2, 3+7+10+11 // positions 5 and 6 are unknown here

	require.Equal(t, Loss{Chunks: 3, Batches: 5 + 10 + 11}, l.Reckon(0, lanes))
	require.True(t, l.Covers(0, lanes))
	require.EqualValues(t, 26, total(l).Lost)
	require.EqualValues(t, 26+3+2+9+1+6+2, l.Counted())
	require.EqualValues(t, 1, l.Summary().Losses)
	require.Equal(t, 2, l.Unreckoned(), "the chunk that is not Complete yet, and the one that failed")
	require.Equal(t, Duplicate, push(t, l, &wire.Meta{Rank: rankOf(1, 1), N: 2}).Verdict)
	require.Zero(t, l.Reckon(0, lanes), "again")

	// The next owner begins where the checkpoint is: nothing of it counts twice.
	l = restored(t, l, Skip)
	chunkOf(t, l, rankOf(1, 3), 1, 4, true)
	lanes = queue(t, [2]string{"0", ""}, [2]string{"0-3,5-7", "4"})
	lanes[0].Batches, lanes[1].Batches = 2, 31+9+4+8
	require.Equal(t, Loss{Chunks: 1, Batches: 8}, l.Reckon(0, lanes))
	require.EqualValues(t, 2, l.Summary().Losses)
	require.NoError(t, l.Collapse(0, 9, lanes))
	require.Zero(t, l.Unreckoned())
	sum := total(l)
	require.EqualValues(t, 2+52+6, sum.Batches+sum.Skipped+sum.Lost, "the lanes' sums, and the batches of the chunk that failed")
	require.Zero(t, l.Reckon(0, lanes), "the pass has collapsed")
}

// Under policy replay nothing is given up, and nothing is noted for it.
func TestReplayReckonsNothing(t *testing.T) {
	t.Parallel()
	l := New(2, Replay)
	finish(t, l, 0, 0)
	l = restored(t, l, Replay)
	lanes := queue(t, [2]string{"0-1", ""}, [2]string{})
	lanes[0].Batches = 7
	require.Zero(t, l.Unreckoned())
	before := l.Snapshot()
	require.Zero(t, l.Reckon(0, lanes))
	require.Equal(t, before, l.Snapshot())
	require.False(t, l.Covers(0, lanes))
	require.Zero(t, total(l).Lost)
}

// A gap and a chunk that is given up are one loss, until the next restore.
func TestLossesAreRestores(t *testing.T) {
	t.Parallel()
	l := New(2, Skip)
	for n := range int64(3) {
		l = restored(t, l, Skip)
		require.Equal(t, AppliedAfterGap, push(t, l, gap(&wire.Meta{Rank: 2 * n, N: 2})).Verdict)
		require.Equal(t, AppliedAfterGap, push(t, l, gap(&wire.Meta{Rank: 2*n + 1, N: 2})).Verdict)
		require.EqualValues(t, n+1, l.Summary().Losses)
	}
	require.EqualValues(t, 12, total(l).Lost)
}

// account is a job of one shard: its ledger, and what the queue has.
type account struct {
	ledger   *Ledger
	complete map[int64]bool
	saved    []Snapshot
}

func (a *account) lanes() []Lane {
	lanes := make([]Lane, propLanes)
	for rank := range a.complete {
		i := rank % propLanes
		lanes[i].Complete = lanes[i].Complete.Union(ranges.From(rank / propLanes))
		lanes[i].Batches += batchesOf(rank)
	}
	return lanes
}

// has is how many batches of a chunk the ledger has counted.
func (a *account) has(rank int64) int64 {
	finished, next := a.ledger.Progress(0, rank)
	if finished {
		return batchesOf(rank)
	}
	return next
}

// Whatever is pushed, by whomever, completed, saved and restored in whatever
// order: after a reckoning the ledger has counted each Complete chunk whole, and
// of the others what it says.
func TestReckonIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := &account{ledger: New(propLanes, Skip), complete: map[int64]bool{}}
		chunk := rapid.Int64Range(0, 7)
		reckon := func(t *rapid.T) {
			lanes := a.lanes()
			a.ledger.Reckon(0, lanes)
			require.True(t, a.ledger.Covers(0, lanes))
			var want int64
			for rank := range int64(8) {
				want += a.has(rank)
			}
			sum := total(a.ledger)
			require.Equal(t, want, sum.Batches+sum.Skipped+sum.Lost)
			require.Equal(t, want, a.ledger.Counted())
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				rank := chunk.Draw(t, "rank")
				n := rapid.Int64Range(0, batchesOf(rank)-1).Draw(t, "n")
				m := &wire.Meta{Rank: rank, N: n, Token: 1, Gap: rapid.Bool().Draw(t, "gap"), Last: n == batchesOf(rank)-1}
				d, err := a.ledger.Decide(m)
				require.NoError(t, err)
				a.ledger.Commit(m, d)
			},
			"complete": func(t *rapid.T) { // only what the present owner has
				rank := chunk.Draw(t, "rank")
				if finished, _ := a.ledger.Progress(0, rank); finished {
					a.complete = maps.Clone(a.complete)
					a.complete[rank] = true
				}
			},
			"save": func(*rapid.T) { a.saved = append(a.saved, a.ledger.Snapshot()) },
			"restore": func(t *rapid.T) {
				a.ledger = New(propLanes, Skip)
				if n := rapid.IntRange(0, len(a.saved)).Draw(t, "cut"); n > 0 {
					l, err := Restore(a.saved[n-1], propLanes, Skip)
					require.NoError(t, err)
					a.ledger, a.saved = l, a.saved[:n] // what is listed is an ancestor
					return
				}
				a.ledger.MarkRestored()
				a.saved = nil
			},
			"reckon": reckon,
		})
		reckon(t)
	})
}
