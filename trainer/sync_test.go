package trainer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

// synchronous makes the trainers of a cluster take each step together, slowly
// enough to strike in the middle of one.
func synchronous(c *cluster) *cluster {
	c.spec.Train.Mode, c.spec.Train.Window = job.ModeSync, 0
	c.latency = 40 * time.Millisecond
	c.models = map[string]trainer.Builder{model.Count: newPulled}
	c.spec.Data.Chunk = 1500
	c.spec.Checkpoint.Interval = time.Second
	return c
}

// barriers are those of the shards that a pserver serves.
func barriers(p *process) (list []pserver.BarrierStatus) {
	for _, s := range p.server.Status().Shards {
		if s.Serving && s.Barrier != nil {
			list = append(list, *s.Barrier)
		}
	}
	return list
}

func anyBarrier(p *process, is func(pserver.BarrierStatus) bool) bool {
	return slices.ContainsFunc(barriers(p), is)
}

// soon waits, millisecond by millisecond, for a moment.
func (c *cluster) soon(what string, holds func() bool) {
	c.t.Helper()
	for range 600_000 {
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	c.t.Fatalf("waited in vain for %s; the store holds:\n%s", what, c.dump())
}

func waitsFor(name string) func(pserver.BarrierStatus) bool {
	return func(b pserver.BarrierStatus) bool { return slices.Contains(b.Missing, name) }
}

// A pserver is killed at every moment of a step: while batches are sent, while
// some wait, when the step has closed and nobody, one or everybody has the reply.
// With a successor of its name and with survivors, the job goes on.
func TestSyncPserverIsKilledAtAnyMoment(t *testing.T) {
	file, seen := records(t, 500)
	for moment := range 8 {
		t.Run(fmt.Sprint(moment), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				victim, other := c.pserver("pserver-0"), c.pserver("pserver-1")
				near, far := c.trainer("trainer-0"), c.trainer("trainer-1")
				c.net.Delay(near.host, 5*time.Millisecond)
				c.net.Delay(far.host, 35*time.Millisecond)
				c.soon("some steps", func() bool {
					return anyBarrier(victim, func(b pserver.BarrierStatus) bool { return b.Step > 5 })
				})
				switch moment {
				case 0: // the send phase: one batch is there, the other not
					c.soon("a batch", func() bool { return anyBarrier(victim, waitsFor("trainer-1")) })
				default: // the get phase: 20 + 5 ms to the one, 20 + 35 ms to the other
					step := barriers(victim)[0].Step
					c.soon("a close", func() bool { return barriers(victim)[0].Step > step })
					time.Sleep(time.Duration(moment-1) * 12 * time.Millisecond)
				}
				c.kill(victim)
				if moment%2 == 0 {
					c.pserver("pserver-0")
				}
				_ = other
				c.wait()
				c.exact(500, seen)
			})
		})
	}
}

// A trainer is killed before its batch, when one pserver has it and the other
// has not, and when both have. The others go on, and nothing is lost or double.
func TestSyncTrainerIsKilledAtAnyMoment(t *testing.T) {
	file, seen := records(t, 500)
	for _, moment := range []string{"before", "in", "after"} {
		t.Run(moment, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				servers := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
				victim, other := c.trainer("trainer-0"), c.trainer("trainer-1")
				c.soon("some steps", func() bool {
					return anyBarrier(servers[0], func(b pserver.BarrierStatus) bool { return b.Step > 5 })
				})
				switch moment {
				case "before":
					c.net.Delay(victim.host, time.Second)
				case "in":
					c.net.Part(victim.host, servers[1].host, true)
					c.net.Delay(other.host, 100*time.Millisecond)
				case "after":
					c.net.Delay(other.host, time.Second)
				}
				name := map[string]string{"before": "trainer-0", "in": "trainer-1", "after": "trainer-1"}[moment]
				c.soon("a wait", func() bool { return anyBarrier(servers[0], waitsFor(name)) })
				c.kill(victim)
				c.net.Delay(other.host, 20*time.Millisecond)
				c.wait()
				c.exact(500, seen)
			})
		})
	}
}

// Trainers join at any moment of a step, and leave in order.
func TestSyncTrainersJoinAtAnyMoment(t *testing.T) {
	file, seen := records(t, 500)
	for offset := range 6 {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				p := c.pserver("pserver-0")
				c.pserver("pserver-1")
				first := c.trainer("trainer-0")
				c.soon("some steps", func() bool {
					return anyBarrier(p, func(b pserver.BarrierStatus) bool { return b.Step > 5 })
				})
				time.Sleep(time.Duration(offset) * 17 * time.Millisecond)
				c.trainer("trainer-1")
				time.Sleep(time.Duration(offset) * 23 * time.Millisecond)
				c.trainer("trainer-2")
				time.Sleep(2 * time.Second)
				first.cancel() // an orderly stop
				c.wait()
				c.exact(500, seen)
			})
		})
	}
}

