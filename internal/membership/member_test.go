package membership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

func TestAMemberIsKeptAliveForHours(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		for range 1000 {
			time.Sleep(7 * time.Second)
			require.True(t, m.Alive())
		}
		require.False(t, isLost(m))
		require.NoError(t, m.Err())
		require.Equal(t, Registration{
			Name: "a", Incarnation: m.Incarnation(), Address: "a:1", Version: "test",
			Lease: m.Lease(), Revision: m.Registered().Rev,
		}, w.roster().Members["a"])
		require.Equal(t, map[string]bool{m.Incarnation(): true}, w.roster().Live())
	})
}

func TestCloseEndsARegistrationAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		require.NoError(t, m.Close(t.Context()))
		require.False(t, m.Alive())
		require.Empty(t, w.roster().Members)
		require.Zero(t, w.fake.Leases())
		require.False(t, isLost(m), "an orderly end is no loss")
		require.NoError(t, m.Close(t.Context()), "closing again is no error")
	})
}

func TestCloseSaysWhenTheLeaseMustExpire(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		client := w.fake.Client("a")
		c := w.config("a")
		c.Store = client
		m := w.register(c)
		client.Partition(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, m.Close(ctx), context.DeadlineExceeded)
		require.False(t, m.Alive())
		client.Partition(false)
	})
}

// A member that cannot reach the store pauses before its lease can end, by its
// own clock, and only then.
func TestACutOffMemberPausesBeforeItsLeaseEnds(t *testing.T) {
	for name, cut := range map[string]time.Duration{
		"shorter than the lease": 9 * time.Second,
		"longer than the lease":  2 * testTTL,
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				client := w.fake.Client("a")
				c := w.config("a")
				c.Store = client
				m := w.register(c)
				time.Sleep(30*testTTL + time.Second)
				client.Partition(true)
				start := time.Now()
				paused := time.Duration(0)
				for time.Since(start) < cut {
					time.Sleep(10 * time.Millisecond)
					if !m.Alive() && paused == 0 {
						paused = time.Since(start)
					}
					_, registered := w.roster().Members["a"]
					require.False(t, m.Alive() && !registered, "alive after its lease has ended")
				}
				require.Greater(t, paused, testTTL/2-testTTL/5, "it paused too early")
				require.LessOrEqual(t, paused, testTTL-testTTL/5)
				require.False(t, isLost(m), "it cannot know yet")

				client.Partition(false)
				time.Sleep(testTTL / 10)
				synctest.Wait()
				if cut < testTTL-testTTL/4 {
					require.True(t, m.Alive())
				}
				_, registered := w.roster().Members["a"]
				require.Equal(t, registered, m.Alive(), "it goes on if its lease did not end")
				require.Equal(t, !registered, isLost(m))
				if !registered {
					require.ErrorIs(t, m.Err(), ErrLost)
				}
			})
		})
	}
}

// Of an outage of the store itself, during which no lease ends, nothing is
// left behind.
func TestAMemberGoesOnAfterAnOutageWithoutExpiry(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		client := w.fake.Client("a")
		c := w.config("a")
		c.Store = client
		m := w.register(c)
		down := errors.New("etcd is down")
		client.Fail(func(op, _ string) error {
			if op == "keepalive" {
				// etcd extends the leases when a new leader comes up.
				_, _ = w.st.KeepAlive(t.Context(), m.Lease())
			}
			return down
		})
		time.Sleep(3 * testTTL)
		require.False(t, m.Alive())
		client.Fail(nil)
		time.Sleep(testTTL / 10)
		require.True(t, m.Alive())
		require.False(t, isLost(m))
	})
}

// The remaining time counts from when the keep-alive was sent, not from when
// its answer came.
func TestTheLeaseIsCountedFromTheSending(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		const delay = 2 * time.Second // below the time-out of a keep-alive
		client := w.fake.Client("a")
		c := w.config("a")
		c.Store = client
		m := w.register(c)
		var sent time.Time
		client.FailAfter(func(op, _ string) error {
			if op == "keepalive" {
				sent = time.Now()
				time.Sleep(delay)
				client.Partition(true)
			}
			return nil
		})
		time.Sleep(testTTL/4 + delay + time.Millisecond)
		require.True(t, m.Alive())
		time.Sleep(time.Until(sent.Add(testTTL - testTTL/5 - time.Millisecond)))
		require.True(t, m.Alive())
		time.Sleep(time.Millisecond)
		require.False(t, m.Alive())
		client.Partition(false)
	})
}

func TestALostRegistrationIsNoticed(t *testing.T) {
	for name, lose := range map[string]func(w *world, m *Member){
		"its lease expired":   func(w *world, m *Member) { w.fake.ExpireLease(m.Lease()) },
		"its key was deleted": func(w *world, _ *Member) { w.commit(store.Delete("pservers/a")) },
		"the watch was compacted away": func(w *world, m *Member) {
			w.fake.ExpireAll()
			w.fake.Compact(w.fake.Revision())
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				m := w.pserver("a")
				synctest.Wait()
				lose(w, m)
				synctest.Wait()
				require.True(t, isLost(m), "at once")
				require.False(t, m.Alive())
				require.ErrorIs(t, m.Err(), ErrLost)
			})
		})
	}
}

// The keep-alive alone notices it too, and knows why, if the watch is silent.
func TestALostLeaseIsNoticedWithoutTheWatch(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		expired, overwritten := w.config("a"), w.config("b")
		expired.Store, overwritten.Store = deafStore{w.st}, deafStore{w.st}
		a, b := w.register(expired), w.register(overwritten)
		synctest.Wait()
		w.fake.ExpireLease(a.Lease())
		successor := w.pserver("b")
		require.True(t, a.Alive(), "it has not heard of it")
		time.Sleep(testTTL / 4)
		synctest.Wait()
		require.ErrorIs(t, a.Err(), ErrLost)
		var superseded *SupersededError
		require.ErrorAs(t, b.Err(), &superseded)
		require.Equal(t, successor.Incarnation(), superseded.By.Incarnation)
	})
}

func TestAHistoryThatWentBackIsFatal(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		client := w.fake.Client("a")
		c := w.config("a")
		c.Store = client
		m := w.register(c)
		client.Fail(func(string, string) error { return store.ErrHistory })
		time.Sleep(testTTL)
		require.True(t, isLost(m))
		require.ErrorIs(t, m.Err(), store.ErrHistory)
	})
}

func TestRostersAreWatched(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		rosters := WatchRoster(ctx, w.st, PServers)
		require.Empty(t, (<-rosters).Members)
		a := w.pserver("a")
		require.Equal(t, map[string]string{"a": a.Incarnation()}, (<-rosters).Incarnations())
		w.fake.Compact(w.fake.Revision())
		b := w.pserver("b")
		w.fake.Compact(w.fake.Revision())
		require.Equal(t, map[string]bool{a.Incarnation(): true, b.Incarnation(): true}, (<-rosters).Live())
		require.NoError(t, a.Close(t.Context()))
		require.Equal(t, map[string]string{"b": b.Incarnation()}, (<-rosters).Incarnations())
		cancel()
		synctest.Wait()
		_, ok := <-rosters
		require.False(t, ok)
	})
}
