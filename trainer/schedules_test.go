package trainer_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

// The orders of events in this file broke earlier forms of the protocol. They
// are played to the daemons as they are: a gate holds one request of one process
// while the others go on.

// gate holds requests until it is opened.
type gate struct {
	once    sync.Once
	arrived chan struct{}
	opened  chan struct{}
}

// hold makes p's requests of one kind for keys that begin with a prefix wait at
// a gate, from the first one on.
func hold(p *process, op, prefix string) *gate {
	g := &gate{arrived: make(chan struct{}), opened: make(chan struct{})}
	p.intercept(func(o, key string) error {
		if o == op && strings.HasPrefix(key, job.Prefix("test")+prefix) {
			g.once.Do(func() { close(g.arrived) })
			<-g.opened
		}
		return nil
	})
	return g
}

func (g *gate) open() { close(g.opened) }

// until waits for a condition of the cluster.
func (c *cluster) until(what string, holds func() bool) {
	c.t.Helper()
	for limit := time.Now().Add(10 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			c.t.Fatalf("waited in vain for %s; the store holds:\n%s", what, c.dump())
		}
	}
}

func (c *cluster) await(what string, done <-chan struct{}) {
	c.t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Minute):
		c.t.Fatalf("waited in vain for %s; the store holds:\n%s", what, c.dump())
	}
}

func (c *cluster) view() membership.View {
	v, err := membership.ReadView(c.ctx, store.Prefixed(c.store, job.Prefix("test")))
	require.NoError(c.t, err)
	return v
}

// ownedBy lists the shards that a living process of this name owns.
func (c *cluster) ownedBy(p *process) []int {
	return membership.Mine(c.view(), p.server.Status().Incarnation)
}

func (c *cluster) checkpoints(shard int) []checkpoint.Meta {
	ms, _, err := checkpoint.List(c.ctx, store.Prefixed(c.store, job.Prefix("test")), shard)
	require.NoError(c.t, err)
	return ms
}

// checkpointNames names the listed checkpoints of shards.
func (c *cluster) checkpointNames(shards []int) (names []string) {
	for _, shard := range shards {
		for _, m := range c.checkpoints(shard) {
			names = append(names, fmt.Sprintf("shard %d, generation %d, %s", shard, m.Generation, m.Path))
		}
	}
	return names
}

// endsWith waits for a process to end with an exit code.
func (c *cluster) endsWith(code job.Code) {
	c.t.Helper()
	select {
	case e := <-c.ends:
		c.n--
		require.Equal(c.t, int(code), job.ExitCode(e.err), "%s: %v", e.name, e.err)
	case <-time.After(10 * time.Minute):
		c.t.Fatalf("no process has ended; the store holds:\n%s", c.dump())
	}
}

// slowCluster is one whose job takes about half a minute.
func slowCluster(t *testing.T, file string, passes int) *cluster {
	c := newCluster(t, file, "")
	c.latency = 40 * time.Millisecond
	c.models = map[string]trainer.Builder{model.Count: newPulled}
	c.spec.Train.Passes = passes
	c.spec.Data.Chunk = 1500
	c.spec.Checkpoint.Interval = 3 * time.Second
	return c
}

func takeover(c *pserver.Config) { c.Takeover = true }

// batches is how many batches the shards of a pserver have applied.
func batches(p *process) (n int64) {
	for _, s := range p.server.Status().Shards {
		n += s.Batches
	}
	return n
}

// H1, H9: an owner is superseded by name while its lease runs, and does not know
// it. A trainer that does not know either goes on pushing to it and is
// acknowledged; what it has been told counts for nothing.
func TestScheduleZombieAcknowledges(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		zombie := c.pserver("pserver-0")
		c.pserver("pserver-1")
		trainers := []*process{c.trainer("trainer-0"), c.trainer("trainer-1")}
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		before := c.view()

		zombie.client.Partition(true)
		for _, p := range trainers { // they get no news of the owners
			p.client.Partition(true)
		}
		successor := c.pserver("pserver-0", takeover)
		c.until("the takeover", func() bool { return len(c.ownedBy(successor)) > 0 })
		require.Greater(t, c.view().Revision, before.Revision)
		known := batches(zombie)
		c.until("the zombie's acknowledgements", func() bool { return batches(zombie) > known+5 })
		c.until("the comparison", func() bool { return doing(successor, "serving") })
		reopened := c.totals().Reopened
		for _, p := range trainers { // a complete that it holds back goes out at once
			g := hold(p, "range", "owners")
			p.client.Partition(false)
			c.await("a trainer's look at the owners", g.arrived)
			g.open()
		}
		zombie.client.Partition(false)
		c.endsWith(job.ExitSuperseded)
		c.wait()
		c.exact(2000, seen)
		require.Equal(t, reopened, c.totals().Reopened, "nothing was completed by the word of the zombie")
	})
}