// The step that a restored shard does not know: with the recovery mode it adopts
// one and the job goes on; without it the job stands still, and says why, until
// somebody else owns the shard.
func TestSyncRecoveryMode(t *testing.T) {
	file, seen := records(t, 1000)
	for _, mode := range []pserver.Recovery{pserver.RecoveryAuto, pserver.RecoveryAlways, pserver.RecoveryNever} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				recovery := func(cfg *pserver.Config) { cfg.Recovery = mode }
				victim := c.pserver("pserver-0", recovery)
				c.pserver("pserver-1", recovery)
				c.trainer("trainer-0")
				c.trainer("trainer-1")
				c.soon("some steps", func() bool {
					return anyBarrier(victim, func(b pserver.BarrierStatus) bool { return b.Step > 20 })
				})
				c.kill(victim)
				successor := c.pserver("pserver-0", recovery)
				c.soon("the successor's batches", func() bool {
					return anyBarrier(successor, func(b pserver.BarrierStatus) bool { return b.Batches > 0 })
				})
				deadline := 10 * time.Minute
				if mode != pserver.RecoveryNever {
					began := time.Now()
					c.wait()
					c.exact(1000, seen)
					require.Less(t, time.Since(began), deadline)
					return
				}
				before := batches(successor)
				time.Sleep(deadline)
				require.Equal(t, before, batches(successor), "the job stands still")
				told := c.log.all("waiting for the end of a step")
				require.NotEmpty(t, told, "and says why")
				require.Contains(t, told[0].data["reason"], "--recovery never")
				require.Less(t, len(told), 40, "now and then")
				require.True(t, anyBarrier(successor, func(b pserver.BarrierStatus) bool { return !b.Known && b.Batches == 2 }))
				c.kill(successor)
				c.pserver("pserver-0")
				c.wait()
				c.exact(1000, seen)
			})
		})
	}
}

// A live trainer does not come to the first barrier after a recovery: it ends at
// the time-out, and the trainer is told the open step when it comes.
func TestSyncBarrierTimeout(t *testing.T) {
	file, seen := records(t, 500)
	synctest.Test(t, func(t *testing.T) {
		c := synchronous(newCluster(t, file, ""))
		c.spec.Recovery.BarrierTimeout = 5 * time.Second
		victim, other := c.pserver("pserver-0"), c.pserver("pserver-1")
		c.trainer("trainer-0")
		late := c.trainer("trainer-1")
		c.soon("some steps", func() bool {
			return anyBarrier(victim, func(b pserver.BarrierStatus) bool { return b.Step > 5 })
		})
		c.kill(victim)
		successor := c.pserver("pserver-0")
		c.net.Part(late.host, successor.host, true) // it lives, and reaches the other
		c.net.Part(late.host, other.host, true)
		c.soon("the wait", func() bool { return anyBarrier(successor, waitsFor("trainer-1")) })
		began := time.Now()
		c.soon("the end of the mode", func() bool {
			return !anyBarrier(successor, func(b pserver.BarrierStatus) bool { return b.Recovering })
		})
		require.LessOrEqual(t, time.Since(began), 6*time.Second)
		c.net.Part(late.host, successor.host, false)
		c.net.Part(late.host, other.host, false)
		c.wait()
		c.exact(500, seen)
	})
}

// Seven chunks of unequal length on three trainers: those without work are not
// waited for, and the job ends soon after the last batch.
func TestSyncUnequalWork(t *testing.T) {
	dir, n, seen := t.TempDir(), 0, map[uint64]int64{}
	for i := range 7 {
		var b strings.Builder
		for range 5 + 37*i*i%200 {
			key := uint64(n % 31)
			fmt.Fprintf(&b, "%d %d:1\n", n%2, key)
			seen[key]++
			n++
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.libsvm", i)), []byte(b.String()), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		c := synchronous(newCluster(t, dir, ""))
		c.spec.Data.Chunk, c.spec.Queue.Lanes = job.WholeFile, 3
		p := c.pserver("pserver-0")
		c.pserver("pserver-1")
		for i := range 3 {
			c.trainer(fmt.Sprintf("trainer-%d", i))
		}
		pushed, last := int64(0), time.Now()
		for c.n > 0 {
			if b := batches(p); b != pushed {
				pushed, last = b, time.Now()
			}
			select {
			case e := <-c.ends:
				require.NoError(t, e.err)
				c.n--
			case <-time.After(10 * time.Millisecond):
			}
			require.Less(t, time.Since(last), 30*time.Second)
		}
		require.Less(t, time.Since(last), 5*time.Second)
		c.exact(n, seen)
	})
}

