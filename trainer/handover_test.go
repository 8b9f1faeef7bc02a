package trainer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// serves counts the shards that a pserver serves.
func serves(p *process) (n int) {
	for _, s := range p.server.Status().Shards {
		if s.Serving {
			n++
		}
	}
	return n
}

// Pservers 1, 4, 2 in the middle of a job, in order: everybody has his share
// within seconds, no shard is ever without an owner, nothing is trained again,
// and no chunk changes hands for it.
func TestPserversComeAndGo(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 8)
		c.spec.Run.Pservers = 1
		ps := []*process{c.pserver("pserver-0")}
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		even := func(each int) func() bool {
			return func() bool {
				for _, p := range ps {
					if serves(p) != each {
						return false
					}
				}
				return true
			}
		}
		c.until("some work", func() bool { return c.totals().Complete > 4 })
		for i := range 3 {
			ps = append(ps, c.pserver(fmt.Sprintf("pserver-%d", i+1)))
		}
		began := time.Now()
		c.until("a shard each", even(1))
		require.Less(t, time.Since(began), 5*time.Second)
		done := c.totals().Complete
		c.until("more work", func() bool { return c.totals().Complete > done+4 })

		began = time.Now()
		ps[0].cancel()
		ps[2].cancel()
		ps = []*process{ps[1], ps[3]}
		c.until("two shards each", even(2))
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, "training", string(c.state().Phase))
		c.wait()
		c.exact(2000, seen)
		require.Zero(t, c.totals().Reopened)
		require.Zero(t, c.totals().Requeued)
		handOvers := int64(0)
		for _, s := range c.result().Shards {
			handOvers += s.HandOvers
			require.Equal(t, s.HandOvers+1, s.Generation, "shard %d was never free", s.Shard)
			require.Zero(t, s.Replayed)
			if s.HandOvers > 0 {
				require.Positive(t, s.HandOverSeconds)
				require.Less(t, s.HandOverSeconds, float64(s.HandOvers)*0.1, "shard %d", s.Shard)
			}
		}
		require.GreaterOrEqual(t, handOvers, int64(3+2))
	})
}

// Pservers come, leave, and are killed at random moments, also while shards are
// on their way.
func TestHandOversUnderKills(t *testing.T) {
	file, seen := records(t, 2000)
	handOvers := int64(0)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 6)
				c.comeAndGo(rand.New(rand.NewPCG(seed, 21)))
				c.exact(2000, seen)
				for _, s := range c.result().Shards {
					handOvers += s.HandOvers
				}
			})
		})
	}
	require.Greater(t, handOvers, int64(*seeds), "shards were handed over")
}

// comeAndGo runs a job whose pservers come, leave and are killed.
func (c *cluster) comeAndGo(r *rand.Rand) {
	c.spec.Run.Pservers = 1
	c.spec.Shards = 4 + r.IntN(8)
	c.spec.Checkpoint.Interval = time.Duration(1+r.IntN(5)) * time.Second
	killed := map[*process]bool{}
	type end struct {
		p   *process
		err error
	}
	ends := make(chan end, 100)
	c.started = func(p *process, err error) { ends <- end{p, err} }
	running := []*process{c.pserver("pserver-0")}
	for i := range 3 {
		c.trainer(fmt.Sprintf("trainer-%d", i))
	}
	c.untilTaken()
	for i := range 12 {
		time.Sleep(time.Duration(r.Int64N(int64(1500 * time.Millisecond))))
		switch k := r.IntN(len(running)); {
		case len(running) == 1 || r.IntN(2) == 0:
			running = append(running, c.pserver(fmt.Sprintf("late-%d", i)))
		case r.IntN(3) == 0:
			killed[running[k]] = true
			c.kill(running[k])
			running = append(running[:k:k], running[k+1:]...)
		default:
			running[k].cancel()
			running = append(running[:k:k], running[k+1:]...)
		}
	}
	for limit := time.After(30 * time.Minute); c.n > 0; c.n-- {
		select {
		case e := <-ends:
			if !killed[e.p] {
				require.NoError(c.t, e.err, e.p.name)
			}
		case <-limit:
			c.t.Fatalf("%d processes have not ended; the store holds:\n%s", c.n, c.dump())
		}
	}
}

// A hand-over whose save and load take their time costs the trainers no more than
// that: they learn of the new owner by their watch, and ask it how far it is while it
// restores, so that they go on in the moment in which it serves.
func TestTrainersGoOnAtOnce(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 40)
		c.latency = 2 * time.Millisecond
		c.spec.Shards, c.spec.Run.Pservers = 1, 1
		slow := ""
		c.disk.now().SetHook(func(op, name string) error {
			if op == slow && strings.Contains(name, ".ckpt") {
				time.Sleep(900 * time.Millisecond)
			}
			return nil
		})
		owner := c.pserver("pserver-0")
		c.trainer("trainer-0")
		c.until("some work", func() bool { return c.totals().Complete > 4 })
		for i := range 4 {
			next := c.pserver(fmt.Sprintf("pserver-%d", i+1))
			c.until("it is there", func() bool { return next.server.Status().Registered })
			slow = []string{"create", "open"}[i%2] // the save, the load
			owner.cancel()
			c.until("it serves", func() bool { return serves(next) == 1 })
			before, served := batches(next), time.Now()
			c.until("it is used", func() bool { return batches(next) > before })
			require.Less(t, time.Since(served), 100*time.Millisecond)
			owner = next
		}
		c.wait()
		c.exact(2000, seen)
	})
}
