package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// world is a queue in a fake store, with as many takers as a test wants.
type world struct {
	t      *testing.T
	store  *fake.Store
	config Config
}

const prefix = "/starfish/job/"

// setup makes an empty queue of n chunks.
func setup(t *testing.T, n int64, c Config) *world {
	t.Helper()
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	w := &world{t: t, store: fake.New(fake.Options{}), config: c}
	q := w.open("creator")
	require.NoError(t, q.Create(t.Context(), Manifest{Chunks: n, Fingerprint: "f"}))
	return w
}

// job is the store as a job sees it.
func (w *world) job() store.Store { return store.Prefixed(w.store, prefix) }

// open is a taker whose name is its incarnation.
func (w *world) open(name string) *Queue {
	w.t.Helper()
	q, _ := w.client(name)
	return q
}

// client is a taker and the handle of the store that its faults come from.
func (w *world) client(name string) (*Queue, *fake.Client) {
	w.t.Helper()
	client := w.store.Client(name)
	c := w.config
	c.Store, c.Name, c.Incarnation = store.Prefixed(client, prefix), name, name
	q, err := New(c)
	require.NoError(w.t, err)
	w.t.Cleanup(q.Close)
	return q, client
}

// lane reads one lane as it is in the store.
func (w *world) lane(pass, lane int) Lane {
	w.t.Helper()
	lanes, _, _, err := w.open("reader").Lanes(w.t.Context(), pass)
	require.NoError(w.t, err)
	return lanes[lane]
}

func (w *world) totals() Totals {
	w.t.Helper()
	sum, _, err := w.open("reader").Totals(w.t.Context())
	require.NoError(w.t, err)
	return sum
}

func (w *world) state() State {
	w.t.Helper()
	s, err := w.open("reader").State(w.t.Context())
	require.NoError(w.t, err)
	return s
}

// registry is one for Requeue.
func registry(incarnations ...string) func(context.Context) (map[string]bool, error) {
	set := make(map[string]bool)
	for _, i := range incarnations {
		set[i] = true
	}
	return func(context.Context) (map[string]bool, error) { return set, nil }
}

// mustTake takes what there is; it waits for something.
func mustTake(t *testing.T, q *Queue, max int) []Task {
	t.Helper()
	for {
		tasks, err := q.Take(t.Context(), max)
		if errors.Is(err, ErrEmpty) || errors.Is(err, ErrNoQueue) {
			require.NoError(t, q.Changed(t.Context()))
			continue
		}
		require.NoError(t, err)
		require.NotEmpty(t, tasks)
		return tasks
	}
}

// finished is tasks with sums of 10 batches and 100 records each.
func finished(tasks ...Task) []Done {
	done := make([]Done, len(tasks))
	for i, t := range tasks {
		done[i] = Done{Task: t, Sums: Sums{Batches: 10, Records: 100}}
	}
	return done
}

// drain takes and completes until nothing is Todo, and returns the tasks in the
// order in which they came.
func drain(t *testing.T, q *Queue, max int) []Task {
	t.Helper()
	var all []Task
	for {
		tasks, err := q.Take(t.Context(), max)
		if errors.Is(err, ErrEmpty) {
			return all
		}
		require.NoError(t, err)
		require.NoError(t, q.Complete(t.Context(), finished(tasks...)))
		all = append(all, tasks...)
	}
}

// drainN is drain, but waits until it has had n chunks.
func drainN(t *testing.T, q *Queue, n int) {
	t.Helper()
	for got := 0; ; {
		got += len(drain(t, q, n))
		if got >= n {
			require.Equal(t, n, got)
			return
		}
		require.NoError(t, q.Changed(t.Context()))
	}
}

func ranks(tasks []Task) []int64 {
	r := make([]int64, len(tasks))
	for i, t := range tasks {
		r[i] = t.Rank
	}
	return r
}

func chunks(tasks []Task) []int64 {
	c := make([]int64, len(tasks))
	for i, t := range tasks {
		c[i] = t.Chunk
	}
	return c
}

var errLost = errors.New("connection lost")

// once is a hook that fails the n-th transaction (from 0) that has an
// operation on a key with that part; it counts what it failed.
func once(op, part string, n int, hits *int) fake.Hook {
	return func(o, key string) error {
		if o != op || !strings.Contains(key, part) || *hits > n {
			return nil
		}
		*hits++
		if *hits == n+1 {
			return fmt.Errorf("%s %s: %w", op, key, errLost)
		}
		return nil
	}
}

// serial calls a hook by one goroutine at a time: the follower asks too.
func serial(hook fake.Hook) func(op, key string) error {
	var mu sync.Mutex
	return func(op, key string) error {
		mu.Lock()
		defer mu.Unlock()
		return hook(op, key)
	}
}

// eventually waits for something that another goroutine is about to do.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, time.Millisecond)
}
