package etcdqueue

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// TestTurned holds the decision to what it must never do.
func TestTurned(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		passes := rapid.IntRange(1, 5).Draw(t, "passes")
		s := State{
			Phase: rapid.SampledFrom([]Phase{PhaseTraining, PhaseTraining, PhaseDraining, PhaseComplete, PhaseFailed}).Draw(t, "phase"),
			Pass:  rapid.IntRange(0, passes-1).Draw(t, "pass"),
		}
		done := make([]bool, passes)
		for p := range done {
			done[p] = rapid.Bool().Draw(t, "finished")
			if p <= s.Pass && rapid.Bool().Draw(t, "listed") {
				s.Reopened = append(s.Reopened, p)
			}
		}
		listed := slices.Clone(s.Reopened)
		after := s.turned(func(p int) bool { return done[p] }, passes)
		require.Equal(t, listed, s.Reopened, "the argument is left alone")
		if s.Phase != PhaseTraining {
			require.Equal(t, s, after)
			return
		}
		for _, p := range listed {
			require.Equal(t, !done[p], slices.Contains(after.Reopened, p), "pass %d", p)
		}
		require.Subset(t, listed, after.Reopened)
		moved := after.Pass != s.Pass || after.Phase != s.Phase
		open := !done[s.Pass] || s.Pass == passes-1 && len(after.Reopened) > 0
		require.Equal(t, !open, moved)
		if after.Phase == PhaseDraining {
			require.Equal(t, passes-1, after.Pass)
			require.Empty(t, after.Reopened)
		} else {
			require.Equal(t, PhaseTraining, after.Phase)
			require.LessOrEqual(t, after.Pass, s.Pass+1)
		}
		// A reopen undoes it, whichever pass it is in.
		p := rapid.IntRange(0, after.Pass).Draw(t, "reopened")
		back := after.reopened(p)
		require.Equal(t, PhaseTraining, back.Phase)
		require.Contains(t, back.Takeable(), p)
		require.True(t, slices.IsSorted(back.Reopened))
		require.Equal(t, back, back.reopened(p))
		require.LessOrEqual(t, back.removable(99), p)
	})
}

// TestStall: an entry goes back when its beat has stood still for the stall
// timeout on the observer's clock, not before, and whatever the observer missed.
func TestStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 4, Config{StallTimeout: 10 * time.Second})
		slow, busy, steward := w.open("slow"), w.open("busy"), w.open("steward")
		theirs, mine := mustTake(t, slow, 2), mustTake(t, busy, 2)
		requeue := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after) //nolint:forbidigo // virtual time
			n, err := steward.Requeue(t.Context(), registry("slow", "busy"))
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time: nobody looked yet
		requeue(0, 0)
		requeue(9*time.Second, 0)
		require.NoError(t, busy.Touch(t.Context(), mine, ""))
		require.NoError(t, slow.Touch(t.Context(), theirs[:1], "waits for shard 1"))
		requeue(9*time.Second, 1) // slow's second lane: 18 s without a sign
		require.NoError(t, busy.Complete(t.Context(), finished(mine[0])))
		require.NoError(t, busy.Touch(t.Context(), mine[1:], ""))
		requeue(9*time.Second, 0)
		requeue(time.Second, 1) // slow's first
		requeue(9*time.Second, 1)
		requeue(time.Hour, 0)
		require.Equal(t, int64(3), w.totals().Todo)
		require.Empty(t, steward.seen)

		// Another steward begins to count anew; nil looks at nobody's life.
		require.NoError(t, slow.Changed(t.Context()))
		mustTake(t, slow, 3)
		other := w.open("other")
		for range 2 {
			n, err := other.Requeue(t.Context(), nil)
			require.NoError(t, err)
			require.Zero(t, n)
			time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		}
		n, err := other.Requeue(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, 3, n)
	})
}

// TestRequeueReadsTheRegistryLast: who registers and takes while the steward
// looks is not robbed.
func TestRequeueReadsTheRegistryLast(t *testing.T) {
	t.Parallel()
	w := setup(t, 4, Config{})
	steward, late := w.open("steward"), w.open("late")
	n, err := steward.Requeue(t.Context(), func(ctx context.Context) (map[string]bool, error) {
		mustTake(t, late, 4)
		return map[string]bool{}, nil
	})
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = steward.Requeue(t.Context(), func(context.Context) (map[string]bool, error) { return nil, errLost })
	require.ErrorIs(t, err, errLost)
	require.Equal(t, int64(4), w.totals().Pending)
}

