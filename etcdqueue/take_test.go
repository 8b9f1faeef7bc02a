package etcdqueue

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// TestAnOldCopyIsNotBelieved: that a task is not ours is read again before it
// is said.
func TestAnOldCopyIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Lanes: 1})
	q := w.open("a")
	first := mustTake(t, q, 1)
	q.mu.Lock()
	old := q.view.passes[0].lanes[0]
	q.mu.Unlock()
	second := mustTake(t, q, 1)
	q.mu.Lock()
	q.view.passes[0].lanes[0] = old
	q.mu.Unlock()
	require.NoError(t, q.Complete(t.Context(), finished(second...)))
	require.NoError(t, q.Complete(t.Context(), finished(first...)))
}

func TestShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		count     int64
		peers     int
		todo, get int64
	}{
		{10, 0, 100, 10}, {10, 1, 3, 10}, {10, 2, 100, 10}, {10, 2, 20, 5}, {10, 2, 3, 1}, {100, 5, 100, 10}, {1, 9, 1, 1},
	} {
		require.Equal(t, c.get, wish{count: c.count, peers: c.peers}.share(c.todo), "%+v", c)
	}
}

// TestPlanLeavesOthersAlone: lanes in which others work come last, after a
// conflict some ranks are left out, but never more than a row of lanes.
func TestPlanLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	c := Config{Name: "a", Incarnation: "a", Shuffle: true}
	p := newPassView(&c, 0, Manifest{Chunks: 40}, 1, 1, 4)
	w := wish{count: 1, peers: 2}
	first := p.plan(w, nil)[0].lane
	l, _ := p.lanes[first].lane.Take(p.lanes[first].lane.Todo.First(1), "b", Holder{"b", 2})
	p.set(first, slot{lane: l, rev: 2, seen: 2})
	second := p.plan(w, nil)[0].lane
	require.NotEqual(t, first, second)
	w.avoid = map[int]bool{second: true}
	require.NotContains(t, []int{first, second}, p.plan(w, nil)[0].lane)

	c.Shuffle = false
	p = newPassView(&c, 0, Manifest{Chunks: 40}, 1, 1, 4)
	for skip, lane := range map[int64]int{0: 0, 1: 1, 3: 3, 4: 3, 99: 3} {
		w := wish{count: 1, peers: 2, skip: skip}
		require.Equal(t, lane, p.plan(w, nil)[0].lane, "skip %d", skip)
	}
}

// TestTakesInDataOrder is the same over a store, with conflicts between
// reports and takes of the same lanes.
func TestTakesInDataOrder(t *testing.T) {
	t.Parallel()
	for _, max := range []int{1, 2, 5, 7, 50} {
		w := setup(t, 23, Config{})
		q := w.open("a")
		all := drain(t, q, max)
		want := make([]int64, 23)
		for i := range want {
			want[i] = int64(i)
		}
		require.Equal(t, want, ranks(all), "take %d", max)
		require.Equal(t, want, chunks(all))
		require.Equal(t, Totals{Chunks: 23, Complete: 23, Takes: 23, Batches: 230, Records: 2300}, w.totals())
	}
}

func TestShuffledPassHasEveryChunkOnce(t *testing.T) {
	t.Parallel()
	w := setup(t, 100, Config{Shuffle: true, Seed: 7, Lanes: 8})
	all := drain(t, w.open("a"), 9)
	seen := make(map[int64]bool)
	for i, task := range all {
		require.False(t, seen[task.Chunk])
		seen[task.Chunk] = true
		require.Equal(t, task.Rank, task.Position*8+int64(task.Lane))
		require.True(t, i == 0 || all[i-1].Lane != task.Lane || all[i-1].Position+1 == task.Position, "a lane is emptied in order")
	}
	require.Len(t, all, 100)
}

// TestMoreLanesThanChunks: lanes without chunks are finished from the start.
func TestMoreLanesThanChunks(t *testing.T) {
	t.Parallel()
	w := setup(t, 3, Config{Lanes: 64, Passes: 2})
	q := w.open("a")
	require.Len(t, drain(t, q, 10), 3)
	s, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, s.Pass)
	require.Len(t, drain(t, q, 10), 3)
}

