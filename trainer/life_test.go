package trainer_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/job"
)

// leased requires that every key which says that somebody lives is under a
// lease, and no other key is.
func (c *cluster) leased() {
	c.t.Helper()
	prefix := c.prefix()
	kvs, _, err := store.List(c.ctx, c.store, prefix, store.PrefixEnd(prefix))
	require.NoError(c.t, err)
	for _, kv := range kvs {
		key := strings.TrimPrefix(kv.Key, prefix)
		lives := strings.HasPrefix(key, "trainers/") || strings.HasPrefix(key, "pservers/") || key == "steward"
		require.Equal(c.t, lives, kv.Lease != 0, key)
	}
}

// The parts of a job may be started in any order, with any time between.
func TestStartOrders(t *testing.T) {
	file, seen := records(t, 300)
	for _, order := range []string{"PpTt", "PTpt", "PTtp", "TPpt", "TPtp", "TtPp"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "")
				for i, what := range order {
					if i > 0 {
						time.Sleep(time.Minute)
					}
					name := map[rune]string{'P': "pserver-0", 'p': "pserver-1", 'T': "trainer-0", 't': "trainer-1"}[what]
					if strings.HasPrefix(name, "p") {
						c.pserver(name)
					} else {
						c.trainer(name)
					}
				}
				c.wait()
				c.exact(300, seen)
				require.Zero(t, c.store.Leases(), "everybody has left in order")
			})
		})
	}
}

// Eight trainers, six, nine, in the middle of a pass, in order: nothing is
// lost, and nothing comes back because somebody was missed.
func TestTrainersComeAndGo(t *testing.T) {
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		var ps []*process
		for i := range 8 {
			ps = append(ps, c.trainer(fmt.Sprintf("trainer-%d", i)))
		}
		c.until("some work", func() bool { return c.totals().Complete > 8 })
		c.leased()
		ps[0].cancel()
		ps[5].cancel()
		c.endsWith(job.ExitOK)
		c.endsWith(job.ExitOK)
		for i := range 3 {
			c.trainer(fmt.Sprintf("late-%d", i))
		}
		require.Equal(t, etcdqueue.PhaseTraining, c.state().Phase)
		c.wait()
		c.exact(2000, seen)
		require.Zero(t, c.totals().Requeued)
		require.Zero(t, c.totals().Reopened)
	})
}

// What is started after the end leaves at once, and touches nothing.
func TestStartedAfterTheEnd(t *testing.T) {
	file, seen := records(t, 300)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		for range 3 {
			c.pserver("pserver-0")
			c.pserver("pserver-1")
			c.trainer("trainer-0")
			c.wait()
			c.exact(300, seen)
		}
		before := c.store.Dump()
		c.trainer("trainer-1")
		c.pserver("pserver-2")
		c.wait()
		require.Equal(t, before, c.store.Dump())
	})
}

// Every pserver is gone for longer than the stall timeout. The trainers wait for
// a shard, which is no fault of theirs: they keep their chunks.
func TestShardsAreDownForLong(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Queue.StallTimeout = 10 * time.Second
		old := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.until("some work", func() bool { return c.totals().Complete > 5 })
		for _, p := range old {
			c.kill(p)
		}
		time.Sleep(3 * time.Minute)
		c.pserver("pserver-0")
		c.wait()
		c.exact(1000, seen)
		require.Zero(t, c.totals().Requeued, "a trainer that waits for a named shard is left alone")
	})
}

// Nobody is left, and the job waits; whoever comes then goes on with it.
func TestEverybodyDies(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Checkpoint.Interval = time.Second
		all := []*process{c.pserver("pserver-0"), c.pserver("pserver-1"), c.trainer("trainer-0"), c.trainer("trainer-1")}
		c.until("the second pass", func() bool { return c.totals().Complete > 5 && c.state().Pass == 1 })
		for _, p := range all[:3] {
			c.kill(p)
		}
		all[3].cancel() // the last one leaves in order
		<-all[3].done
		done := c.totals().Complete
		time.Sleep(time.Hour)
		require.Equal(t, 1, c.state().Pass)
		require.Equal(t, done, c.totals().Complete)
		require.Equal(t, etcdqueue.PhaseTraining, c.state().Phase, "that nobody works is no end")
		require.Zero(t, c.store.Leases())
		c.pserver("other-0")
		c.trainer("other-1")
		c.wait()
		c.exact(1000, seen)
	})
}

// Bad records within the limit are left out of every pass, and counted.
func TestBadRecordsWithinTheLimitAreCounted(t *testing.T) {
	file, seen := records(t, 300)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append([]byte("1 5:x\n"), text...), 0o600))
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.spec.Data.MaxBadRecords = 1
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		p := c.trainer("trainer-0")
		c.wait()
		c.exact(300, seen)
		require.EqualValues(t, 2, p.trainer.Status().Bad, "once in each of two passes")
		require.EqualValues(t, 2, c.result().BadRecords)
	})
	// A chunk that is read again, for a shard that has lost it, counts once.
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.Data.MaxBadRecords = 1
		c.spec.Train.Shuffle = false
		c.disk.refuseCheckpoints(true)
		p := c.pserver("pserver-0")
		w := c.trainer("trainer-0")
		c.until("the chunk with the bad record", func() bool { return c.totals().Bad == 1 })
		c.kill(p)
		c.disk.refuseCheckpoints(false)
		c.pserver("pserver-0")
		c.wait()
		c.exact(300, seen)
		require.Positive(t, c.totals().Reopened)
		require.Greater(t, w.trainer.Status().Bad, int64(2))
		require.EqualValues(t, 2, c.result().BadRecords)
	})
}