// Bytes of an old push of a trainer that is idle by now come to the pservers late,
// over another connection, which stays or ends: the others do not wait for it.
func TestSyncAnOldPushComesLate(t *testing.T) {
	dir, n, seen := t.TempDir(), 0, map[uint64]int64{}
	for i, size := range []int{5, 400} { // one batch, and fifty
		text := strings.Repeat("1 7:1\n", size)
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.libsvm", i)), []byte(text), 0o600))
		n += size
	}
	seen[7] = int64(n)
	for _, staleness := range []int{0, 2} {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprintf("staleness %d, its stream ends: %v", staleness, ends), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := synchronous(newCluster(t, dir, ""))
					c.spec.Data.Chunk, c.spec.Queue.Lanes, c.spec.Queue.Speculate, c.spec.Train.Passes = job.WholeFile, 1, 0, 1
					if staleness > 0 {
						c.spec.Train.Mode, c.spec.Train.Staleness = job.ModeAsync, staleness
					}
					c.pserver("pserver-0")
					c.pserver("pserver-1")
					c.trainer("trainer-0")
					c.trainer("trainer-1")
					c.soon("the end of the short chunk", func() bool { return c.totals().Complete == 1 })
					time.Sleep(200 * time.Millisecond)
					c.oldPush(ends)
					began := time.Now()
					c.wait()
					require.Less(t, time.Since(began), 8*time.Second)
					c.exact(n, seen)
				})
			})
		}
	}
}

// oldPush sends every shard the first batch of the only chunk that is complete, in
// the name of the trainer that has no chunk.
func (c *cluster) oldPush(ends bool) {
	st := store.Prefixed(c.store, c.prefix())
	kv, err := store.Lookup(c.ctx, st, "queue/000000/0000")
	require.NoError(c.t, err)
	var lane etcdqueue.Lane
	require.NoError(c.t, json.Unmarshal(kv.Value, &lane))
	require.Len(c.t, lane.Pending, 1)
	roster, err := membership.ReadRoster(c.ctx, st, membership.Trainers)
	require.NoError(c.t, err)
	var idle uuid.UUID
	for _, m := range roster.Members {
		if m.Incarnation != lane.Pending[0].Incarnation {
			idle = uuid.MustParse(m.Incarnation)
		}
	}
	j, err := job.Load(c.ctx, st)
	require.NoError(c.t, err)
	for shard, o := range c.view().Shards {
		ctx, cancel := context.WithCancel(c.ctx)
		c.t.Cleanup(cancel)
		stream, err := transport.Open(ctx, c.net.Host("elsewhere"), o.Address)
		require.NoError(c.t, err)
		b := wire.NewPool(1).Get()
		var w wire.RequestWriter
		w.Start(b, j.UUID, 1)
		w.Section(shard, o.Generation)
		w.Barrier(wire.Barrier{Kind: wire.Arrive, Trainer: idle})
		for rank := range lane.Complete.All() {
			w.Push(&wire.Meta{Rank: rank, Token: 1, Last: true, Records: 5}, 0)
		}
		w.Finish()
		require.NoError(c.t, stream.Send(b))
		body, err := stream.Recv()
		require.NoError(c.t, err)
		var r wire.Response
		require.NoError(c.t, r.Decode(body))
		require.Equal(c.t, wire.Duplicate, r.Shards[0].Code)
		if ends {
			cancel()
		}
	}
}

// Kills of both kinds at random moments, for many seeds.
func TestSyncUnderKills(t *testing.T) {
	file, seen := records(t, 1000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				c.chaos(rand.New(rand.NewPCG(seed, 1)), 1500*time.Millisecond, 2, 4)
				c.wait()
				c.exact(1000, seen)
			})
		})
	}
}

// The result says how old values were: in mode sync they are fresh, in mode async
// others have changed them meanwhile.
func TestStalenessInTheResult(t *testing.T) {
	file, _ := records(t, 500)
	for _, mode := range []string{job.ModeSync, job.ModeAsync} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				c.spec.Train.Mode = mode
				c.pserver("pserver-0")
				for i := range 3 {
					c.trainer(fmt.Sprintf("trainer-%d", i))
				}
				c.wait()
				age := c.result().Staleness
				require.NotNil(t, age)
				if mode == job.ModeSync {
					require.Zero(t, *age)
				} else {
					require.Positive(t, age.P50)
					require.GreaterOrEqual(t, age.P99, age.P50)
				}
			})
		})
	}
}

func TestSyncCountsExactly(t *testing.T) {
	file, seen := records(t, 500)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.spec.Train.Mode, c.spec.Train.Window = job.ModeSync, 0
		for i := range 4 {
			c.pserver(fmt.Sprintf("pserver-%d", i))
			c.trainer(fmt.Sprintf("trainer-%d", i))
		}
		c.wait()
		c.exact(500, seen)
		require.Equal(t, job.ModeSync, c.result().Mode)
	})
}
