package trainer_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// accounted requires what policy skip promises, of a job of the count model
// without bad chunks: each shard has applied each batch once or counts it as
// lost; what it has applied is in its part of the model exactly, and nothing else
// is; nothing was trained again for it.
func (c *cluster) accounted(n int, seen map[uint64]int64) (lost int64) {
	c.t.Helper()
	passes := int64(c.spec.Train.Passes)
	r := c.result()
	require.EqualValues(c.t, int64(n)*passes, r.Records)
	require.Equal(c.t, r.Records, r.Queue.Records)
	require.Zero(c.t, c.reopened())
	require.Len(c.t, r.Shards, c.spec.Shards)
	lacks := make([]int64, c.spec.Shards) // records of lost batches
	for i, s := range r.Shards {
		require.Equal(c.t, r.Queue.Batches, s.Batches+s.Skipped+s.Lost, "shard %d", i)
		require.Zero(c.t, s.Skipped)
		lacks[i] = r.Records - s.Records
		require.LessOrEqual(c.t, lacks[i], s.Lost*int64(c.spec.Train.Batch), "shard %d", i)
		require.Equal(c.t, s.Lost > 0, s.Losses > 0, "shard %d", i)
		require.LessOrEqual(c.t, s.Losses, s.Generation-1, "shard %d", i)
		lost += s.Lost
	}
	got := c.export()
	home := job.BlockShard("total", 0, c.spec.Shards)
	require.Equal(c.t, fmt.Sprint(r.Shards[home].Records), got["total 0"], "shard %d", home)
	delete(got, "total 0")
	short := make([]int64, c.spec.Shards) // values of lost batches
	for k, times := range seen {
		shard := job.ShardOf(k, c.spec.Shards)
		name := fmt.Sprintf("seen %d", k)
		count, err := strconv.ParseInt("0"+got[name], 10, 64)
		require.NoError(c.t, err)
		require.LessOrEqual(c.t, count, times*passes, name)
		short[shard] += times*passes - count
		delete(got, name)
	}
	require.Empty(c.t, got)
	for i := range short {
		const most = 4 // values of a record, see records
		require.LessOrEqual(c.t, short[i], most*lacks[i], "shard %d", i)
	}
	return lost
}

func TestSkipCountsWhatKillsLose(t *testing.T) {
	file, seen := records(t, 2000)
	for name, test := range map[string]struct {
		pservers, trainers int
		latency, interval  time.Duration
	}{
		"pservers":                    {pservers: 4},
		"trainers":                    {trainers: 8},
		"trainers and pservers":       {pservers: 4, trainers: 6},
		"pservers on a slow network":  {pservers: 4, latency: 40 * time.Millisecond, interval: 3 * time.Second},
		"all kinds on a slow network": {pservers: 3, trainers: 4, latency: 40 * time.Millisecond, interval: 2 * time.Second},
	} {
		for seed := range *seeds {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, file, "recovery: {policy: skip}")
					interval := 8 * time.Millisecond
					if test.latency > 0 {
						c.latency, interval = test.latency, test.interval
						c.models = map[string]trainer.Builder{model.Count: newPulled}
						c.spec.Data.Chunk = 3000
					}
					struck := c.chaos(rand.New(rand.NewPCG(seed, 3)), interval, test.pservers, test.trainers)
					c.wait()
					lost := c.accounted(2000, seen)
					t.Logf("%d kills struck; %d batches are lost", struck, lost)
					require.Positive(t, struck)
					if test.pservers == 0 {
						require.Zero(t, lost, "no shard was restored")
						c.exact(2000, seen)
					}
				})
			})
		}
	}
}

// Partitions, takeovers by name, silent hosts, broken disks, outages of the
// store, power cuts: see TestPlagueLosesNothing.
func TestSkipUnderThePlague(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "recovery: {policy: skip}")
				p := c.plagued(seed)
				t.Logf("%v; %d batches are lost", p.struck, c.accounted(2000, seen))
			})
		})
	}
}

// A chunk is bad in its middle: the batches of it that a shard has are in its
// ledger and not in the lanes, and are no part of what it has lost.
func TestSkipWithABadChunk(t *testing.T) {
	file, start := spoiled(t)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "recovery: {policy: skip}")
				c.spec.Checkpoint.Interval = time.Second
				c.spec.Data.Chunk, c.spec.Train.Shuffle = badChunkSize, false
				r := rand.New(rand.NewPCG(seed, 7))
				newPlague(c, r).run(plan(r, 15, 40*time.Millisecond))
				c.accountedFor(file, start)
				require.Zero(t, c.reopened())
			})
		})
	}
}

// Shards that are handed over lose nothing, those that are killed count it.
func TestSkipWithHandOvers(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowCluster(t, file, 6)
				c.spec.Recovery.Policy = job.PolicySkip
				c.comeAndGo(rand.New(rand.NewPCG(seed, 21)))
				t.Logf("%d batches are lost", c.accounted(2000, seen))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Recovery.Policy = job.PolicySkip
		first := c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		first.cancel()
		<-first.done
		c.wait()
		c.exact(2000, seen)
	})
}

