package etcdqueue

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

// TestLostReplies: whichever transaction of a taker goes without an answer,
// before or after it had its effect, and the same call made again if it
// reports an error, every chunk is trained once and nothing is left Pending.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		for n := range 9 {
			for _, reads := range []bool{false, true} {
				t.Run(fmt.Sprintf("hidden %v, write %d, reads too %v", hidden, n, reads), func(t *testing.T) {
					t.Parallel()
					w := setup(t, 10, Config{})
					q, client := w.client("a")
					hits, down := 0, 0
					write := once("put", laneKey(0, 0)[:7], n, &hits)
					hook := serial(func(op, key string) error {
						err := write(op, key)
						if err != nil && reads {
							down = 2 // the next request fails as well
						}
						if down > 0 && op == "range" && key == prefix+stateKey {
							down--
							return errLost
						}
						return err
					})
					if hidden {
						client.FailAfter(hook)
					} else {
						client.Fail(hook)
					}
					repeat := func(call func() error) error {
						err := call()
						for range 3 {
							if err == nil {
								break
							}
							require.ErrorIs(t, err, errLost)
							err = call()
						}
						return err
					}
					var all []int64
					for len(all) < 10 {
						var tasks []Task
						require.NoError(t, repeat(func() (err error) {
							tasks, err = q.Take(t.Context(), 4)
							return err
						}))
						require.LessOrEqual(t, len(tasks), 4)
						require.NoError(t, repeat(func() error { return q.Touch(t.Context(), tasks, "") }))
						if len(all) == 0 {
							require.NoError(t, repeat(func() error { return q.Release(t.Context(), tasks[:1]) }))
							require.NoError(t, repeat(func() error { return q.Fail(t.Context(), tasks[1], "bad", nil) }))
							tasks = tasks[2:]
						}
						require.NoError(t, repeat(func() error { return q.Complete(t.Context(), finished(tasks...)) }))
						all = append(all, ranks(tasks)...)
					}
					q.Close()
					require.Greater(t, hits, n, "the fault was struck")
					require.ElementsMatch(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, all)
					got := w.totals()
					require.Equal(t, Totals{Chunks: 10, Complete: 10, Takes: 12, Batches: 100, Records: 1000}, got)
					require.Empty(t, q.takes.granted)
					require.Empty(t, q.takes.unsure)
					require.Equal(t, map[int64]int{0: 1}, w.lane(0, 1).Tries)
				})
			}
		}
	}
}

// TestTakeThatCommitsLate: a take whose request was given up, and which the
// store carries out after the taker has looked for it, is found all the same.
func TestTakeThatCommitsLate(t *testing.T) {
	t.Parallel()
	w := setup(t, 3, Config{Lanes: 1})
	q, client := w.client("a")
	require.NoError(t, q.start(t.Context()))
	q.mu.Lock()
	created := q.view.passes[0].created
	q.mu.Unlock()
	late := w.open("a") // the same incarnation stands for the request on its way
	require.NoError(t, late.start(t.Context()))
	puts := 0
	client.Fail(serial(func(op, _ string) error {
		if op != "put" {
			return nil
		}
		if puts++; puts == 1 {
			return errLost
		}
		if puts > 2 {
			return nil
		}
		// The taker has looked, found nothing and takes again; now the first
		// request arrives.
		p := newPassView(&q.c, 0, Manifest{Chunks: 3}, created, created, 1)
		picks := p.plan(wish{count: 2}, nil)
		a, err := late.commitTake(context.Background(), p.snapshot(picks), picks, nil)
		require.NoError(t, err)
		require.Equal(t, written, a.outcome)
		return nil
	}))
	require.Equal(t, []int64{0}, ranks(mustTake(t, q, 1)), "no more than asked for")
	require.Equal(t, []int64{1}, ranks(mustTake(t, q, 1)))
	require.Equal(t, []int64{2}, ranks(mustTake(t, q, 2)))
	require.Empty(t, q.takes.doubt)
	require.Equal(t, int64(3), w.totals().Takes)
}

// TestCrashAfterTakeCommits: the taker dies between the commit of its take and
// the reply. Its successor, another incarnation, does not take it for its own;
// the chunks come back when its registration is seen to be gone.
func TestCrashAfterTakeCommits(t *testing.T) {
	t.Parallel()
	w := setup(t, 6, Config{})
	q, client := w.client("dead")
	ctx, crash := context.WithCancel(t.Context())
	client.FailAfter(func(op, _ string) error {
		if op == "put" {
			crash()
			return errLost
		}
		return nil
	})
	_, err := q.Take(ctx, 6)
	require.ErrorIs(t, err, errLost)
	require.Equal(t, int64(6), w.totals().Pending)

	next := w.open("next")
	_, err = next.Take(t.Context(), 6)
	require.ErrorIs(t, err, ErrEmpty)
	n, err := next.Requeue(t.Context(), registry("dead", "next"))
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = next.Requeue(t.Context(), registry("next"))
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.NoError(t, next.Changed(t.Context()))
	require.Len(t, drain(t, next, 6), 6)
	require.Equal(t, Totals{Chunks: 6, Complete: 6, Takes: 12, Requeued: 6, Batches: 60, Records: 600}, w.totals())
}

