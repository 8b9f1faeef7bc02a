package membership

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"starfish/internal/store"
)

func TestRegisterRefusesAWrongConfig(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		_, err := Register(t.Context(), Config{Role: "kings", Name: "a/b", TTL: time.Millisecond, Margin: time.Second})
		for _, text := range []string{"no store", `role "kings"`, `name "a/b"`, "TTL 1ms", "margin 1s"} {
			require.ErrorContains(t, err, text)
		}
		c := w.config("a")
		c.Incarnation, c.Previous = "same", "same"
		_, err = Register(t.Context(), c)
		require.ErrorContains(t, err, "new incarnation")
	})
}

func TestRegisterTakesOverFromAPredecessorThatIsGone(t *testing.T) {
	silent := func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	for name, c := range map[string]struct {
		probe    func(context.Context, string) (string, error)
		takeover bool
		within   time.Duration
	}{
		"it refuses":                     {probe: answering(nil)},
		"somebody else has its address":  {probe: answering(map[string]string{"a:1": "somebody else"})},
		"it is silent":                   {probe: silent, within: time.Second},
		"nobody can ask":                 {},
		"it answers, but is overwritten": {probe: answering(map[string]string{"a:1": "old"}), takeover: true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				old := w.config("a")
				old.Incarnation = "old"
				predecessor, other := w.register(old), w.pserver("b")
				w.claim(predecessor, 0, 2)
				w.claim(other, 1)
				before := w.view()
				start := time.Now()

				successor := w.config("a")
				successor.Address, successor.Probe, successor.Takeover = "a:2", c.probe, c.takeover
				m := w.register(successor)
				require.Equal(t, c.within, time.Since(start))
				synctest.Wait()

				require.True(t, isLost(predecessor))
				require.False(t, predecessor.Alive())
				var superseded *SupersededError
				require.ErrorAs(t, predecessor.Err(), &superseded)
				require.Equal(t, m.Incarnation(), superseded.By.Incarnation)
				require.ErrorContains(t, superseded, "a:2")
				require.Equal(t, 2, w.fake.Leases(), "the old lease was revoked")

				v := w.view()
				require.Equal(t, w.roster().Members["a"].Revision, v.Revision,
					"registration and ownership moved in one transaction")
				require.Equal(t, Owner{Name: "a", Incarnation: m.Incarnation(), Address: "a:2", Generation: 2}, v.Shards[0])
				require.Equal(t, []int{0, 2}, Mine(v, m.Incarnation()))
				require.Equal(t, before.Shards[1], v.Shards[1], "others keep theirs")
				require.Equal(t, before.Shards[3], v.Shards[3])
			})
		})
	}
}

func TestRegisterIsRefusedWhileThePredecessorAnswers(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		w.claim(m, 0)
		before := w.view()
		c := w.config("a")
		c.Probe = answering(map[string]string{"a:1": m.Incarnation()})
		_, err := Register(t.Context(), c)
		require.ErrorIs(t, err, ErrNameInUse)
		require.ErrorContains(t, err, m.Incarnation())
		synctest.Wait()
		require.True(t, m.Alive())
		require.Equal(t, before, w.view())
		require.Equal(t, 1, w.fake.Leases(), "the newcomer left nothing behind")
	})
}

func TestATrainerTakesOverTheNameOnly(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		c := w.config("a")
		c.Role, c.Address = Trainers, ""
		old := w.register(c)
		before := w.view()
		w.register(c)
		synctest.Wait()
		var superseded *SupersededError
		require.ErrorAs(t, old.Err(), &superseded)
		require.Equal(t, before, w.view())
	})
}

func TestExtraJoinsTheTakeover(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		old := w.pserver("a")
		c := w.config("a")
		calls := 0
		c.Extra = func(_ context.Context, from Registration, incarnation string) ([]store.Cmp, []store.Op, error) {
			calls++
			require.Equal(t, old.Incarnation(), from.Incarnation)
			if calls == 1 {
				return []store.Cmp{store.Absent(specKey)}, nil, nil // fails once
			}
			return nil, []store.Op{store.Put("extra", []byte(incarnation), 0)}, nil
		}
		m := w.register(c)
		kv, err := store.Lookup(t.Context(), w.st, "extra")
		require.NoError(t, err)
		require.Equal(t, m.Incarnation(), string(kv.Value))
		require.Equal(t, m.Registered().Rev, kv.ModRev)
		require.Equal(t, 2, calls)

		c.Extra = func(context.Context, Registration, string) ([]store.Cmp, []store.Op, error) {
			return nil, nil, errRefused
		}
		_, err = Register(t.Context(), c)
		require.ErrorIs(t, err, errRefused)
	})
}

