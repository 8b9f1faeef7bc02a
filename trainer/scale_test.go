package trainer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

// Plans of another number of processes come faster than they are carried out:
// 4, 8, 2, 6 trainers, and 2, 4, 3 pservers, within ten seconds; some leave in
// order and some are killed.
func TestScaledUpAndDown(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 3)
		c.spec.Checkpoint.Interval = 2 * time.Second
		running := map[string][]*process{}
		to := func(kind string, n int) {
			for len(running[kind]) < n {
				running[kind] = append(running[kind], c.begin(fmt.Sprintf("%s-%d", kind, len(running[kind]))))
			}
			for len(running[kind]) > n {
				last := len(running[kind]) - 1
				if p := running[kind][last]; last%2 == 0 {
					p.cancel()
				} else {
					c.kill(p)
				}
				running[kind] = running[kind][:last]
			}
		}
		to("pserver", 2)
		to("trainer", 4)
		c.until("some work", func() bool { return c.totals().Complete > 4 })
		for _, step := range []struct {
			kind string
			n    int
		}{{"trainer", 8}, {"pserver", 4}, {"trainer", 2}, {"pserver", 1}, {"trainer", 6}, {"pserver", 3}} {
			time.Sleep(1500 * time.Millisecond)
			require.False(t, c.state().Phase.Ended())
			to(step.kind, step.n)
			c.leased()
		}
		c.wait()
		c.exact(2000, seen)
	})
}

// What is saved does not depend on who owned it: four pservers save, then three,
// five and one go on from that, and nothing is trained again.
func TestLayoutsOfPservers(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 4)
		c.spec.Shards, c.spec.Data.Chunk, c.spec.Run.Pservers = 6, 600, 4
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		for _, n := range []int{4, 3, 5, 1} {
			var ps []*process
			for i := range n {
				ps = append(ps, c.pserver(fmt.Sprintf("pserver-%d-of-%d", i, n)))
			}
			before := c.totals().Complete
			c.until("work", func() bool { return c.totals().Complete > before+10 })
			owners := map[string]bool{}
			for _, o := range c.view().Shards {
				owners[o.Name] = true
			}
			require.GreaterOrEqual(t, len(owners), min(n, 3))
			if n == 1 {
				break
			}
			for _, p := range ps {
				p.cancel()
			}
			for _, p := range ps {
				<-p.done
			}
			require.Empty(t, c.checkpointsBelow(1), "each shard is saved")
		}
		c.wait()
		c.exact(1000, seen)
		require.Zero(t, c.totals().Reopened, "everything was in the files")
		for _, s := range c.result().Shards {
			require.Zero(t, s.Replayed)
		}
	})
}

// checkpointsBelow lists the shards that have fewer than n checkpoints.
func (c *cluster) checkpointsBelow(n int) (shards []int) {
	for shard := range c.spec.Shards {
		if len(c.checkpoints(shard)) < n {
			shards = append(shards, shard)
		}
	}
	return shards
}

// skewed is a clock that is wrong.
type skewed struct {
	clock.Clock
	by time.Duration
}

func (s skewed) Now() time.Time { return s.Clock.Now().Add(s.by) }

// Clocks that differ by hours, and one by fifty years, change nothing: nobody
// loses a chunk or a shard early, and a dead trainer's chunks come back in time.
func TestClocksDisagree(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		serve := func(name string, by time.Duration) {
			c.pserver(name, func(cfg *pserver.Config) { cfg.Clock = skewed{clock.System, by} })
		}
		train := func(name string, by time.Duration) *process {
			return c.trainer(name, func(cfg *trainer.Config) { cfg.Clock = skewed{clock.System, by} })
		}
		serve("pserver-0", time.Hour)
		serve("pserver-1", -50*365*24*time.Hour)
		train("trainer-0", time.Hour)
		train("trainer-1", -time.Hour)
		victim := train("trainer-2", 10*time.Hour)
		c.until("work of everybody", func() bool { return c.totals().Complete > 8 && len(victim.trainer.Status().Chunks) > 0 })
		require.Zero(t, c.totals().Requeued)
		c.kill(victim)
		killed := time.Now()
		c.until("its chunks are back", func() bool { return c.holds("trainer-2") == "" })
		require.Less(t, time.Since(killed), c.spec.LeaseTTL+2*time.Second)
		requeued := c.totals().Requeued
		c.wait()
		c.exact(1000, seen)
		require.Equal(t, requeued, c.totals().Requeued)
		require.Zero(t, c.totals().Reopened)
		for shard, owner := range c.view().Shards {
			require.EqualValues(t, 1, owner.Generation, "shard %d has never changed hands", shard)
		}
	})
}

