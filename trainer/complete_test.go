package trainer

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// completeWorld is a round of a trainer that has all chunks of a queue, each in
// a lane of its own, and has finished them.
type completeWorld struct {
	*round
	t     *testing.T
	store *fake.Store
	own   *fake.Client
	other *etcdqueue.Queue
}

func newCompleteWorld(t *testing.T, chunks int64) *completeWorld {
	t.Helper()
	s := fake.New(fake.Options{})
	ops := append(etcdqueue.InitialOps(etcdqueue.Manifest{Chunks: chunks}, int(chunks)), membership.InitialOwners(2))
	_, err := s.Txn(t.Context(), store.Txn{Then: ops})
	require.NoError(t, err)
	w := &completeWorld{t: t, store: s, own: s.Client("own")}
	queue := func(st store.Store, name string) *etcdqueue.Queue {
		q, err := etcdqueue.New(etcdqueue.Config{Store: st, Lanes: int(chunks), Name: name, Incarnation: name, Passes: 1})
		require.NoError(t, err)
		t.Cleanup(func() { q.Close() })
		return q
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	w.other = queue(s, "other")
	w.round = &round{w: &worker{
		st: w.own, clock: clock.System, log: log, metrics: newMetrics(nil), queue: queue(w.own, "own"),
	}}
	w.view, err = membership.ReadView(t.Context(), s)
	require.NoError(t, err)
	for int64(len(w.w.hand.tasks())) < chunks {
		tasks, err := w.w.queue.Take(t.Context(), int(chunks))
		require.NoError(t, err)
		w.w.hand.add(tasks)
	}
	for _, h := range w.w.hand.all() {
		h.finished, h.counted, h.sums = true, true, etcdqueue.Sums{Batches: 1, Records: 8}
	}
	return w
}

// steal gives the chunk at a place of the hand to the other trainer.
func (w *completeWorld) steal(i int) {
	w.t.Helper()
	stolen := w.w.hand.tasks()[i]
	require.NoError(w.t, w.w.queue.Release(w.t.Context(), []etcdqueue.Task{stolen}))
	require.Eventually(w.t, func() bool {
		tasks, err := w.other.Take(w.t.Context(), 1)
		return err == nil && len(tasks) == 1 && tasks[0].Rank == stolen.Rank
	}, 5*time.Second, time.Millisecond)
}

func (w *completeWorld) totals() etcdqueue.Totals {
	totals, _, err := w.other.Totals(w.t.Context())
	require.NoError(w.t, err)
	return totals
}

// More chunks than fit into a transaction are complete, one of them is somebody
// else's by now, and between the transactions the record of owners is written
// anew, with the same owners: the rest is completed all the same.
func TestCompleteInPartsLosesNoChunk(t *testing.T) {
	t.Parallel()
	w := newCompleteWorld(t, 40)
	w.steal(3)
	var once sync.Once
	w.own.FailAfter(func(op, key string) error {
		if op == "put" && strings.HasPrefix(key, "queue/") {
			once.Do(func() {
				_, err := w.store.Txn(context.Background(), store.Txn{Then: []store.Op{store.Put("owners", w.view.Encode(), 0)}})
				require.NoError(t, err)
			})
		}
		return nil
	})
	require.NoError(t, w.complete(t.Context()))
	require.EqualValues(t, 39, w.totals().Complete)
	require.Empty(t, w.w.hand.tasks())
}

// Owners that have changed are not adopted: the chunks stay in the hand.
func TestCompleteNeedsTheOwnersOfItsView(t *testing.T) {
	t.Parallel()
	w := newCompleteWorld(t, 3)
	moved := w.view.Sized(2)
	moved.Shards[0] = membership.Owner{Name: "b", Incarnation: "b", Generation: 2}
	_, err := w.store.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", moved.Encode(), 0)}})
	require.NoError(t, err)
	require.ErrorIs(t, w.complete(t.Context()), errOwnersChanged)
	require.Zero(t, w.totals().Complete)
	require.Len(t, w.w.hand.tasks(), 3)
}

// Who comes when chunks are complete cannot tell how long the job takes.
func TestFirstTakeOfAJobUnderWay(t *testing.T) {
	t.Parallel()
	w := newCompleteWorld(t, 2)
	require.Zero(t, w.w.firstTake())
	w.w.noteTake(t.Context())
	took := w.w.firstTake()
	require.NotZero(t, took)
	late := &worker{st: w.store, clock: clock.System, queue: w.other}
	require.NoError(t, w.complete(t.Context()))
	late.noteTake(t.Context())
	require.Zero(t, late.firstTake())
	w.w.noteTake(t.Context())
	require.Equal(t, took, w.w.firstTake(), "only the first take counts")
}