func TestOwnershipThatMovesDuringATakeoverIsNotLost(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a, b := w.pserver("a"), w.pserver("b")
		w.claim(a, 0)
		probes := 0
		c := w.config("a")
		c.Probe = func(context.Context, string) (string, error) {
			probes++
			w.claim(b, 1) // after the newcomer has looked
			w.claim(a, 3)
			return "", errRefused
		}
		m := w.register(c)
		v := w.view()
		require.Equal(t, []int{0, 3}, Mine(v, m.Incarnation()))
		require.Equal(t, []int{1}, Mine(v, b.Incarnation()))
		require.Equal(t, 1, probes, "who has been found to be gone is not asked again")
	})
}

// What the registration depends on may change after it was read: act runs
// just before the write, once.
func TestRegisterIsGuarded(t *testing.T) {
	for name, c := range map[string]struct {
		predecessor bool
		act         func(w *world)
		want        error
	}{
		"against another newcomer":        {false, func(w *world) { w.pserver("a") }, ErrNameInUse},
		"against another successor":       {true, func(w *world) { w.pserver("a") }, ErrNameInUse},
		"against the end of the job":      {false, func(w *world) { w.commit(store.Delete(specKey)) }, ErrJobChanged},
		"against another job":             {true, (*world).resubmit, ErrJobChanged},
		"against the predecessor's death": {true, func(w *world) { w.fake.ExpireAll() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				if c.predecessor {
					w.pserver("a")
				}
				client := w.fake.Client("a")
				acted := false
				client.Fail(func(op, key string) error {
					if op == "put" && key == "pservers/a" && !acted {
						acted = true
						c.act(w)
					}
					return nil
				})
				config := w.config("a")
				config.Store, config.Incarnation = client, "newcomer"
				config.Probe = func(ctx context.Context, _ string) (string, error) {
					if !acted {
						return "", errRefused
					}
					return w.roster().Members["a"].Incarnation, nil
				}
				m, err := Register(t.Context(), config)
				require.True(t, acted)
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
					require.NotContains(t, w.roster().Live(), "newcomer")
					return
				}
				require.NoError(t, err)
				require.Contains(t, w.roster().Live(), "newcomer")
				require.NoError(t, m.Close(t.Context()))
			})
		})
	}
}

func TestALostMemberRegistersAgain(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		w.claim(m, 0, 1)
		w.fake.ExpireAll()
		synctest.Wait()
		require.ErrorIs(t, m.Err(), ErrLost)

		c := w.config("a")
		c.Previous = m.Incarnation()
		again := w.register(c)
		require.NotEqual(t, m.Incarnation(), again.Incarnation())
		v := w.claim(again, 0, 1)
		require.Equal(t, int64(2), v.Generation(0, again.Incarnation()), "nobody owned it between")
	})
}

func TestALostMemberDoesNotTakeTheNameBack(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		w.fake.ExpireAll()
		successor := w.pserver("a")
		synctest.Wait()

		c := w.config("a")
		c.Previous = m.Incarnation()
		c.Probe = answering(nil)
		_, err := Register(t.Context(), c)
		var superseded *SupersededError
		require.ErrorAs(t, err, &superseded)
		require.Equal(t, successor.Incarnation(), superseded.By.Incarnation)
		require.True(t, successor.Alive())
	})
}

// Its own earlier life may still be registered, if nobody could revoke it.
func TestALostMemberOverwritesItsOwnRemains(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		w.claim(m, 2)
		c := w.config("a")
		c.Previous = m.Incarnation()
		c.Probe = answering(map[string]string{"a:1": m.Incarnation()})
		again := w.register(c)
		require.Equal(t, int64(2), w.view().Generation(2, again.Incarnation()))
	})
}

func TestRegisterIsRefusedForAnotherJob(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.commit(store.Delete(specKey))
		_, err := Register(t.Context(), w.config("a"))
		require.ErrorIs(t, err, ErrJobChanged)
		w.commit(store.Put(specKey, []byte("{}"), 0))
		_, err = Register(t.Context(), w.config("a"))
		require.ErrorIs(t, err, ErrJobChanged)
		require.Zero(t, w.fake.Leases())
	})
}