// However many trainers there are, one of them does the housekeeping, and asks
// the store for no more than with a few. When it dies another one takes over
// within a lease, and the chunks of the dead come back.
func TestStewardOfMany(t *testing.T) {
	file, seen := records(t, 2000)
	asked := map[int]int64{}
	for _, n := range []int{3, 60} {
		synctest.Test(t, func(t *testing.T) {
			c := slowCluster(t, file, 2)
			c.spec.Queue.Lanes = 64
			requests := map[*process]*atomic.Int64{}
			c.prepare = func(p *process) {
				count := &atomic.Int64{}
				requests[p] = count
				p.intercept(func(op, _ string) error {
					if op != "watch" {
						count.Add(1)
					}
					return nil
				})
			}
			var all []*process
			for i := range n {
				all = append(all, c.trainer(fmt.Sprintf("trainer-%d", i)))
			}
			// Without pservers everybody waits.
			time.Sleep(20 * time.Second)
			steward := c.steward(all)
			before, revision := requests[steward].Load(), c.store.Revision()
			time.Sleep(time.Minute)
			require.LessOrEqual(t, c.store.Revision()-revision, int64(n), "writes of those that wait")
			require.Same(t, steward, c.steward(all))
			asked[n] = requests[steward].Load() - before

			c.kill(steward)
			killed := time.Now()
			c.until("another steward", func() bool { s := c.steward(all); return s != nil && s != steward })
			c.until("nothing is left of it", func() bool { return c.holds(steward.name) == "" })
			require.Less(t, time.Since(killed), c.spec.LeaseTTL+2*time.Second)
			c.pserver("pserver-0")
			c.pserver("pserver-1")
			c.wait()
			c.exact(2000, seen)
		})
	}
	t.Logf("requests of the steward in an idle minute, by the number of trainers: %v", asked)
	require.InDelta(t, asked[3], asked[60], 0.1*float64(asked[3]))
}

// steward is the process of ps that holds the key, nil if none does.
func (c *cluster) steward(ps []*process) *process {
	kv, err := store.Lookup(c.ctx, c.store, c.prefix()+"steward")
	require.NoError(c.t, err)
	for _, p := range ps {
		if kv.Exists() && p.trainer.Status().Steward {
			p.mu.Lock()
			dead := p.dead
			p.mu.Unlock()
			if !dead {
				return p
			}
		}
	}
	return nil
}

// Two jobs of one store and one network have processes of the same names, which
// die and come back: neither job notices the other one.
func TestTwoJobsOfOneStore(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		one, two := slowCluster(t, file, 2), slowCluster(t, file, 3)
		two.spec.Job, two.store, two.net, two.hosts = "test-2", one.store, one.net, 100
		jobs, running := []*cluster{one, two}, map[*cluster]map[string]*process{}
		for _, c := range jobs {
			running[c] = map[string]*process{}
			for _, name := range members {
				running[c][name] = c.begin(name)
			}
		}
		for i := range 6 {
			c, name := jobs[i%2], members[i%4]
			time.Sleep(time.Second)
			require.False(t, c.state().Phase.Ended())
			c.kill(running[c][name])
			running[c][name] = c.begin(name)
		}
		for _, c := range jobs {
			c.wait()
			c.exact(1000, seen)
			require.Zero(t, c.totals().Failed)
		}
		require.NotEqual(t, one.result().UUID, two.result().UUID)
		for key := range one.store.Dump() {
			require.NotEqual(t, strings.HasPrefix(key, one.prefix()), strings.HasPrefix(key, two.prefix()), key)
		}
	})
}

// tardy is the count model as one that takes three seconds for a batch.
type tardy struct{ model.Model }

func newTardy(spec *job.Spec) (model.Model, error) {
	m, err := newPulled(spec)
	return tardy{m}, err
}

func (m tardy) Gradient(s *model.Step) float64 {
	time.Sleep(3 * time.Second)
	return m.Model.Gradient(s)
}