// TestRequeueSparesProgress: what has been touched or completed between the
// steward's look and its write stays with its owner.
func TestRequeueSparesProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 2, Config{Lanes: 1, StallTimeout: time.Second})
		a := w.open("a")
		steward, client := w.client("steward")
		mine := mustTake(t, a, 1)
		_, err := steward.Requeue(t.Context(), nil)
		require.NoError(t, err)
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		touched := false
		client.Fail(func(op, _ string) error {
			if op == "put" && !touched {
				touched = true
				return a.Touch(t.Context(), mine, "")
			}
			return nil
		})
		n, err := steward.Requeue(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, touched)
		require.Zero(t, n)
		require.NoError(t, a.Complete(t.Context(), finished(mine...)))
	})
}

// TestTurnWithin: what is over leaves the list of reopened passes, and the pass
// that could be left is not.
func TestTurnWithin(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Lanes: 1, Passes: 3})
	q := w.open("a")
	drain(t, q, 2)
	s, err := q.TurnWithin(t.Context())
	require.NoError(t, err)
	require.Zero(t, s.Pass)
	s, err = q.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, s.Pass)
	again, err := q.TurnWithin(t.Context(), store.Absent("state"))
	require.NoError(t, err, "there is nothing to do")
	require.Equal(t, s, again)
}

// TestDepth: what the steward has seen of the queue is the work that is left.
func TestDepth(t *testing.T) {
	t.Parallel()
	w := setup(t, 5, Config{Lanes: 2})
	q := w.open("a")
	require.Zero(t, q.Depth())
	mine := mustTake(t, q, 2)
	require.NoError(t, q.Complete(t.Context(), finished(mine[0])))
	for range 2 { // it is a look, not a sum
		_, err := q.Requeue(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), q.Depth().Todo)
		require.Equal(t, int64(1), q.Depth().Pending)
	}
}

// TestStewardsGuards: a steward that has lost its lock writes nothing.
func TestStewardsGuards(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Passes: 3})
	q := w.open("a")
	lost := store.Absent(stateKey)
	mine := mustTake(t, q, 2)
	before := w.store.Dump()
	_, err := q.Requeue(t.Context(), registry(), lost)
	require.ErrorIs(t, err, ErrGuard)
	require.ErrorIs(t, q.Finish(t.Context(), PhaseFailed, "x", nil, lost), ErrGuard)
	require.Equal(t, before, w.store.Dump())
	require.NoError(t, q.Complete(t.Context(), finished(mine...)))
	_, err = q.Turn(t.Context(), nil, lost)
	require.ErrorIs(t, err, ErrGuard)
	require.Equal(t, 0, w.state().Pass)
	_, err = q.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.ErrorIs(t, q.RemovePasses(t.Context(), 1, lost), ErrGuard)
	require.Equal(t, 0, w.state().Floor)
	_, err = q.Reopen(t.Context(), 0, 0, ranges.Of(0, 0), func() []store.Cmp { return []store.Cmp{lost} })
	require.ErrorIs(t, err, ErrGuard)
	require.Empty(t, w.state().Reopened)
}

// TestTurnFrom: what is written with the turn is of the state that was looked
// at, or is not written.
func TestTurnFrom(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Passes: 3})
	q := w.open("a")
	ops := []store.Op{store.Put("said", []byte("x"), 0)}
	said := func() bool {
		kv, err := store.Lookup(t.Context(), w.job(), "said")
		require.NoError(t, err)
		return kv.Exists()
	}
	p, err := q.Prospect(t.Context())
	require.NoError(t, err)
	require.False(t, p.Leaves(), "chunks are Todo")
	s, err := q.TurnFrom(t.Context(), p.Now, ops)
	require.NoError(t, err)
	require.Zero(t, s.Pass)
	drainN(t, q, 2)
	p, err = q.Prospect(t.Context())
	require.NoError(t, err)
	require.True(t, p.Leaves())
	require.Equal(t, 1, p.After.Pass)
	require.EqualValues(t, 2, p.Pass.Complete)

	// A chunk is reopened and is complete again: the lanes look as before.
	_, err = q.Reopen(t.Context(), 0, 0, ranges.Of(0, 0), nil)
	require.NoError(t, err)
	now, err := q.Prospect(t.Context())
	require.NoError(t, err)
	require.False(t, now.Leaves())
	drainN(t, q, 1)
	_, err = q.TurnFrom(t.Context(), p.Now, ops)
	require.ErrorIs(t, err, ErrGuard)
	require.Zero(t, w.state().Pass)
	require.False(t, said())

	p, err = q.Prospect(t.Context())
	require.NoError(t, err)
	require.Empty(t, p.After.Reopened)
	_, err = q.TurnFrom(t.Context(), p.Now, ops, store.Absent(stateKey))
	require.ErrorIs(t, err, ErrGuard)
	require.False(t, said())
	s, err = q.TurnFrom(t.Context(), p.Now, ops)
	require.NoError(t, err)
	require.Equal(t, 1, s.Pass)
	require.True(t, said())
}