func TestTakeByPhase(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{})
	q := w.open("a")
	_, err := q.Take(t.Context(), 0)
	require.Error(t, err)
	mine := mustTake(t, q, 2)
	_, err = q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrEmpty)
	require.NoError(t, q.Complete(t.Context(), finished(mine...)))
	_, err = q.Turn(t.Context(), nil)
	require.NoError(t, err)
	_, err = q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrEmpty, "draining")
	require.NoError(t, q.Finish(t.Context(), PhaseComplete, "", nil))
	eventually(t, func() bool {
		_, err = q.Take(t.Context(), 1)
		return !errors.Is(err, ErrEmpty)
	})
	require.ErrorIs(t, err, ErrDone)

	w = setup(t, 2, Config{})
	require.NoError(t, w.open("pserver").Finish(t.Context(), PhaseFailed, "weights are not finite", nil))
	_, err = w.open("a").Take(t.Context(), 1)
	var failed *ErrFailed
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "weights are not finite", failed.Reason)
}

func TestNoQueue(t *testing.T) {
	t.Parallel()
	w := &world{t: t, store: fake.New(fake.Options{})}
	q := w.open("a")
	_, err := q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrNoQueue)
	_, err = q.State(t.Context())
	require.ErrorIs(t, err, ErrNoQueue)
	require.NoError(t, w.open("b").Create(t.Context(), Manifest{Chunks: 1}))
	require.NoError(t, q.Changed(t.Context()), "its creation is seen")
	mustTake(t, q, 1)
	_, err = w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.DeleteRange("", "\x00")}})
	require.NoError(t, err)
	eventually(t, func() bool {
		_, err = q.Take(t.Context(), 1)
		return err == ErrNoQueue //nolint:errorlint // the sentinel itself
	})
	// The same name again is another job.
	require.NoError(t, w.open("c").Create(t.Context(), Manifest{Chunks: 2}))
	eventually(t, func() bool {
		tasks, err := q.Take(t.Context(), 9)
		return err == nil && len(tasks) == 2
	})
}

func TestUnreadableRecordsAreRefused(t *testing.T) {
	t.Parallel()
	for key, value := range map[string]string{
		stateKey:      `{"v":2}`,
		passKey(0):    `{"v":1,"chunks":-1}`,
		laneKey(0, 1): `{"v":1,"todo":"0-99"}`,
	} {
		w := setup(t, 8, Config{})
		_, err := w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(key, []byte(value), 0)}})
		require.NoError(t, err)
		q := w.open("a")
		_, err = q.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrFormat, key)
		require.ErrorIs(t, q.Changed(t.Context()), ErrFormat)
	}
	w := setup(t, 8, Config{Lanes: 4})
	w.config.Lanes = 5
	_, err := w.open("a").Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrMismatch)
}

// TestWaiters: Changed and AwaitTurn sleep until there is something to do, and
// ask the store nothing.
func TestWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 1, Config{Passes: 2})
		a := w.open("a")
		b, client := w.client("b")
		mine := mustTake(t, a, 1)
		_, err := b.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrEmpty)
		var requests, writes atomic.Int64
		client.Fail(func(op, _ string) error {
			requests.Add(1)
			if op == "put" {
				writes.Add(1)
			}
			return nil
		})
		woken, ripe := make(chan error, 1), make(chan error, 1)
		go func() { woken <- b.Changed(t.Context()) }()
		go func() { ripe <- b.AwaitTurn(t.Context()) }()
		synctest.Wait()
		require.NoError(t, a.Touch(t.Context(), mine, "shard 1"))
		synctest.Wait()
		require.Empty(t, woken, "a beat is nothing to take")
		require.Empty(t, ripe)

		require.NoError(t, a.Release(t.Context(), mine))
		require.NoError(t, <-woken)
		mine = mustTake(t, a, 1)
		synctest.Wait()
		_, err = b.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrEmpty)
		go func() { woken <- b.Changed(t.Context()) }()
		synctest.Wait()
		require.Empty(t, woken)
		require.NoError(t, a.Complete(t.Context(), finished(mine...)))
		require.NoError(t, <-ripe)
		synctest.Wait()
		require.Empty(t, woken, "a finished pass is nothing to take")
		_, err = a.Turn(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, <-woken)
		require.Zero(t, requests.Load())
		require.Equal(t, 1, mustTake(t, b, 1)[0].Pass)
		require.Equal(t, []int64{1, 3}, []int64{writes.Load(), requests.Load()}, "a take is one write, which reads two records if it must not be")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Take(ctx, 1)
		require.ErrorIs(t, err, ErrEmpty)
		require.ErrorIs(t, b.Changed(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, b.AwaitTurn(ctx), context.DeadlineExceeded)
	})
}