// H7: a chunk is completed just before, or just after, a shard is claimed by
// somebody who does not have it.
func TestScheduleCompleteMeetsClaim(t *testing.T) {
	file, seen := records(t, 2000)
	for name, claimFirst := range map[string]bool{"complete first": false, "claim first": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 2)
				old := c.pserver("pserver-0")
				c.pserver("pserver-1")
				worker := c.trainer("trainer-0")
				c.until("some work", func() bool { return c.totals().Complete > 5 })
				// The next put of a lane is a complete or a take ahead of one.
				g := hold(worker, "put", "queue/")
				c.await("a report", g.arrived)
				if !claimFirst {
					n := c.totals().Complete
					g.open()
					c.until("the complete", func() bool { return c.totals().Complete > n })
				}
				c.kill(old)
				successor := c.pserver("pserver-0")
				c.until("the claim", func() bool { return len(c.ownedBy(successor)) > 0 })
				c.until("the comparison", func() bool { return doing(successor, "serving") })
				if claimFirst {
					g.open()
				}
				c.wait()
				c.exact(2000, seen)
				require.Positive(t, c.totals().Reopened, "the successor has lost what was complete")
			})
		})
	}
}

// doing tells whether every shard of a pserver is at a step.
func doing(p *process, what string) bool {
	shards := p.server.Status().Shards
	for _, s := range shards {
		if s.Doing != what {
			return false
		}
	}
	return len(shards) > 0
}

// H2: a shard finds that it has lost chunks while the steward finds that every
// chunk is complete. Whichever of them writes first, and even if the shard's
// owner dies right behind its write, somebody looks at the chunks.
func TestScheduleReopenMeetsTurn(t *testing.T) {
	file, seen := records(t, 1000)
	for name, test := range map[string]struct {
		passes    int
		turnFirst bool
		thenDies  bool
	}{
		"reopen, then the next pass":        {passes: 2},
		"the next pass, then reopen":        {passes: 2, turnFirst: true},
		"reopen, then drain":                {passes: 1},
		"drain, then reopen":                {passes: 1, turnFirst: true},
		"next pass, reopen, owner dies":     {passes: 2, turnFirst: true, thenDies: true},
		"drain, reopen, owner dies":         {passes: 1, turnFirst: true, thenDies: true},
		"reopen, owner dies, then the turn": {passes: 2, thenDies: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, test.passes)
				old := c.pserver("pserver-0")
				c.pserver("pserver-1")
				worker := c.trainer("trainer-0")
				c.until("some work", func() bool { return c.totals().Complete > 5 })
				turn := hold(worker, "put", "state")
				c.kill(old)
				loser := c.pserver("pserver-0")
				reopen := hold(loser, "put", "state")
				c.await("the reopen", reopen.arrived)
				c.await("the turn", turn.arrived)
				state := c.state()
				first, second := reopen, turn
				if test.turnFirst {
					first, second = turn, reopen
				}
				first.open()
				c.until("the first write", func() bool { return c.state().Revision > state.Revision })
				state = c.state()
				second.open()
				if test.turnFirst {
					require.True(t, state.Pass == 1 || state.Phase == etcdqueue.PhaseDraining, "%+v", state)
					c.until("the reopen", func() bool { return c.totals().Reopened > 0 })
					require.Equal(t, etcdqueue.PhaseTraining, c.state().Phase)
				} else {
					require.Contains(t, state.Reopened, 0)
				}
				if test.thenDies {
					c.kill(loser)
					c.pserver("pserver-0")
				}
				c.wait()
				c.exact(1000, seen)
			})
		})
	}
}

// H4: the job drains and every shard's last checkpoint is listed; then one
// turns out to be broken. The job must not end on it.
func TestScheduleLastCheckpointIsBroken(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 1)
		old := c.pserver("pserver-0")
		c.pserver("pserver-1")
		worker := c.trainer("trainer-0")
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		finish := hold(worker, "put", "result")
		c.await("the end", finish.arrived)
		require.Equal(t, etcdqueue.PhaseDraining, c.state().Phase)
		mine := c.ownedBy(old)
		c.kill(old)
		for _, shard := range mine {
			newest := c.checkpoints(shard)[0]
			require.Equal(t, 1, newest.Passes)
			c.disk.now().Corrupt("/checkpoints/"+newest.Path, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}
		successor := c.pserver("pserver-0")
		passOver := hold(successor, "delete", "checkpoints/")
		c.await("the look at the broken files", passOver.arrived)
		finish.open()
		time.Sleep(5 * time.Second)
		require.Equal(t, etcdqueue.PhaseDraining, c.state().Phase, "what is listed newest is not of the present owner")
		passOver.open()
		c.wait()
		require.Positive(t, c.totals().Reopened)
		c.exact(1000, seen)
	})
}