// TestManifests: each pass may have its own; the queue follows its length.
func TestManifests(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Passes: 3})
	q := w.open("a")
	next := func(pass int) (Manifest, bool) {
		return Manifest{Chunks: 5, Fingerprint: "more", Files: []byte(`["a","b"]`)}, pass == 1
	}
	var lengths []int
	for range 3 {
		lengths = append(lengths, len(drain(t, q, 3)))
		_, err := q.Turn(t.Context(), next)
		require.NoError(t, err)
		m, err := q.Manifest(t.Context(), w.state().Pass)
		require.NoError(t, err)
		if w.state().Pass > 0 {
			require.Equal(t, Manifest{V: 1, Chunks: 5, Fingerprint: "more", Files: []byte(`["a","b"]`)}, m)
		}
	}
	require.Equal(t, []int{2, 5, 5}, lengths)
	require.Equal(t, PhaseDraining, w.state().Phase)
	_, err := q.Manifest(t.Context(), 3)
	require.ErrorIs(t, err, ErrNoPass)
	_, _, _, err = q.Lanes(t.Context(), 3)
	require.ErrorIs(t, err, ErrNoPass)
}

// TestTotalsSurviveRemoval: what was in removed lanes is still in the sums.
func TestTotalsSurviveRemoval(t *testing.T) {
	t.Parallel()
	w := setup(t, 7, Config{Passes: 4, MaxFailures: 1})
	q := w.open("a")
	require.NoError(t, q.Fail(t.Context(), mustTake(t, q, 1)[0], "bad", nil))
	for pass := range 3 {
		drain(t, q, 3)
		if pass == 1 {
			n, err := q.Reopen(t.Context(), 1, 2, ranges.Of(0, 9), nil)
			require.NoError(t, err)
			require.Equal(t, int64(2), n)
			drainN(t, q, 2)
		}
		_, err := q.Turn(t.Context(), nil)
		require.NoError(t, err)
		before := w.totals()
		require.NoError(t, q.RemovePasses(t.Context(), pass+1))
		require.NoError(t, q.RemovePasses(t.Context(), pass))
		require.Equal(t, before, w.totals())
		require.Equal(t, pass+1, w.state().Floor)
	}
	drain(t, q, 3)
	require.Equal(t, Totals{Chunks: 28, Complete: 24, Failed: 4, Takes: 27, Reopened: 2, Batches: 240, Records: 2400}, w.totals())
	for key := range w.store.Dump() {
		for _, gone := range []string{passKey(0), passKey(2), lanesPrefix(0), lanesPrefix(2)} {
			require.NotContains(t, key, gone)
		}
	}
}

func TestFinish(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{})
	q := w.open("a")
	require.ErrorIs(t, q.Finish(t.Context(), PhaseDraining, "", nil), ErrPhase)
	require.ErrorIs(t, q.Finish(t.Context(), PhaseComplete, "", nil), ErrPhase)
	drain(t, q, 1)
	s, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
	// What was judged must be what is: the state has moved since.
	_, err = q.Reopen(t.Context(), 0, 0, ranges.Of(0, 0), nil)
	require.NoError(t, err)
	drainN(t, q, 1)
	again, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
	result := []store.Op{store.Put("result", []byte("{}"), 0)}
	require.ErrorIs(t, q.Finish(t.Context(), PhaseComplete, "", result, s.Guard()), ErrGuard)
	kv, err := store.Lookup(t.Context(), w.job(), "result")
	require.NoError(t, err)
	require.False(t, kv.Exists())
	require.NoError(t, q.Finish(t.Context(), PhaseComplete, "", result, again.Guard()))
	require.NoError(t, q.Finish(t.Context(), PhaseComplete, "", result), "it is complete")
	require.ErrorIs(t, q.Finish(t.Context(), PhaseFailed, "late", nil), ErrPhase)
	kv, err = store.Lookup(t.Context(), w.job(), "result")
	require.NoError(t, err)
	require.Equal(t, int64(1), kv.Version)
	require.NoError(t, q.RemovePasses(t.Context(), 5), "nothing is removed from an ended job")
	s, err = q.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, PhaseComplete, s.Phase)
}

