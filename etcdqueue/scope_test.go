package etcdqueue

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/ranges"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// heard counts the changes of lanes that a watch brings, and the writes.
type heard struct {
	store.Store
	lanes, writes atomic.Int64
}

func (h *heard) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	if len(t.If) > 0 {
		h.writes.Add(1)
	}
	return h.Store.Txn(ctx, t)
}

func (h *heard) Watch(ctx context.Context, start, end string, rev int64) <-chan store.WatchResponse {
	out := make(chan store.WatchResponse)
	go func() {
		defer close(out)
		for r := range h.Store.Watch(ctx, start, end, rev) {
			for _, e := range r.Events {
				if strings.HasPrefix(e.KV.Key, queuePrefix) {
					h.lanes.Add(1)
				}
			}
			select {
			case out <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// listener is a taker, and what it hears.
func (w *world) listener(name string) (*Queue, *heard) {
	w.t.Helper()
	h := &heard{Store: w.job()}
	c := w.config
	c.Store, c.Name, c.Incarnation = h, name, name
	q, err := New(c)
	require.NoError(w.t, err)
	w.t.Cleanup(q.Close)
	return q, h
}

// step takes a chunk and completes it, and lets some time pass.
func step(t *testing.T, q *Queue) Task {
	t.Helper()
	tasks, err := q.Take(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, q.Complete(t.Context(), finished(tasks...)))
	time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
	synctest.Wait()
	return tasks[0]
}

func (q *Queue) isSettled() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.scope == settled
}

// settle lets a taker work until it has settled.
func settle(t *testing.T, q *Queue) {
	t.Helper()
	began := time.Now()
	for !q.isSettled() {
		step(t, q)
		require.Less(t, time.Since(began), 2*settling, "it does not settle")
	}
}

// scoped runs a test on a shuffled queue of a hundred thousand chunks in 4 lanes.
func scoped(t *testing.T, peers int, f func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f(t, setup(t, 100_000, Config{Clock: clock.System, Shuffle: true, Passes: 2, Peers: func() int { return peers }}))
	})
}

// TestSettled: takers with a lane each hear nothing of each other any more, stay
// where they are, and need a transaction for a take and one for a report.
func TestSettled(t *testing.T) {
	scoped(t, 4, func(t *testing.T, w *world) {
		var takers []*Queue
		var ears []*heard
		for _, name := range []string{"a", "b", "c", "d"} {
			q, h := w.listener(name)
			takers, ears = append(takers, q), append(ears, h)
		}
		began := time.Now()
		for time.Since(began) < 2*settling {
			for _, q := range takers {
				step(t, q)
			}
		}
		for _, h := range ears {
			require.NotZero(t, h.lanes.Load(), "to begin with they hear everything")
			h.lanes.Store(0)
			h.writes.Store(0)
		}
		lanes := make(map[int]int)
		for range 60 { // more than two silences
			for i, q := range takers {
				require.True(t, q.isSettled())
				lane := step(t, q).Lane
				if old, known := lanes[i]; known {
					require.Equal(t, old, lane, "it has left its lane")
				}
				lanes[i] = lane
			}
		}
		for _, h := range ears {
			require.EqualValues(t, []int64{0, 120}, []int64{h.lanes.Load(), h.writes.Load()})
		}
	})
}

// TestSettledFindsWhatCameBack: a settled taker that has taken all that it knows
// of looks again before it finds nothing; and once it waits it hears of
// everything at once.
func TestSettledFindsWhatCameBack(t *testing.T) {
	scoped(t, 1, func(t *testing.T, w *world) {
		a, b := w.open("a"), w.open("b")
		taken := mustTake(t, b, 25_000) // a whole lane
		settle(t, a)
		require.NoError(t, b.Release(t.Context(), taken))
		tasks, err := a.Take(t.Context(), 100_000)
		require.NoError(t, err)
		rest, err := a.Take(t.Context(), 100_000)
		require.NoError(t, err)
		require.Equal(t, ranks(taken), ranks(rest), "what came back while it was settled")
		require.Less(t, len(tasks), 75_000)
		_, err = a.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrEmpty)

		began := time.Now()
		time.AfterFunc(time.Second, func() {
			_, err := w.open("steward").Requeue(context.Background(), registry())
			require.NoError(t, err)
		})
		require.NoError(t, a.Changed(t.Context()))
		require.Equal(t, time.Second, time.Since(began))
		require.Len(t, mustTake(t, a, 100_000), len(tasks)+len(rest))
	})
}

