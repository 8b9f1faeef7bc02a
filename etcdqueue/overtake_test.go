package etcdqueue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
)

// overtaking is a queue of six chunks of which `slow` has taken some, and idle.
func overtaking(t *testing.T, take int, change func(*Config)) (w *world, slow, idle *Queue, tasks []Task) {
	t.Helper()
	c := Config{Clock: clock.System, Lanes: 1, Speculate: 5 * time.Second}
	if change != nil {
		change(&c)
	}
	w = setup(t, 6, c)
	slow, idle = w.open("slow"), w.open("idle")
	tasks = mustTake(t, slow, take)
	require.Len(t, tasks, take)
	return w, slow, idle, tasks
}

// waited is how long it takes until a taker without anything Todo gets what it
// wants, at most an hour, and what that is.
func waited(t *testing.T, q *Queue, max int) (time.Duration, []Task) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for {
		tasks, err := q.Take(t.Context(), max)
		if err == nil {
			return time.Since(began), tasks
		}
		require.ErrorIs(t, err, ErrEmpty)
		if q.Changed(ctx) != nil {
			return time.Since(began), nil
		}
	}
}

// TestOvertake: who has nothing to do takes over what another has had for five
// seconds without a sign of progress, the last first; the other learns that it is
// not its own any more, and keeps the rest.
func TestOvertake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, slow, idle, tasks := overtaking(t, 6, nil)
		took, got := waited(t, idle, 2)
		require.Equal(t, 5*time.Second, took)
		require.Equal(t, []int64{4, 5}, ranks(got))
		require.Greater(t, got[0].Token, tasks[0].Token)
		require.NoError(t, slow.Touch(t.Context(), tasks[:4], "progress"))
		require.ErrorIs(t, slow.Complete(t.Context(), finished(tasks[3:]...)), ErrStale)
		require.ErrorIs(t, slow.Fail(t.Context(), tasks[5], "bad", nil), ErrStale)
		require.NoError(t, idle.Complete(t.Context(), finished(got...)))
		sum := w.totals()
		require.EqualValues(t, []int64{3, 3, 8, 2, 0}, []int64{sum.Pending, sum.Complete, sum.Takes, sum.Speculated, sum.Requeued})
		// Each sign of progress begins the wait anew.
		time.Sleep(3 * time.Second) //nolint:forbidigo // virtual time
		require.NoError(t, slow.Touch(t.Context(), tasks[:1], "progress"))
		synctest.Wait()
		took, got = waited(t, idle, 9)
		require.Equal(t, 5*time.Second, took)
		require.Equal(t, []int64{0, 1, 2}, ranks(got))
	})
}

// TestOvertakeIsPatient: nobody is overtaken by one that has something in hand, or
// is slow itself, or by itself; and each time that a chunk is taken over the next
// one waits twice as long.
func TestOvertakeIsPatient(t *testing.T) {
	t.Parallel()
	wait := func(t *testing.T, want time.Duration, q *Queue, n int) {
		t.Helper()
		took, tasks := waited(t, q, 6)
		require.Equal(t, want, took)
		require.Len(t, tasks, n)
	}
	synctest.Test(t, func(t *testing.T) { // something in hand
		_, _, idle, _ := overtaking(t, 4, nil)
		mine := mustTake(t, idle, 2)
		wait(t, time.Hour, idle, 0)
		require.NoError(t, idle.Complete(t.Context(), finished(mine...)))
		wait(t, 5*time.Second, idle, 4) // it looks at others only when it is idle
	})
	synctest.Test(t, func(t *testing.T) { // slow itself
		_, _, idle, _ := overtaking(t, 6, func(c *Config) { c.Pace = func() time.Duration { return 3 * time.Second } })
		wait(t, 12*time.Second, idle, 6)
	})
	synctest.Test(t, func(t *testing.T) { // not allowed
		_, _, idle, _ := overtaking(t, 6, func(c *Config) { c.Speculate = 0 })
		wait(t, time.Hour, idle, 0)
	})
	synctest.Test(t, func(t *testing.T) { // by turns
		_, slow, idle, tasks := overtaking(t, 6, nil)
		wait(t, 5*time.Second, idle, 6)
		require.ErrorIs(t, slow.Touch(t.Context(), tasks, ""), ErrStale)
		wait(t, 10*time.Second, slow, 6)
		wait(t, 20*time.Second, third(t, slow), 6)
	})
}

// third is a third taker of q's queue.
func third(t *testing.T, q *Queue) *Queue {
	t.Helper()
	c := q.c
	c.Name, c.Incarnation = "third", "third"
	taker, err := New(c)
	require.NoError(t, err)
	t.Cleanup(taker.Close)
	return taker
}

// TestOvertakeLost: an overtaking whose answer was lost is found again, and is
// nobody else's.
func TestOvertakeLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 2, Config{Clock: clock.System, Lanes: 1, Speculate: time.Second})
		slow := w.open("slow")
		tasks := mustTake(t, slow, 2)
		idle, client := w.client("idle")
		hits := 0
		client.FailAfter(serial(once("put", "queue/", 0, &hits)))
		took, got := waited(t, idle, 2)
		require.Len(t, got, 2)
		require.Less(t, took, 2*time.Second)
		require.Equal(t, 1, hits)
		require.EqualValues(t, 2, w.totals().Speculated)
		require.ErrorIs(t, slow.Complete(t.Context(), finished(tasks...)), ErrStale)
	})
}