// longChunk is a job of one chunk, whose trainer is in the middle of it.
func longChunk(t *testing.T, file string) (c *cluster, victim *process) {
	t.Helper()
	c = slowCluster(t, file, 1)
	c.spec.Recovery.Policy = job.PolicySkip
	c.spec.Data.Chunk = 1 << 20
	victim = c.pserver("pserver-0")
	c.pserver("pserver-1")
	return c, victim
}

// inTheChunk waits until a pserver's shards are in no checkpoint with the batches
// that they have, and gives how many those are.
func (c *cluster) inTheChunk(p *process, atLeast int64) {
	c.until("batches that are not saved", func() bool {
		st := p.server.Status()
		for _, s := range st.Shards {
			if s.Batches < atLeast {
				return false
			}
			for _, m := range c.checkpoints(s.Shard) {
				if m.Batches > s.Batches-10 {
					return false
				}
			}
		}
		return len(st.Shards) == 2
	})
}

// A trainer in the middle of a chunk goes on where it is: what the lost owner had
// is not sent again, and its other shards are not asked to look at it twice.
func TestSkipDoesNotGoBack(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c, victim := longChunk(t, file)
		c.trainer("trainer-0")
		c.inTheChunk(victim, 40)
		lost := c.ownedBy(victim)
		c.kill(victim)
		c.pserver("pserver-0")
		c.wait()
		c.accounted(2000, seen)
		for _, s := range c.result().Shards {
			if slices.Contains(lost, s.Shard) {
				require.GreaterOrEqual(t, s.Lost, int64(10), "shard %d", s.Shard)
				require.EqualValues(t, 1, s.Losses)
				continue
			}
			require.Zero(t, s.Lost, "shard %d", s.Shard)
			require.LessOrEqual(t, s.Duplicates, int64(8), "shard %d: what was under way", s.Shard)
		}
		told := c.log.all("batches of chunks in flight are lost")
		require.Len(t, told, 2)
		require.Empty(t, c.log.all("batches of complete chunks are lost"))
		require.Len(t, c.log.all("the shard lacks batches that it has lost"), 2)
	})
}

// When the trainer is lost too nobody knows what was acknowledged: the next one
// begins where the shards are, and nothing is lost.
func TestSkipOfALostTrainerIsReplayed(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c, victim := longChunk(t, file)
		trainer := c.trainer("trainer-0")
		c.inTheChunk(victim, 40)
		c.kill(trainer)
		c.kill(victim)
		c.pserver("pserver-0")
		c.trainer("trainer-0")
		c.wait()
		c.exact(2000, seen)
	})
}

// The whole chunk is acknowledged and not Complete yet when a shard is lost. Its
// last batch is sent again, and the chunk is Complete under the new view.
func TestSkipOfAFinishedChunk(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c, victim := longChunk(t, file)
		proc := c.trainer("trainer-0")
		c.inTheChunk(victim, 40)
		completes := hold(proc, "put", "queue/")
		c.until("the whole chunk", func() bool { return batches(victim) == 2*2000/8 })
		c.await("the complete", completes.arrived)
		lost := c.ownedBy(victim)
		c.kill(victim)
		again := c.pserver("pserver-0")
		c.until("the successor", func() bool { return len(c.ownedBy(again)) == 2 })
		completes.open()
		c.wait()
		c.accounted(2000, seen)
		for _, s := range c.result().Shards {
			if !slices.Contains(lost, s.Shard) {
				require.Zero(t, s.Lost)
				require.LessOrEqual(t, s.Duplicates, int64(1))
				continue
			}
			require.Positive(t, s.Lost, "shard %d", s.Shard)
		}
	})
}

// Connections break, and no shard is restored: everybody goes back, and nothing
// is lost.
func TestSkipGoesBackWhereNothingWasRestored(t *testing.T) {
	file, seen := records(t, 2000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "recovery: {policy: skip}")
				r := rand.New(rand.NewPCG(seed, 9))
				processes := []*process{c.pserver("pserver-0"), c.pserver("pserver-1"), c.trainer("trainer-0"), c.trainer("trainer-1")}
				c.untilTaken()
				cuts := 0
				for c.state().Phase == etcdqueue.PhaseTraining {
					c.net.Cut(processes[r.IntN(len(processes))].host)
					cuts++
					time.Sleep(time.Duration(r.Int64N(int64(20 * time.Millisecond))))
				}
				c.wait()
				c.exact(2000, seen)
				require.Greater(t, cuts, 3)
			})
		})
	}
}

// What is logged of losses: of chunks that were complete, of those in flight, and
// in the end of all.
func TestSkipLogsLosses(t *testing.T) {
	file, seen := records(t, 2000)
	events := documented(t, 1)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Recovery.Policy = job.PolicySkip
		c.disk.refuseCheckpoints(true)
		victim := c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		c.kill(victim)
		c.disk.refuseCheckpoints(false)
		c.pserver("pserver-0")
		c.wait()
		require.Positive(t, c.accounted(2000, seen))
		c.logs(events)
		told := int64(0)
		for message := range events {
			for _, l := range c.log.all(message) {
				told += l.data["batches"].(int64)
			}
		}
		var lost int64
		for _, s := range c.result().Shards {
			lost += s.Lost
		}
		require.Equal(t, 2*lost, told, "as it is lost, and at the end")
	})
}
