package trainer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
)

// A trainer is ready only while its pservers answer, whether or not it has work:
// a pserver that is stopped (its connections stay), and one that is gone, make it
// unready within 2.5 s, and it is ready again soon after they are back.
func TestReadinessFollowsThePservers(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 2)
		c.spec.LeaseTTL = 20 * time.Second // nothing else tells of it so soon
		p := c.pserver("pserver-0")
		busy := c.trainer("trainer-0")
		require.ErrorContains(t, busy.trainer.Ready(), "waits for")
		c.until("some work", func() bool { return c.totals().Complete > 2 })
		require.NoError(t, busy.trainer.Ready())

		c.net.Silence(p.host, true)
		time.Sleep(2500 * time.Millisecond)
		require.ErrorContains(t, busy.trainer.Ready(), "waits for an answer of pserver-0 for shards [0 1 2 3]")
		time.Sleep(time.Second)
		require.Error(t, busy.trainer.Ready())
		c.net.Silence(p.host, false)
		time.Sleep(2 * time.Second)
		require.NoError(t, busy.trainer.Ready())

		c.kill(p)
		time.Sleep(100 * time.Millisecond)
		require.Error(t, busy.trainer.Ready())
		c.pserver("pserver-0")
		c.wait()
		c.exact(1000, seen)
	})
	small, _ := records(t, 2)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, small, "")
		c.spec.LeaseTTL = 20 * time.Second
		// A job that drains and cannot end: there is nothing to train.
		c.disk.refuseCheckpoints(true)
		p := c.pserver("pserver-0")
		idle := c.trainer("trainer-0")
		c.until("the end of training", func() bool { return c.totals().Complete > 0 && c.state().Phase == etcdqueue.PhaseDraining })
		require.NoError(t, idle.trainer.Ready())
		c.net.Silence(p.host, true)
		time.Sleep(2500 * time.Millisecond)
		require.ErrorContains(t, idle.trainer.Ready(), "waits for an answer of pserver-0")
		c.net.Silence(p.host, false)
		time.Sleep(2 * time.Second)
		require.NoError(t, idle.trainer.Ready())
		c.kill(p)
		time.Sleep(time.Second)
		require.Error(t, idle.trainer.Ready())
		c.pserver("pserver-0")
		time.Sleep(3 * time.Second)
		require.NoError(t, idle.trainer.Ready())
		c.disk.refuseCheckpoints(false)
		c.wait()
	})
}
