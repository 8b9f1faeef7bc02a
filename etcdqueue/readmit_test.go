package etcdqueue

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

// quarantined is a queue whose chunks of the first pass are all complete but
// for those, which are quarantined.
func quarantined(t *testing.T, n int64, c Config, bad ...int64) *world {
	t.Helper()
	c.MaxFailures, c.Passes = 1, 2
	w := setup(t, n, c)
	q := w.open("a")
	for _, task := range mustTake(t, q, int(n)) {
		if isBad(task.Chunk, bad) {
			require.NoError(t, q.Fail(t.Context(), task, "bad", nil))
		} else {
			require.NoError(t, q.Complete(t.Context(), finished(task)))
		}
	}
	return w
}

func isBad(chunk int64, bad []int64) bool {
	for _, b := range bad {
		if b == chunk {
			return true
		}
	}
	return false
}

// TestReadmit: what is taken back is trained like any other chunk, and its sums
// count once.
func TestReadmit(t *testing.T) {
	t.Parallel()
	w := quarantined(t, 40, Config{Shuffle: true, Seed: 3}, 4, 17, 30)
	q := w.open("b")
	pass, err := q.Readmit(t.Context(), []int64{4, 30})
	require.NoError(t, err)
	require.Zero(t, pass)
	require.ElementsMatch(t, []int64{4, 30}, chunks(drain(t, q, 5)))
	require.Equal(t, Totals{Chunks: 40, Complete: 39, Failed: 1, Takes: 42, Batches: 390, Records: 3900}, w.totals())
	m, err := q.Manifest(t.Context(), 0)
	require.NoError(t, err)
	for chunk := range int64(40) {
		require.Equal(t, chunk, q.Chunk(m, 0, q.Rank(m, 0, chunk)))
	}
	sums, s, err := q.PassTotals(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[int]Totals{0: w.totals()}, sums)
	require.Zero(t, s.Pass)
	_, err = q.Readmit(t.Context(), []int64{17, 4})
	require.ErrorIs(t, err, ErrNotQuarantined)
	require.ErrorContains(t, err, "chunk 4")
	failed, err := q.FailedChunks(t.Context())
	require.NoError(t, err)
	require.Empty(t, failed, "17 was before it")
	_, err = q.Readmit(t.Context(), []int64{-1})
	require.ErrorIs(t, err, ErrNotQuarantined)
	require.Equal(t, []int64{17}, chunks(mustTake(t, q, 1)))
	require.NoError(t, q.Finish(t.Context(), PhaseFailed, "over", nil))
	_, err = q.Readmit(t.Context(), []int64{1})
	require.ErrorIs(t, err, ErrNotQuarantined)
}

// TestReadmitWithLostAnswers: whichever answer is lost, the chunk is back.
func TestReadmitWithLostAnswers(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		w := quarantined(t, 4, Config{}, 2)
		q, client := w.client("b")
		hits := 0
		fail := client.Fail
		if after {
			fail = client.FailAfter
		}
		fail(serial(once("delete", "failed/", 0, &hits)))
		_, err := q.Readmit(t.Context(), []int64{2})
		require.NoError(t, err)
		require.Equal(t, []int64{2}, chunks(drain(t, q, 4)))
	}
}

// TestManyQuarantinedChunksAreSkipped: more than one take has room for.
func TestManyQuarantinedChunksAreSkipped(t *testing.T) {
	t.Parallel()
	for _, shuffle := range []bool{false, true} {
		var bad []int64
		for c := range int64(300) {
			if c != 7 && c != 299 {
				bad = append(bad, c)
			}
		}
		w := quarantined(t, 300, Config{Shuffle: shuffle}, bad...)
		_, err := w.open("s").Turn(t.Context(), nil)
		require.NoError(t, err)
		require.ElementsMatch(t, []int64{7, 299}, chunks(drain(t, w.open("b"), 10)))
		require.EqualValues(t, 596, w.totals().Failed)
	}
}

// TestFailThatCameToNothing: a last failure that was worked out, lost, and then
// not needed, because the chunk was taken back meanwhile, leaves no belief behind
// that the chunk is in quarantine.
func TestFailThatCameToNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{Lanes: 1, MaxFailures: 1})
	q, client := w.client("q")
	task := mustTake(t, q, 1)[0]
	hits := 0
	client.Fail(serial(func(op, key string) error {
		err := once("put", "queue/", 0, &hits)(op, key)
		if err != nil {
			_, requeueErr := w.open("steward").Requeue(t.Context(), registry())
			require.NoError(t, requeueErr)
		}
		return err
	}))
	require.NoError(t, q.Fail(t.Context(), task, "bad", nil), "it cannot know whether it was that which ended its take")
	require.Equal(t, 1, hits)
	q.mu.Lock()
	believed := q.view.failed.has(task.Chunk)
	q.mu.Unlock()
	require.False(t, believed, "the taker believes in a quarantine that there is not")
	tasks, err := q.Take(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	require.Zero(t, w.totals().Failed)
}

// deaf is a store whose watches bring nothing.
type deaf struct{ store.Store }

func (deaf) Watch(ctx context.Context, _, _ string, _ int64) <-chan store.WatchResponse {
	out := make(chan store.WatchResponse)
	go func() {
		defer close(out)
		<-ctx.Done()
	}()
	return out
}

// TestQuarantinedByItselfAndReadmitted: a taker that has put a chunk into
// quarantine, and has heard of nothing since, does not skip the chunk after it was
// taken back.
func TestQuarantinedByItselfAndReadmitted(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{Lanes: 1, MaxFailures: 1})
	c := w.config
	c.Store, c.Name, c.Incarnation = deaf{w.job()}, "q", "q"
	q, err := New(c)
	require.NoError(t, err)
	t.Cleanup(q.Close)
	require.NoError(t, q.Fail(t.Context(), mustTake(t, q, 1)[0], "bad", nil))
	require.EqualValues(t, 1, w.totals().Failed)
	_, err = w.open("operator").Readmit(t.Context(), []int64{0})
	require.NoError(t, err)
	_, err = q.reread(t.Context(), []laneID{{0, 0}}) // as a report on another chunk does
	require.NoError(t, err)
	tasks, err := q.Take(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, tasks, 1)
	require.Zero(t, w.totals().Failed)
}