// TestWatchState: the present state, then every later one, through breaks.
func TestWatchState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 1, Config{Passes: 9})
		q := w.open("a")
		watcher, client := w.client("watcher")
		ctx, cancel := context.WithCancel(t.Context())
		states := watcher.WatchState(ctx)
		require.Equal(t, 0, (<-states).Pass)
		turn := func() {
			drain(t, q, 1)
			_, err := q.Turn(t.Context(), nil)
			require.NoError(t, err)
		}
		turn()
		require.Equal(t, 1, (<-states).Pass)
		turn()
		turn()
		synctest.Wait()
		require.Equal(t, 3, (<-states).Pass, "a slow receiver gets the latest")
		client.Partition(true)
		turn()
		w.store.Compact(w.store.Revision())
		client.Partition(false)
		require.Equal(t, 4, (<-states).Pass)
		synctest.Wait()
		client.LoseWatches()
		turn()
		require.Equal(t, 5, (<-states).Pass, "a watch that says nothing any more is made up for")
		_, err := w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Delete(stateKey)}})
		require.NoError(t, err)
		require.Equal(t, Phase(""), (<-states).Phase)
		_, err = w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(stateKey, []byte("{}"), 0)}})
		require.NoError(t, err)
		_, open := <-states
		require.False(t, open, "a state that cannot be read ends it")
		states = q.WatchState(ctx)
		cancel()
		synctest.Wait()
		_, open = <-states
		require.False(t, open)
	})
}

// TestReopenManyLanes: all lanes of a pass, of which some have nothing to
// reopen; the list and the counts are right and repeating it does nothing.
func TestReopenManyLanes(t *testing.T) {
	t.Parallel()
	w := setup(t, 100, Config{Lanes: 50, Passes: 2})
	q := w.open("a")
	done := 0
	for done < 60 {
		tasks := mustTake(t, q, 30)
		require.NoError(t, q.Complete(t.Context(), finished(tasks...)))
		done += len(tasks)
	}
	lanes := make(map[int]ranges.Set)
	for lane := range 50 {
		lanes[lane] = ranges.Of(0, 5)
	}
	asked := 0
	n, err := q.ReopenLanes(t.Context(), 0, lanes, func() []store.Cmp { asked++; return nil })
	require.NoError(t, err)
	require.Equal(t, int64(60), n)
	require.Equal(t, 2, asked, "two transactions")
	n, err = q.ReopenLanes(t.Context(), 0, lanes, nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, []int{0}, w.state().Reopened)
	_, err = q.Reopen(t.Context(), 0, 50, ranges.Of(0, 0), nil)
	require.ErrorIs(t, err, ErrMismatch)
	_, err = q.Reopen(t.Context(), 1, 0, ranges.Of(0, 0), nil)
	require.ErrorIs(t, err, ErrNoPass)
	require.Len(t, drain(t, q, 99), 100)
	require.Equal(t, Totals{Chunks: 100, Complete: 100, Takes: 160, Reopened: 60, Batches: 1000, Records: 10000}, w.totals())
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Lanes: -1, MaxFailures: -1, StallTimeout: -1, Passes: -1})
	for _, text := range []string{"no store", "lanes: -1", "max failures: -1", "stall timeout: -1ns", "passes: -1"} {
		require.ErrorContains(t, err, text)
	}
	w := setup(t, 5, Config{Lanes: 3})
	q := w.open("b")
	require.NoError(t, q.Create(t.Context(), Manifest{Chunks: 5, Fingerprint: "f"}))
	require.ErrorIs(t, q.Create(t.Context(), Manifest{Chunks: 6, Fingerprint: "f"}), ErrMismatch)
	require.ErrorIs(t, q.Create(t.Context(), Manifest{Chunks: 5, Fingerprint: "g"}), ErrMismatch)
	w.config.Lanes = 4
	require.ErrorIs(t, w.open("c").Create(t.Context(), Manifest{Chunks: 5, Fingerprint: "f"}), ErrMismatch)
}
