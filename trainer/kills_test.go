package trainer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

func TestJobCountsEveryRecordOnce(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.wait()
		c.exact(1000, seen)
	})
}

func TestTwentyTrainersOnAnEmptyStore(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		for i := range 20 {
			c.trainer(fmt.Sprintf("trainer-%d", i))
		}
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.wait()
		c.exact(1000, seen)
		r := c.result()
		require.Equal(t, r.Queue.Complete, r.Queue.Takes, "every chunk was taken exactly once")
	})
}

func TestKilledProcessesLoseNothing(t *testing.T) {
	file, seen := records(t, 2000)
	tests := map[string]struct {
		pservers, trainers int // how many of them are killed
		latency, interval  time.Duration
	}{
		"trainers":               {trainers: 12},
		"pservers":               {pservers: 4},
		"trainers and pservers":  {pservers: 3, trainers: 8},
		"a trainer at the start": {trainers: 1},
		// Chunks are completed while later batches are under way, and a kill
		// strikes between a batch's push and its acknowledgement.
		"trainers on a slow network":  {trainers: 6, latency: 40 * time.Millisecond, interval: 1500 * time.Millisecond},
		"all kinds on a slow network": {pservers: 2, trainers: 4, latency: 40 * time.Millisecond, interval: 1500 * time.Millisecond},
	}
	for name, test := range tests {
		for seed := range *seeds {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, file, "")
					interval := 8 * time.Millisecond
					if test.latency > 0 {
						c.latency, interval = test.latency, test.interval
						c.models = map[string]trainer.Builder{model.Count: newPulled}
						c.spec.Data.Chunk = 3000
					}
					struck := c.chaos(rand.New(rand.NewPCG(seed, 1)), interval, test.pservers, test.trainers)
					c.wait()
					c.exact(2000, seen)
					if test.pservers == 0 {
						require.Zero(t, c.reopened(), "a chunk was completed that a shard did not have")
					}
					t.Logf("%d kills struck between the first take and the last complete", struck)
					require.Positive(t, struck)
				})
			})
		}
	}
}

// chaos starts two pservers and three trainers and kills processes at random
// moments, about interval/2 apart; each is started again under its name. It returns how many kills
// struck while the job trained.
func (c *cluster) chaos(r *rand.Rand, interval time.Duration, pservers, trainers int) (struck int) {
	running := map[string]*process{}
	for _, name := range []string{"pserver-0", "pserver-1"} {
		running[name] = c.pserver(name)
	}
	for _, name := range []string{"trainer-0", "trainer-1", "trainer-2"} {
		running[name] = c.trainer(name)
	}
	c.untilTaken()
	for pservers+trainers > 0 && !c.state().Phase.Ended() {
		time.Sleep(time.Duration(r.Int64N(int64(interval))))
		var name string
		if r.IntN(pservers+trainers) < pservers {
			name = fmt.Sprintf("pserver-%d", r.IntN(2))
			pservers--
		} else {
			name = fmt.Sprintf("trainer-%d", r.IntN(3))
			trainers--
		}
		if c.state().Phase == etcdqueue.PhaseTraining {
			struck++
		}
		c.kill(running[name])
		if strings.HasPrefix(name, "pserver") {
			running[name] = c.pserver(name)
		} else {
			running[name] = c.trainer(name)
		}
	}
	return struck
}

// heal ends a process's partitions, after a while and unless it is dead by then.
func (c *cluster) heal(after time.Duration, ps ...*process) {
	time.AfterFunc(after, func() {
		for _, p := range ps {
			p.mu.Lock()
			if !p.dead {
				p.client.Partition(false)
				c.net.Silence(p.host, false)
			}
			p.mu.Unlock()
		}
	})
}

// untilTaken waits for the first take.
func (c *cluster) untilTaken() {
	for {
		kvs, _, err := store.List(c.ctx, c.store, c.prefix()+"queue/", job.Prefix("test")+"queue0")
		require.NoError(c.t, err)
		if len(kvs) > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Processes are cut off from the store, from each other, or from both, for up to
// three leases, and go on living: what they say meanwhile must count for
// nothing, and they must come back or leave in order.
func TestPartitionedProcessesLoseNothing(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "")
				struck := c.partitions(rand.New(rand.NewPCG(seed, 2)), 6)
				c.wait()
				c.exact(2000, seen)
				t.Logf("%d partitions began between the first take and the last complete", struck)
				require.Positive(t, struck)
			})
		})
	}
}

// partitions cuts random processes off at random moments and heals each after
// a while. It returns how often it did while the job trained.
func (c *cluster) partitions(r *rand.Rand, n int) (struck int) {
	processes := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
	for i := range 3 {
		processes = append(processes, c.trainer(fmt.Sprintf("trainer-%d", i)))
	}
	c.untilTaken()
	for range n {
		time.Sleep(time.Duration(r.IntN(6_000)) * time.Microsecond)
		if c.state().Phase != etcdqueue.PhaseTraining {
			break
		}
		struck++
		p, kind := processes[r.IntN(len(processes))], r.IntN(3)
		if kind != 0 {
			p.client.Partition(true)
		}
		if kind != 1 {
			c.net.Silence(p.host, true)
		}
		c.heal(time.Duration(r.Int64N(int64(3*c.spec.LeaseTTL))), p)
	}
	return struck
}

// The process that makes the job is killed at each of its first requests to
// the store, before the request reaches it or after it took effect.
func TestCreatorIsKilledAtEachStep(t *testing.T) {
	file, seen := records(t, 200)
	for k := range 24 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("request %d, after %v", k, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, file, "")
					var mu sync.Mutex
					n := 0
					dead := make(chan struct{})
					creator := c.trainerAt("trainer-0", func(client *fake.Client) {
						strike := func(op, _ string) error {
							if op == "watch" {
								return nil
							}
							mu.Lock()
							defer mu.Unlock()
							if n++; n == k+1 {
								close(dead)
							}
							if n > k {
								return errKilled
							}
							return nil
						}
						if after {
							client.FailAfter(strike)
						} else {
							client.Fail(strike)
						}
					})
					select {
					case <-dead:
					case <-time.After(time.Minute):
						t.Fatal("the creator made too few requests")
					}
					c.kill(creator)
					<-c.ends // with whatever error: it is dead
					c.n--
					c.pserver("pserver-0")
					c.pserver("pserver-1")
					for i := range 3 {
						c.trainer(fmt.Sprintf("trainer-%d", i))
					}
					c.wait()
					c.exact(200, seen)
				})
			})
		}
	}
}
