package trainer_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/pserver"
)

// scarce is a job of 40 shards, of which each takes a little more than 64 KiB as soon
// as it has a row, on two pservers of 1 MiB each: they have room for 15.
func scarce(t *testing.T, file string) (c *cluster, limited func(*pserver.Config)) {
	t.Helper()
	c = slowCluster(t, file, 2)
	c.spec.Shards = 40
	limited = func(cfg *pserver.Config) { cfg.MaxMemory = 1 << 20 }
	c.pserver("pserver-0", limited)
	c.pserver("pserver-1", limited)
	return c, limited
}

// At the memory limit of the pservers the job waits, and says so; when another one
// joins and takes shards it goes on. Nothing is lost, and nothing comes twice.
func TestMemoryLimitIsWaitedOut(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c, limited := scarce(t, file)
		trainers := []*process{c.trainer("trainer-0"), c.trainer("trainer-1")}
		waits := func() bool {
			for _, p := range trainers {
				if !strings.Contains(p.trainer.Status().Waiting, "is at its memory limit: shard ") {
					return false
				}
			}
			return true
		}
		c.until("the trainers wait for memory", waits)
		time.Sleep(3 * time.Minute)
		require.Equal(t, etcdqueue.PhaseTraining, c.state().Phase)
		before := c.totals()
		require.Zero(t, before.Requeued, "who waits for memory is not stalled")
		c.until("they wait", waits)
		require.NotEmpty(t, c.log.all("at the memory limit: no new rows; another pserver, or a higher --max-memory, makes room"), "a pserver says so")
		c.pserver("pserver-2", limited)
		c.wait()
		c.exact(1000, seen)
		require.Zero(t, c.totals().Reopened)
		require.Zero(t, c.totals().Failed)
	})
}

// If no memory comes the job fails after recovery.memory_wait, and says what to do.
func TestMemoryLimitFailsTheJob(t *testing.T) {
	file, _ := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c, _ := scarce(t, file)
		c.spec.Recovery.MemoryWait = 10 * time.Minute
		began := time.Now()
		c.trainer("trainer-0")
		for ; c.n > 0; c.n-- {
			e := <-c.ends
			require.ErrorContains(t, e.err, "at its memory limit")
			require.ErrorContains(t, e.err, "of 1.0 MiB are used")
			require.ErrorContains(t, e.err, "--max-memory")
		}
		require.InDelta(t, 10*time.Minute, time.Since(began), float64(time.Minute))
		require.Equal(t, etcdqueue.PhaseFailed, c.state().Phase)
	})
}
