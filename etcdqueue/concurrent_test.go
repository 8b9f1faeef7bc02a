package etcdqueue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// tally counts who trained what.
type tally struct {
	mu    sync.Mutex
	count map[Task]int // by pass and rank only
	total int
}

func (c *tally) add(tasks []Task) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range tasks {
		c.count[Task{Pass: t.Pass, Rank: t.Rank}]++
		c.total++
	}
	return c.total
}

// runTwenty starts twenty takers at once on an empty store. Each tries to
// create the queue. Together they go over three passes, which whoever sees one
// finished turns.
func runTwenty(t *testing.T, st store.Store, n int64, shuffle bool) {
	t.Helper()
	const takers, passes = 20, 3
	counted := tally{count: make(map[Task]int)}
	work, ctx := errgroup.WithContext(t.Context())
	start := make(chan struct{})
	for i := range takers {
		name := fmt.Sprintf("trainer-%d", i)
		q, err := New(Config{
			Store: st, Lanes: 16, Shuffle: shuffle, Passes: passes, Name: name, Incarnation: name,
			Peers: func() int { return takers },
		})
		require.NoError(t, err)
		t.Cleanup(q.Close)
		work.Go(func() error {
			<-start
			if err := q.Create(ctx, Manifest{Chunks: n}); err != nil {
				return err
			}
			for {
				tasks, err := q.Take(ctx, 5)
				switch {
				case errors.Is(err, ErrEmpty):
					s, err := q.Turn(ctx, nil)
					if err != nil || s.Phase == PhaseDraining {
						return err
					}
					if err := q.Changed(ctx); err != nil {
						return err
					}
				case errors.Is(err, ErrNoQueue):
					return errors.New("created, and not there")
				case err != nil:
					return err
				default:
					counted.add(tasks)
					if err := q.Complete(ctx, finished(tasks...)); err != nil {
						return err
					}
				}
			}
		})
	}
	close(start)
	require.NoError(t, work.Wait())
	require.Len(t, counted.count, passes*int(n))
	for task, times := range counted.count {
		require.Equal(t, 1, times, "%+v", task)
	}
	q, err := New(Config{Store: st})
	require.NoError(t, err)
	defer q.Close()
	sum, _, err := q.Totals(t.Context())
	require.NoError(t, err)
	require.Equal(t, Totals{Chunks: passes * n, Complete: passes * n, Takes: passes * n, Batches: 10 * passes * n, Records: 100 * passes * n}, sum)
}

func TestTwentyTakersAtOnce(t *testing.T) {
	t.Parallel()
	for _, shuffle := range []bool{false, true} {
		t.Run(fmt.Sprintf("shuffle %v", shuffle), func(t *testing.T) {
			t.Parallel()
			runTwenty(t, store.Prefixed(fake.New(fake.Options{}), prefix), 150, shuffle)
		})
	}
}

// TestCompleteRacesRequeue: ten thousand times a report and a requeue of the
// same chunk are let loose at once. Exactly one of them has its way, and the
// reporter is told which.
func TestCompleteRacesRequeue(t *testing.T) {
	t.Parallel()
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	w := setup(t, int64(n), Config{Lanes: 4, MaxFailures: 1 << 30})
	q, steward := w.open("q"), w.open("steward")
	won := make(map[string]int)
	for range n {
		task := mustTake(t, q, 1)[0]
		verb := rand.IntN(16)
		spin := rand.IntN(40)
		var group sync.WaitGroup
		var requeued int
		var requeueErr error
		group.Go(func() {
			requeued, requeueErr = steward.Requeue(t.Context(), registry())
		})
		for range spin {
			runtime.Gosched()
		}
		var err error
		switch verb {
		case 0:
			err = q.Release(t.Context(), []Task{task})
		case 1:
			err = q.Fail(t.Context(), task, "bad", nil)
		default:
			err = q.Complete(t.Context(), finished(task))
		}
		group.Wait()
		require.NoError(t, requeueErr)
		if err != nil {
			require.ErrorIs(t, err, ErrStale)
		}
		require.Equal(t, err == nil, requeued == 0, "verb %d: %v, and %d requeued", verb, err, requeued)
		won[fmt.Sprint("stale ", err != nil, " complete ", verb > 1)]++
	}
	require.Len(t, won, 4, "both have won: %v", won)
	sum := w.totals()
	require.Equal(t, int64(won["stale false complete true"]), sum.Complete)
	require.Equal(t, int64(won["stale true complete true"]+won["stale true complete false"]), sum.Requeued)
	require.Zero(t, sum.Pending)
	require.Equal(t, 10*sum.Complete, sum.Batches)
}