// H5: the newest checkpoints of every shard cover a pass, those before do not.
// The pass must stay: the newest of a shard is broken, and it goes back.
func TestScheduleRestoreOfAPassThatIsCovered(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 4)
		c.spec.Checkpoint.Interval = time.Second
		old := c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.untilTaken()
		mine := c.ownedBy(old)
		c.until("checkpoints that cover the first pass", func() bool {
			for _, shard := range mine {
				listed := c.checkpoints(shard)
				if len(listed) < 2 || listed[0].Passes == 0 {
					return false
				}
			}
			return true
		})
		saves := hold(old, "put", "checkpoints/")
		for _, shard := range mine {
			require.Zero(t, c.checkpoints(shard)[1].Passes)
		}
		time.Sleep(3 * time.Second)
		require.Zero(t, c.state().Floor)
		c.kill(old)
		saves.open()
		for _, shard := range mine {
			c.disk.now().Corrupt("/checkpoints/"+c.checkpoints(shard)[0].Path, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}
		c.pserver("pserver-0")
		c.wait()
		require.Positive(t, c.totals().Reopened)
		require.Positive(t, c.state().Floor)
		c.exact(1000, seen)
	})
}

// H8: a predecessor of the same name lists a checkpoint after it was replaced.
func TestScheduleZombieListsACheckpoint(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		zombie := c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		mine := c.ownedBy(zombie)
		listing := hold(zombie, "put", "checkpoints/")
		c.await("a save", listing.arrived)
		successor := c.pserver("pserver-0", takeover)
		c.until("the takeover", func() bool { return len(c.ownedBy(successor)) == len(mine) })
		before := c.checkpointNames(mine)
		listing.open()
		c.endsWith(job.ExitSuperseded)
		for _, name := range c.checkpointNames(mine) {
			if !slices.Contains(before, name) {
				require.Contains(t, name, "generation 2", "listed after the takeover")
			}
		}
		c.wait()
		c.exact(1000, seen)
	})
}

// H10: two living processes want one name. The newcomer leaves, or, if it was
// told to take over, the old one does, and neither comes back by itself.
func TestScheduleTwoOfOneName(t *testing.T) {
	file, seen := records(t, 1000)
	for name, test := range map[string]struct {
		takeover bool
		code     job.Code
	}{
		"name in use": {false, job.ExitUsage},
		"takeover":    {true, job.ExitSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 2)
				c.pserver("pserver-0")
				c.pserver("pserver-1")
				c.trainer("trainer-0")
				c.trainer("trainer-1")
				c.until("some work", func() bool { return c.totals().Complete > 5 })
				c.trainer("trainer-0", func(cfg *trainer.Config) { cfg.Takeover = test.takeover })
				c.endsWith(test.code)
				c.pserver("pserver-1", func(cfg *pserver.Config) { cfg.Takeover = test.takeover })
				c.endsWith(test.code)
				require.Equal(t, etcdqueue.PhaseTraining, c.state().Phase)
				require.Equal(t, 4, c.n, "and everybody else goes on")
				c.wait()
				c.exact(1000, seen)
			})
		})
	}
}

// H13: the answers to all that a trainer writes into the lanes are lost for a
// while. It finds out what has happened; nothing is repaired, counted as a
// failure, or done twice.
func TestScheduleLostAnswers(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		worker := c.trainer("trainer-0")
		c.until("some work", func() bool { return c.totals().Complete > 0 })
		lost := 0
		var mu sync.Mutex
		worker.client.FailAfter(func(op, key string) error {
			mu.Lock()
			defer mu.Unlock()
			if op == "put" && strings.Contains(key, "/queue/") && lost < 12 {
				lost++
				return errInjected
			}
			return nil
		})
		c.wait()
		c.exact(1000, seen)
		got := c.totals()
		require.Equal(t, 12, lost)
		require.Zero(t, got.Failed)
		require.Zero(t, got.Reopened)
		require.Equal(t, got.Complete, got.Takes, "every chunk was taken once")
		require.NotContains(t, c.dump(), "tries\":{\"")
	})
}

// The test data vanish while the job trains: it cannot end, and says so, with
// the exit code for data.
func TestTestDataVanish(t *testing.T) {
	file, _ := records(t, 300)
	test, _ := records(t, 10)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 1)
		c.spec.Data.Test = []string{test}
		ps := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.untilTaken()
		require.NoError(t, os.Remove(test))
		c.endsWith(job.ExitData)
		c.endsWith(job.ExitData)
		require.Equal(t, etcdqueue.PhaseDraining, c.state().Phase)
		for _, p := range ps {
			p.cancel()
		}
		c.wait()
	})
}