// TestSettledAmongOthers: when others have taken nearly everything, also what is
// in its lane, a settled taker notices at its next look, or when it meets them.
func TestSettledAmongOthers(t *testing.T) {
	for _, meets := range []bool{false, true} {
		t.Run(map[bool]string{false: "by itself", true: "it meets them"}[meets], func(t *testing.T) {
			scoped(t, 2, func(t *testing.T, w *world) {
				a, h := w.listener("a")
				b := w.open("b")
				settle(t, a)
				for w.totals().Todo > 10 {
					mustTake(t, b, 100_000)
				}
				require.True(t, a.isSettled())
				if meets {
					h.writes.Store(0)
					require.Len(t, mustTake(t, a, 16), 3, "its share of what there is")
					require.LessOrEqual(t, h.writes.Load(), int64(3))
				} else {
					time.Sleep(silence) //nolint:forbidigo // virtual time
					synctest.Wait()
				}
				require.False(t, a.isSettled())
			})
		})
	}
}

// TestSettledSteward: who waits for the end of a pass follows all lanes, also if
// it is a taker that was settled.
func TestSettledSteward(t *testing.T) {
	scoped(t, 1, func(t *testing.T, w *world) {
		a, b := w.open("a"), w.open("b")
		settle(t, a)
		turn := make(chan error, 1)
		go func() { turn <- a.AwaitTurn(t.Context()) }()
		synctest.Wait()
		for range 40 {
			require.False(t, a.isSettled())
			step(t, a)
		}
		began := time.Now()
		drain(t, b, 100_000)
		require.NoError(t, <-turn)
		require.Equal(t, began, time.Now())
	})
}

// TestSettledHearsOfTheState: a chunk that was reopened in an earlier pass comes
// first, also for who is settled in a later one.
func TestSettledHearsOfTheState(t *testing.T) {
	scoped(t, 1, func(t *testing.T, w *world) {
		a, b := w.open("a"), w.open("b")
		drain(t, b, 100_000)
		_, err := b.Turn(t.Context(), nil)
		require.NoError(t, err)
		settle(t, a)
		_, err = b.Reopen(t.Context(), 0, 2, ranges.Of(7, 7), nil)
		require.NoError(t, err)
		synctest.Wait()
		task := mustTake(t, a, 1)[0]
		require.Equal(t, []int64{0, 2, 7}, []int64{int64(task.Pass), int64(task.Lane), task.Position})
	})
}

// TestSettledHearsOfQuarantine: a settled taker skips what others have
// quarantined.
func TestSettledHearsOfQuarantine(t *testing.T) {
	scoped(t, 1, func(t *testing.T, w *world) {
		a := w.open("a")
		settle(t, a)
		last := step(t, a)
		q := a.view.passes[0]
		next := q.task(last.Lane, last.Position+1, 0)
		record := FailedChunk{V: failedVersion, Chunk: next.Chunk, Reason: "bad"}
		_, err := w.job().Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(failedKey(next.Chunk), mustJSON(record), 0)}})
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, a.isSettled())
		require.Equal(t, last.Position+2, step(t, a).Position)
		require.EqualValues(t, 1, w.totals().Failed)
	})
}

// TestSettledWithoutAWatch: a settled taker whose watches break, or bring
// nothing, knows where the pass stands after a silence at the latest.
func TestSettledWithoutAWatch(t *testing.T) {
	for name, fault := range map[string]func(*fake.Client){
		"they break":         (*fake.Client).BreakWatches,
		"they bring nothing": (*fake.Client).LoseWatches,
	} {
		t.Run(name, func(t *testing.T) {
			scoped(t, 1, func(t *testing.T, w *world) {
				a, client := w.client("a")
				settle(t, a)
				fault(client)
				b := w.open("b")
				drain(t, b, 100_000)
				_, err := b.Turn(t.Context(), nil)
				require.NoError(t, err)
				time.Sleep(silence) //nolint:forbidigo // virtual time
				synctest.Wait()
				a.mu.Lock()
				defer a.mu.Unlock()
				require.Equal(t, []int{1, int(everything)}, []int{a.view.state.Pass, int(a.scope)})
			})
		})
	}
}

// TestNotSettled: in the order of the data, and where a lane has two takers,
// nobody settles.
func TestNotSettled(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"in the order of the data": func(c *Config) { c.Shuffle = false },
		"a lane for two":           func(c *Config) { c.Lanes = 1 },
		"little is left":           func(c *Config) { c.Peers = func() int { return 100_000 } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := Config{Clock: clock.System, Shuffle: true}
				change(&c)
				w := setup(t, 100_000, c)
				a, b := w.open("a"), w.open("b")
				for range 40 {
					hand := mustTake(t, b, 1)
					step(t, a)
					require.NoError(t, b.Complete(t.Context(), finished(hand...)))
					require.False(t, a.isSettled())
					require.False(t, b.isSettled())
				}
			})
		})
	}
}