// TestStaleReports: what was taken back cannot be reported on, whether it is
// Todo, with another taker or Complete by then; and it is said which.
func TestStaleReports(t *testing.T) {
	t.Parallel()
	w := setup(t, 4, Config{})
	slow, next := w.open("slow"), w.open("next")
	old := mustTake(t, slow, 3)
	keeps := mustTake(t, slow, 1)
	n, err := next.Requeue(t.Context(), registry("slow", "next"))
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = next.Requeue(t.Context(), registry("next"))
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.NoError(t, next.Changed(t.Context()))
	mine := mustTake(t, next, 2)
	require.NoError(t, next.Complete(t.Context(), finished(mine[0])))
	for i, task := range mine {
		require.Equal(t, old[i].Chunk, task.Chunk)
		require.Greater(t, task.Token, old[i].Token, "a later take has a larger token")
	}
	again := mustTake(t, slow, 1) // the slow one goes on with something else
	before := w.store.Dump()
	for name, call := range map[string]func(Task) error{
		"complete": func(task Task) error { return slow.Complete(t.Context(), finished(task)) },
		"touch":    func(task Task) error { return slow.Touch(t.Context(), []Task{task}, "") },
		"fail":     func(task Task) error { return slow.Fail(t.Context(), task, "bad", nil) },
		"release":  func(task Task) error { return slow.Release(t.Context(), []Task{task}) },
	} {
		for _, task := range append(old[:3:3], keeps...) {
			err := call(task)
			require.ErrorIs(t, err, ErrStale, name)
			var stale *StaleError
			require.ErrorAs(t, err, &stale)
			require.Equal(t, []Task{task}, stale.Tasks)
			require.ErrorContains(t, err, fmt.Sprintf("chunk %d (pass 0 lane %d position 0 token %d)", task.Chunk, task.Lane, task.Token))
		}
	}
	require.Equal(t, before, w.store.Dump())

	// Of several tasks the others are dealt with.
	err = slow.Complete(t.Context(), finished(old[0], again[0], old[2]))
	var stale *StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, []Task{old[0], old[2]}, stale.Tasks)
	require.Equal(t, int64(2), w.totals().Complete)
	require.Empty(t, slow.takes.granted)
}

// TestCompleteOfAnotherIsNotOurs: that a chunk is Complete makes a report a
// success only where the report may have been what completed it.
func TestCompleteOfAnotherIsNotOurs(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{Lanes: 1})
	slow, next := w.open("slow"), w.open("next")
	mine := mustTake(t, slow, 1)
	_, err := next.Requeue(t.Context(), registry("next"))
	require.NoError(t, err)
	theirs := mustTake(t, next, 1)
	require.NoError(t, next.Complete(t.Context(), finished(theirs...)))
	require.ErrorIs(t, slow.Complete(t.Context(), finished(mine...)), ErrStale)

	// With a lost reply it cannot be told, and does not matter: somebody did.
	w = setup(t, 1, Config{Lanes: 1})
	slow, client := w.client("slow")
	mine = mustTake(t, slow, 1)
	client.FailAfter(func(op, _ string) error { return errLost })
	require.ErrorIs(t, slow.Complete(t.Context(), finished(mine...)), errLost)
	client.FailAfter(nil)
	require.NoError(t, slow.Complete(t.Context(), finished(mine...)))
	require.ErrorIs(t, slow.Complete(t.Context(), finished(mine...)), ErrStale, "it was told; now it is a mistake")
	require.Equal(t, int64(100), w.totals().Records)
}

// TestCompleteRepeatedAfterTheTurn: the pass may be over, and its lanes
// removed, when a lost reply is asked for.
func TestCompleteRepeatedAfterTheTurn(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{false, true} {
		w := setup(t, 1, Config{Lanes: 1, Passes: 3})
		q, client := w.client("a")
		steward := w.open("steward")
		mine := mustTake(t, q, 1)
		client.FailAfter(func(op, _ string) error { return errLost })
		require.ErrorIs(t, q.Complete(t.Context(), finished(mine...)), errLost)
		s, err := steward.Turn(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, 1, s.Pass)
		if remove {
			require.NoError(t, steward.RemovePasses(t.Context(), 1))
		}
		client.FailAfter(nil)
		eventually(t, func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.view.state.Pass == 1
		})
		require.NoError(t, q.Complete(t.Context(), finished(mine...)))
		require.ErrorIs(t, q.Complete(t.Context(), finished(mine...)), ErrStale)
	}
}