func TestRegisterRefusesAFormatOfTheFuture(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.commit(store.Put("pservers/a", []byte(`{"v":2}`), 0))
		_, err := Register(t.Context(), w.config("a"))
		require.ErrorIs(t, err, ErrVersion)
		_, err = ReadRoster(t.Context(), w.st, PServers)
		require.ErrorIs(t, err, ErrVersion)
	})
}

// Whichever request fails, before or after it had its effect, the process ends
// up registered once and under a lease that lives.
func TestRegisterSurvivesEveryFailingRequest(t *testing.T) {
	for _, op := range []string{"grant", "range", "put", "revoke"} {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hidden success: %v", op, hidden), func(t *testing.T) {
				simulated(t, func(t *testing.T, w *world) {
					w.claim(w.pserver("a"), 0) // the predecessor
					client := w.fake.Client("a")
					failures := 2
					fail := func(name, _ string) error {
						if name == op && failures > 0 {
							failures--
							return errors.New("no answer")
						}
						return nil
					}
					if hidden {
						client.FailAfter(fail)
					} else {
						client.Fail(fail)
					}
					c := w.config("a")
					c.Store = client
					m := w.register(c)
					time.Sleep(2 * testTTL)
					require.Less(t, failures, 2, "nothing was tried")
					require.True(t, m.Alive())
					require.Equal(t, m.Incarnation(), w.roster().Members["a"].Incarnation)
					require.Equal(t, []int{0}, Mine(w.view(), m.Incarnation()))
					require.Equal(t, 1, w.fake.Leases(), "what was left over has expired")
				})
			})
		}
	}
}

func TestRegisterWaitsForTheStoreUntilItsContextEnds(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		client := w.fake.Client("a")
		c := w.config("a")
		c.Store = client
		client.Partition(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := Register(ctx, c)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		client.Partition(false)
		client.Fail(func(string, string) error { return errRefused })
		_, err = Register(ctx, c)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = Register(ctx, c)
		require.ErrorIs(t, err, errRefused, "it says what it waited for")
	})
}

func TestOneOfManyGetsTheName(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		const n = 20
		processes := map[string]string{}
		for i := range n {
			processes[fmt.Sprintf("host:%d", i)] = fmt.Sprintf("incarnation-%d", i)
		}
		members := make([]*Member, n)
		var g errgroup.Group
		for i := range n {
			c := w.config("a")
			c.Address = fmt.Sprintf("host:%d", i)
			c.Incarnation = processes[c.Address]
			c.Probe = answering(processes)
			g.Go(func() error {
				m, err := Register(t.Context(), c)
				if errors.Is(err, ErrNameInUse) {
					return nil
				}
				members[i] = m
				return err
			})
		}
		require.NoError(t, g.Wait())
		alive := 0
		for _, m := range members {
			if m != nil {
				require.True(t, m.Alive())
				require.NoError(t, m.Close(t.Context()))
				alive++
			}
		}
		require.Equal(t, 1, alive)
	})
}

// A member that comes and goes, in order, killed or superseded, twenty times,
// touches no key of others; each key that says that somebody lives is under a
// lease that lives.
func TestOthersAreLeftAlone(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		others := w.pserver("a")
		w.claim(others, 0, 2)
		trainer := w.config("t")
		trainer.Role = Trainers
		w.register(trainer)
		state := func(key string) store.KV {
			kv, err := store.Lookup(t.Context(), w.st, key)
			require.NoError(t, err)
			return kv
		}
		before := map[string]int64{}
		for _, key := range []string{"pservers/a", "trainers/t", specKey} {
			before[key] = state(key).ModRev
		}
		owned := w.view()
		for i := range 20 {
			m := w.pserver("b")
			w.claim(m, 1)
			require.Equal(t, m.Lease(), state("pservers/b").Lease)
			switch i % 3 {
			case 0:
				require.NoError(t, m.Close(t.Context()))
			case 1:
				w.fake.ExpireLease(m.Lease())
			} // else the next one supersedes it
			for key, rev := range before {
				require.Equal(t, rev, state(key).ModRev, key)
			}
			v := w.view()
			require.Equal(t, owned.Shards[0], v.Shards[0])
			require.Equal(t, owned.Shards[2], v.Shards[2])
		}
		require.True(t, others.Alive())
	})
}
