package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"starfish/internal/ranges"
	"starfish/internal/store"
	"starfish/internal/store/storetest"
)

// What the fake cannot prove, over a real etcd.

func TestTwentyTakersOverEtcd(t *testing.T) {
	t.Parallel()
	for _, shuffle := range []bool{false, true} {
		t.Run(fmt.Sprintf("shuffle %v", shuffle), func(t *testing.T) {
			t.Parallel()
			runTwenty(t, storetest.Embedded(t), 100, shuffle)
		})
	}
}

// TestRequestsFitIntoEtcd: the largest transactions that the queue makes stay
// inside etcd's limits.
func TestRequestsFitIntoEtcd(t *testing.T) {
	t.Parallel()
	st := storetest.Embedded(t)
	q, err := New(Config{Store: st, Lanes: 200, Passes: 3, Name: "a", Incarnation: "a"})
	require.NoError(t, err)
	defer q.Close()
	require.NoError(t, q.Create(t.Context(), Manifest{Chunks: 400}))
	guards := func() (g []store.Cmp) {
		for i := range 20 {
			g = append(g, store.Absent(fmt.Sprintf("guard/%d", i)))
		}
		return g
	}
	for range 2 {
		var all []Task
		for len(all) < 400 {
			tasks, err := q.Take(t.Context(), 1000)
			require.NoError(t, err)
			all = append(all, tasks...)
		}
		require.NoError(t, q.Touch(t.Context(), all, "waits"))
		require.NoError(t, q.Complete(t.Context(), finished(all...), guards()...))
		s, err := q.Turn(t.Context(), nil, guards()...)
		require.NoError(t, err)
		require.Equal(t, PhaseTraining, s.Phase)
	}
	lanes := make(map[int]ranges.Set)
	for lane := range 200 {
		lanes[lane] = ranges.Of(0, 1)
	}
	n, err := q.ReopenLanes(t.Context(), 1, lanes, guards)
	require.NoError(t, err)
	require.Equal(t, int64(400), n)
	_, err = q.Take(t.Context(), 1000)
	require.NoError(t, err)
	moved, err := q.Requeue(t.Context(), registry(), guards()...)
	require.NoError(t, err)
	require.Equal(t, 32, moved)
	require.NoError(t, q.RemovePasses(t.Context(), 2, guards()...))
	s, err := q.State(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{s.Floor, s.Reopened[0]})
}

// TestManyChunksComeBack: of 100,000 chunks, which nobody has had to write into
// the store, a taker has 5000 when it dies; they come back in one go, and no
// record is larger than a few hundred bytes.
func TestManyChunksComeBack(t *testing.T) {
	t.Parallel()
	const all, lost = 100_000, 5000
	st := storetest.Embedded(t)
	q, err := New(Config{Store: st, Passes: 1, Name: "a", Incarnation: "a"})
	require.NoError(t, err)
	defer q.Close()
	require.NoError(t, q.Create(t.Context(), Manifest{Chunks: all}))
	kvs, _, err := store.List(t.Context(), st, "", store.PrefixEnd("q"))
	require.NoError(t, err)
	require.Len(t, kvs, 1, "the pass; and state")
	taken := 0
	for taken < lost {
		tasks, err := q.Take(t.Context(), lost-taken)
		require.NoError(t, err)
		taken += len(tasks)
	}
	n, err := q.Requeue(t.Context(), registry())
	require.NoError(t, err)
	require.Equal(t, lost, n)
	totals, _, err := q.Totals(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, all, totals.Todo)
	require.EqualValues(t, lost, totals.Requeued)
	kvs, _, err = store.List(t.Context(), st, "queue/", store.PrefixEnd("queue/"))
	require.NoError(t, err)
	for _, kv := range kvs {
		require.Less(t, len(kv.Value), 400, kv.Key)
	}
}

// TestPassesTurnFast: a small job goes through its passes without waiting for
// anybody's clock. Two takers and a steward do 20 passes of 36 chunks.
func TestPassesTurnFast(t *testing.T) {
	t.Parallel()
	const passes = 20
	st := storetest.Embedded(t)
	open := func(name string) *Queue {
		q, err := New(Config{
			Store: st, Passes: passes, Shuffle: true, Seed: 1, Name: name, Incarnation: name, Peers: func() int { return 2 },
		})
		require.NoError(t, err)
		t.Cleanup(q.Close)
		return q
	}
	steward := open("steward")
	require.NoError(t, steward.Create(t.Context(), Manifest{Chunks: 36}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var group errgroup.Group
	for i := range 2 {
		q := open(fmt.Sprintf("trainer-%d", i))
		group.Go(func() error {
			for {
				tasks, err := q.Take(ctx, 9)
				switch {
				case errors.Is(err, ErrEmpty):
					err = q.Changed(ctx)
				case err == nil:
					err = q.Complete(ctx, finished(tasks...))
				}
				if err != nil {
					return err
				}
			}
		})
	}
	began := time.Now() //nolint:forbidigo // a test may look at the clock
	for {
		require.NoError(t, steward.AwaitTurn(ctx))
		s, err := steward.Turn(ctx, nil)
		require.NoError(t, err)
		if s.Phase == PhaseDraining {
			break
		}
	}
	took := time.Since(began) //nolint:forbidigo // a test may look at the clock
	t.Logf("%.1f ms a pass", took.Seconds()*1000/passes)
	require.Less(t, took, passes*silence/2, "it waits for something")
	stop()
	require.ErrorIs(t, group.Wait(), context.Canceled)
	sum, _, err := steward.Totals(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(passes*36), sum.Complete)
	require.Equal(t, int64(passes*36), sum.Takes)
}

func TestDial(t *testing.T) {
	t.Parallel()
	cluster := Etcd{Endpoints: storetest.Endpoints(t)}
	_, err := Dial(t.Context(), cluster, "/alone", Config{Lanes: -1})
	require.ErrorContains(t, err, "lanes")
	q, err := Dial(t.Context(), cluster, "/alone/", Config{Name: "a", Incarnation: "a"})
	require.NoError(t, err)
	defer q.Close()
	require.NoError(t, q.Create(t.Context(), Manifest{Chunks: 3}))
	require.Len(t, drain(t, q, 2), 3)
	kv, err := store.Lookup(t.Context(), storetest.Dial(t), "/alone/state")
	require.NoError(t, err)
	require.True(t, kv.Exists())
	q.Close()
	_, err = q.Take(t.Context(), 1)
	require.ErrorIs(t, err, ErrClosed)
}
