package trainer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/pserver"
)

// A trainer lives and hangs in a computation. Its chunks go to others after
// queue.stall_timeout, and from then on nobody waits for it: the job goes on, with
// it when it wakes up in time, and without it when it does not.
func TestSyncTrainerHangs(t *testing.T) {
	file, seen := records(t, 1000)
	for name, wakes := range map[string]bool{"for a while": true, "to the end": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := synchronous(newCluster(t, file, ""))
				c.spec.Queue.StallTimeout, c.spec.Train.Passes = 8*time.Second, 3
				p := c.pserver("pserver-0")
				c.pserver("pserver-1")
				change, hold := stalling()
				slow := c.trainer("trainer-0", change)
				c.trainer("trainer-1")
				c.trainer("trainer-2")
				c.soon("some steps", func() bool {
					return anyBarrier(p, func(b pserver.BarrierStatus) bool { return b.Step > 10 })
				})
				release := hold()
				c.soon("a wait", func() bool { return anyBarrier(p, waitsFor("trainer-0")) })
				step, began := barriers(p)[0].Step, time.Now()
				c.soon("the others", func() bool {
					return anyBarrier(p, func(b pserver.BarrierStatus) bool { return b.Step > step+5 })
				})
				require.LessOrEqual(t, time.Since(began), 2*c.spec.Queue.StallTimeout)
				if !wakes {
					c.until("the end", func() bool { return c.state().Phase == etcdqueue.PhaseComplete })
				}
				release()
				if wakes {
					c.soon("its return", func() bool { return len(c.log.all("the work goes on after a stand")) > 0 })
					step := barriers(p)[0].Step
					c.net.Delay(slow.host, time.Second)
					c.soon("a wait for it", func() bool { return anyBarrier(p, waitsFor("trainer-0")) })
					require.Less(t, barriers(p)[0].Step, step+100)
					c.net.Delay(slow.host, 20*time.Millisecond)
				}
				c.wait()
				c.exact(1000, seen)
				require.Len(t, c.log.all("no batch has come to an end for queue.stall_timeout: the others do not wait for this trainer, and may take its chunks"), 1)
			})
		})
	}
}