// TestFollowerHeals: broken, compacted and silent watches are made good.
func TestFollowerHeals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup(t, 4, Config{})
		a := w.open("a")
		b, client := w.client("b")
		mine := mustTake(t, a, 4)
		empty := func() {
			synctest.Wait()
			_, err := b.Take(t.Context(), 1)
			require.ErrorIs(t, err, ErrEmpty)
		}
		empty()
		// While b cannot watch, something is released and history is compacted.
		client.Partition(true)
		require.NoError(t, a.Release(t.Context(), mine[:1]))
		w.store.Compact(w.store.Revision())
		require.NoError(t, a.Touch(t.Context(), mine[1:], ""))
		w.store.Compact(w.store.Revision())
		client.Partition(false)
		require.NoError(t, b.Changed(t.Context()))
		require.Equal(t, mine[0].Chunk, mustTake(t, b, 1)[0].Chunk)

		// b starts while nothing is answered.
		c, client := w.client("c")
		failures := 0
		client.Fail(serial(func(string, string) error {
			if failures++; failures < 5 {
				return errLost
			}
			return nil
		}))
		require.NoError(t, a.Release(t.Context(), mine[1:2]))
		mustTake(t, c, 1)
	})
}

func TestClose(t *testing.T) {
	t.Parallel()
	w := setup(t, 4, Config{})
	q := w.open("a")
	mustTake(t, q, 4)
	_, err := q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrEmpty)
	woken := make(chan error)
	go func() { woken <- q.Changed(context.Background()) }()
	q.Close()
	require.ErrorIs(t, <-woken, ErrClosed)
	_, err = q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrClosed)
	q.Close()

	q = w.open("b")
	q.Close()
	_, err = q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrClosed)
}

// TestQuarantinedChunksAreSkipped in later passes.
func TestQuarantinedChunksAreSkipped(t *testing.T) {
	t.Parallel()
	w := setup(t, 6, Config{Passes: 2, MaxFailures: 1})
	q := w.open("a")
	mine := mustTake(t, q, 6)
	require.NoError(t, q.Fail(t.Context(), mine[4], "line 3: no label", json.RawMessage(`{"rank":4}`)))
	require.NoError(t, q.Complete(t.Context(), finished(append(mine[:4:4], mine[5])...)))
	_, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
	other := w.open("b")
	require.Equal(t, []int64{0, 1, 2, 3, 5}, chunks(drain(t, other, 2)))
	s, err := other.Turn(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, PhaseDraining, s.Phase)
	require.Equal(t, Totals{Chunks: 12, Complete: 10, Failed: 2, Takes: 11, Batches: 100, Records: 1000}, w.totals())
	failed, err := other.FailedChunks(t.Context())
	require.NoError(t, err)
	require.Equal(t, []FailedChunk{{V: 1, Chunk: 4, Reason: "line 3: no label", Failures: 1, Owner: "a", Incarnation: "a",
		Detail: json.RawMessage(`{"rank":4}`)}}, failed)
}

// TestHundredMillionChunks: what a queue costs does not depend on its length.
func TestHundredMillionChunks(t *testing.T) {
	t.Parallel()
	w := setup(t, 100_000_000, Config{Lanes: 64, Shuffle: true, Seed: 1})
	q := w.open("a")
	began := time.Now() //nolint:forbidigo // a test may look at the clock
	for range 20 {
		tasks := mustTake(t, q, 100)
		require.Len(t, tasks, 100)
		require.NoError(t, q.Complete(t.Context(), finished(tasks...)))
	}
	require.Less(t, time.Since(began), 2*time.Second) //nolint:forbidigo // a test may look at the clock
	bytes := 0
	for _, value := range w.store.Dump() {
		bytes += len(value)
	}
	require.Less(t, bytes, 2000)
	require.Equal(t, int64(100_000_000-2000), w.totals().Todo)
}