// TestGuards: a guard that does not hold stops everything, and the tasks are
// still the taker's.
func TestGuards(t *testing.T) {
	t.Parallel()
	w := setup(t, 4, Config{})
	owners, err := w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", []byte("1"), 0)}})
	require.NoError(t, err)
	q, client := w.client("a")
	other := w.open("b")
	mine := mustTake(t, q, 3)
	view := store.Unchanged("owners", owners.Revision)
	require.NoError(t, q.Complete(t.Context(), finished(mine[0]), view, store.Created("owners", owners.Revision), store.Absent("nothing")))
	moved, err := w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", []byte("2"), 0)}})
	require.NoError(t, err)
	require.ErrorIs(t, q.Complete(t.Context(), finished(mine[1:]...), view), ErrGuard)
	require.ErrorIs(t, q.Complete(t.Context(), finished(mine[1:]...), store.Absent("owners")), ErrGuard)
	require.Equal(t, int64(1), w.totals().Complete)
	require.NoError(t, q.Complete(t.Context(), finished(mine[1:]...), store.Unchanged("owners", moved.Revision)))

	// Also when the lanes move at the same time.
	mine = mustTake(t, q, 1)
	requeued := 0
	client.Fail(func(op, _ string) error {
		if op == "put" && requeued == 0 {
			requeued, err = other.Requeue(t.Context(), registry())
		}
		return err
	})
	require.ErrorIs(t, q.Complete(t.Context(), finished(mine...), view), ErrGuard)
	require.Equal(t, 1, requeued)
	require.ErrorIs(t, q.Complete(t.Context(), finished(mine...)), ErrStale)
}

// TestManyLanesInOneReport: more lanes than a transaction may have are reported
// in several.
func TestManyLanesInOneReport(t *testing.T) {
	t.Parallel()
	w := setup(t, 200, Config{Lanes: 100})
	q := w.open("a")
	var all []Task
	for len(all) < 200 {
		all = append(all, mustTake(t, q, 200)...)
	}
	require.NoError(t, q.Touch(t.Context(), all, ""))
	require.NoError(t, q.Release(t.Context(), all[150:]))
	require.NoError(t, q.Complete(t.Context(), finished(all[:150]...)))
	require.Equal(t, Totals{Chunks: 200, Todo: 50, Complete: 150, Takes: 200, Batches: 1500, Records: 15000}, w.totals())
	require.NoError(t, q.Complete(t.Context(), nil))
}

// TestFailuresAreCounted across takers and apart from losses.
func TestFailuresAreCounted(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{Lanes: 1, MaxFailures: 3})
	steward := w.open("steward")
	for i := range 20 {
		q := w.open(fmt.Sprintf("killed-%d", i))
		mustTake(t, q, 1)
		_, err := steward.Requeue(t.Context(), registry())
		require.NoError(t, err)
	}
	for i := range 3 {
		require.Zero(t, w.totals().Failed)
		q := w.open(fmt.Sprintf("taker-%d", i))
		require.NoError(t, q.Fail(t.Context(), mustTake(t, q, 1)[0], fmt.Sprintf("reason %d", i), nil))
	}
	require.Equal(t, Totals{Chunks: 1, Failed: 1, Takes: 23, Requeued: 20}, w.totals())
	failed, err := steward.FailedChunks(t.Context())
	require.NoError(t, err)
	require.Equal(t, "reason 2", failed[0].Reason)
	s, err := steward.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, PhaseFailed, s.Phase)
	require.Equal(t, "every chunk of pass 0 failed; chunk 0: reason 2", s.Reason)
}

// TestAllChunksFail: a job that fails so stays in the pass that it failed in.
func TestAllChunksFail(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{Lanes: 1, MaxFailures: 1, Passes: 2})
	q := w.open("q")
	require.NoError(t, q.Fail(t.Context(), mustTake(t, q, 1)[0], "bad", nil))
	s, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, PhaseFailed, s.Phase)
	require.Zero(t, w.state().Pass)
	_, err = q.Manifest(t.Context(), 1)
	require.ErrorIs(t, err, ErrNoPass)
}

// TestStrangeTasks: reports on chunks that are nobody's do no harm.
func TestStrangeTasks(t *testing.T) {
	t.Parallel()
	w := setup(t, 4, Config{})
	q := w.open("a")
	for _, task := range []Task{{}, {Pass: 7}, {Lane: 99}, {Lane: 1, Position: 99, Token: 5}} {
		require.ErrorIs(t, q.Complete(t.Context(), finished(task)), ErrStale)
		require.ErrorIs(t, q.Fail(t.Context(), task, "", nil), ErrStale)
	}
	require.Equal(t, int64(4), w.totals().Todo)
}
