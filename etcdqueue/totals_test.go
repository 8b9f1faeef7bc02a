package etcdqueue

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// turnPass trains the current pass to its end and begins the next one.
func turnPass(t *testing.T, q *Queue) {
	t.Helper()
	drain(t, q, 8)
	_, err := q.Turn(t.Context(), nil)
	require.NoError(t, err)
}

// TestTotalsEnd: the sums are told although a pass turns, and passes are
// removed, at every read.
func TestTotalsEnd(t *testing.T) {
	t.Parallel()
	w := setup(t, 2, Config{Passes: 1000})
	q := w.open("a")
	for range 40 {
		turnPass(t, q)
	}
	for name, ask := range map[string]func(*Queue) (Totals, State, error){
		"totals":   func(q *Queue) (Totals, State, error) { return q.Totals(t.Context()) },
		"progress": func(q *Queue) (Totals, State, error) { return q.Progress(t.Context()) },
	} {
		reader, client := w.client("reader-" + name)
		reads, before := 0, w.state()
		client.Fail(serial(func(_, key string) error {
			if strings.HasSuffix(key, "/"+stateKey) {
				reads++
				turnPass(t, q)
				require.NoError(t, q.RemovePasses(t.Context(), before.Floor+5*reads))
			}
			return nil
		}))
		sum, s, err := ask(reader)
		require.NoError(t, err, name)
		require.LessOrEqual(t, reads, 5, name)
		require.Greater(t, s.Pass, before.Pass, name)
		require.GreaterOrEqual(t, sum.Complete, int64(2*before.Pass), "%s: no pass is forgotten", name)
		require.LessOrEqual(t, sum.Complete, int64(2*s.Pass+2), "%s: none counts twice", name)
		require.Equal(t, 100*sum.Complete, sum.Records, name)
	}
}

// TestProgress: an estimate that is right where passes are alike, and whose
// cost does not grow with their number.
func TestProgress(t *testing.T) {
	t.Parallel()
	w := setup(t, 6, Config{Passes: 1000})
	q := w.open("a")
	reader, client := w.client("reader")
	var ops int
	client.Fail(serial(func(string, string) error { ops++; return nil }))
	same := func() int {
		t.Helper()
		ops = 0
		sum, s, err := reader.Progress(t.Context())
		require.NoError(t, err)
		require.Equal(t, w.totals(), sum)
		require.Equal(t, w.state(), s)
		return ops
	}
	same() // nothing was taken yet
	mustTake(t, w.open("b"), 1)
	same()
	_, err := q.Requeue(t.Context(), registry())
	require.NoError(t, err)
	turnPass(t, q) // the pass with the requeued chunk is not like the others
	require.NoError(t, q.RemovePasses(t.Context(), 1))
	for range 2 {
		turnPass(t, q)
		same()
	}
	few := same()
	for range 50 {
		turnPass(t, q)
	}
	require.Equal(t, few, same(), "the cost is that of a few passes")
	require.NoError(t, q.RemovePasses(t.Context(), 30))
	same()

	// A shard that has lost passes shows as work to be done again.
	for pass := 40; pass < w.state().Pass; pass++ {
		_, err := q.Reopen(t.Context(), pass, 0, ranges.Of(0, 0), nil)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, same(), 3+3*groupPasses)
	for pass := 30; pass < 40; pass++ {
		_, err := q.Reopen(t.Context(), pass, 0, ranges.Of(0, 0), nil)
		require.NoError(t, err)
	}
	sum, s, err := reader.Progress(t.Context())
	require.NoError(t, err)
	require.Equal(t, w.totals().Chunks, sum.Chunks)
	require.Equal(t, -1, sample(s), "there is no pass that is whole")
	require.Less(t, sum.Complete, int64(6*s.Pass))
}

// sample is the pass that Progress takes for others; -1 if there is none.
func sample(s State) int {
	if p := s.newestFinished(); p >= s.Floor {
		return p
	}
	return -1
}

func TestProgressWithoutAQueue(t *testing.T) {
	t.Parallel()
	w := setup(t, 1, Config{})
	_, err := w.store.Txn(t.Context(), store.Txn{Then: []store.Op{store.Delete(prefix + stateKey)}})
	require.NoError(t, err)
	_, _, err = w.open("a").Progress(t.Context())
	require.ErrorIs(t, err, ErrNoQueue)
	_, _, err = w.open("a").Totals(t.Context())
	require.ErrorIs(t, err, ErrNoQueue)
}