// A trainer is cut off from the store, from the pservers, or from both, for five
// minutes, and lives on. It is back soon after, as another incarnation if its
// lease has ended; its chunks were done by others, and nothing twice.
func TestCutOffForLong(t *testing.T) {
	file, seen := records(t, 2000)
	for name, cut := range map[string]struct{ store, network bool }{
		"store": {store: true}, "pservers": {network: true}, "both": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 4)
				c.models = map[string]trainer.Builder{model.Count: newTardy}
				c.pserver("pserver-0")
				c.pserver("pserver-1")
				c.trainer("trainer-0")
				victim := c.trainer("trainer-1")
				c.until("it works", func() bool { return victim.trainer.Status().Batches > 0 && c.holds("trainer-1") != "" })
				was := victim.trainer.Status()
				victim.client.Partition(cut.store)
				c.net.Silence(victim.host, cut.network)
				time.Sleep(5 * time.Minute)
				require.False(t, c.state().Phase.Ended())
				if cut.store {
					require.Empty(t, c.holds("trainer-1"), "it is thought to be gone")
				}
				done := victim.trainer.Status().Batches
				c.heal(0, victim)
				time.Sleep(30 * time.Second)
				now := victim.trainer.Status()
				require.Equal(t, cut.store, was.Incarnation != now.Incarnation)
				require.Greater(t, now.Batches, done, "it works again")
				c.wait()
				c.exact(2000, seen)
			})
		})
	}
}

// A pserver is killed and comes back at another address: the trainers use it at
// once.
func TestPserverMoves(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Checkpoint.Interval = time.Second
		old := c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.until("some work", func() bool { return c.totals().Complete > 3 })
		c.kill(old)
		moved := c.pserver("pserver-0")
		require.NotEqual(t, old.host, moved.host)
		c.until("it is registered", func() bool { return moved.server.Status().Registered })
		registered := time.Now()
		c.until("it is used", func() bool {
			for _, s := range moved.server.Status().Shards {
				if s.Serving && s.Batches > 0 {
					return true
				}
			}
			return false
		})
		require.Less(t, time.Since(registered), 2*time.Second)
		c.wait()
		c.exact(1000, seen)
	})
}

// Two rows on five pservers with a shard each: most have nothing, and are saved,
// lost, loaded and exported like the others.
func TestMorePserversThanRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "two")
	const n = 400
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("1 7:1\n0 8:1\n", n/2)), 0o600))
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 3)
		c.spec.Shards, c.spec.Run.Pservers, c.spec.Checkpoint.Interval = 5, 5, time.Second
		var ps []*process
		for i := range 5 {
			ps = append(ps, c.pserver(fmt.Sprintf("pserver-%d", i)))
		}
		c.trainer("trainer-0")
		c.until("each has a checkpoint", func() bool { return c.totals().Complete > 2 && c.checkpointsBelow(1) == nil })
		for i, p := range ps {
			c.kill(p)
			c.pserver(fmt.Sprintf("pserver-%d", i))
		}
		c.wait()
		c.exact(n, map[uint64]int64{7: n / 2, 8: n / 2})
	})
}

// A trainer that dies again and again takes nothing from the others but, once,
// the wait for its last lease; and the chunks that it had are not blamed for it.
func TestOneTrainerCrashesAgainAndAgain(t *testing.T) {
	file, seen := records(t, 2000)
	run := func(t *testing.T, crashes int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c := slowCluster(t, file, 2)
			c.spec.Data.Chunk, c.spec.Queue.MaxFailures = 600, 1
			c.pserver("pserver-0")
			c.pserver("pserver-1")
			c.trainer("trainer-0")
			c.trainer("trainer-1")
			c.untilTaken()
			began := time.Now()
			for range crashes {
				p := c.trainer("crashes")
				c.until("it has taken something", func() bool { return len(p.trainer.Status().Chunks) > 0 || c.state().Phase.Ended() })
				time.Sleep(100 * time.Millisecond)
				c.kill(p)
				time.Sleep(200 * time.Millisecond)
			}
			c.wait()
			took = time.Since(began)
			c.exact(2000, seen)
			require.Zero(t, c.totals().Failed)
			require.Equal(t, crashes > 0, c.totals().Requeued+c.totals().Speculated > 0)
		})
		return took
	}
	calm, disturbed := run(t, 0), run(t, 10)
	t.Logf("%v, and %v with crashes", calm, disturbed)
	require.Less(t, disturbed, calm*11/10+slowCluster(t, file, 1).spec.LeaseTTL)
}
