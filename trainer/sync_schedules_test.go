package trainer_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/pserver"
)

// allBarriers tells whether every shard of a pserver, of which there are so many,
// is in some way.
func allBarriers(p *process, n int, is func(pserver.BarrierStatus) bool) bool {
	list := barriers(p)
	return len(list) == n && !slices.ContainsFunc(list, func(b pserver.BarrierStatus) bool { return !is(b) })
}

// waitsAt is a barrier at which one batch waits, at a step, for one trainer.
func waitsAt(step int64, name string) func(pserver.BarrierStatus) bool {
	return func(b pserver.BarrierStatus) bool {
		return b.Step == step && b.Batches == 1 && slices.Equal(b.Missing, []string{name})
	}
}

// within requires that something holds before some virtual time is over.
func (c *cluster) within(limit time.Duration, what string, holds func() bool) {
	c.t.Helper()
	for began := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		require.LessOrEqual(c.t, time.Since(began), limit, what)
	}
}

// S4: the answer of an owner that has been replaced, and does not know it, is all
// that a trainer has of a shard while it waits at another. It brings its batch to
// the new owner at once, who has heard of the other trainer only and waits for it;
// no time-out is needed.
func TestScheduleAnswerOfADeadOwner(t *testing.T) {
	file, seen := records(t, 1000)
	synctest.Test(t, func(t *testing.T) {
		c := synchronous(newCluster(t, file, ""))
		c.spec.Recovery.BarrierTimeout = 10 * time.Minute
		near, zombie := c.pserver("pserver-0"), c.pserver("pserver-1")
		behind, ahead := c.trainer("trainer-0"), c.trainer("trainer-1")
		c.soon("some steps", func() bool {
			return allBarriers(zombie, 2, func(b pserver.BarrierStatus) bool { return b.Step > 20 })
		})
		c.net.Part(behind.host, near.host, true)
		var step int64
		c.soon("a step that one pserver has closed and the other has not", func() bool {
			if list := barriers(near); len(list) > 0 {
				step = list[0].Step
			}
			return allBarriers(near, 2, waitsAt(step, behind.name)) &&
				allBarriers(zombie, 2, func(b pserver.BarrierStatus) bool { return b.Step == step+1 && b.Batches == 0 })
		})
		time.Sleep(100 * time.Millisecond) // the answer has come

		zombie.client.Partition(true)
		successor := c.pserver("pserver-1", takeover)
		c.until("the takeover", func() bool { return doing(successor, "serving") })
		c.net.Part(behind.host, near.host, false)
		c.net.Cut(behind.host)
		c.within(5*time.Second, "the new owner waits for "+ahead.name, func() bool {
			return allBarriers(successor, 2, func(b pserver.BarrierStatus) bool { return b.Known && b.Step > step && !b.Recovering })
		})

		zombie.client.Partition(false)
		c.endsWith(job.ExitSuperseded)
		c.wait()
		c.exact(1000, seen)
	})
}

// S5: two trainers wait for each other at two shards while what each has sent to
// the other shard is under way. A trainer sends its batch to all shards at once,
// so each goes on as soon as that has come.
func TestScheduleCrosswise(t *testing.T) {
	file, seen := records(t, 500)
	synctest.Test(t, func(t *testing.T) {
		c := synchronous(newCluster(t, file, ""))
		first, second := c.pserver("pserver-0"), c.pserver("pserver-1")
		left, right := c.trainer("trainer-0"), c.trainer("trainer-1")
		c.strikeAtAStep([]*process{first, second}, "between")
		c.net.Part(left.host, second.host, true)
		c.net.Part(right.host, first.host, true)
		var step int64
		c.within(2*time.Second, "each has sent its batch to whom it reaches", func() bool {
			if list := barriers(first); len(list) > 0 {
				step = list[0].Step
			}
			return allBarriers(first, 2, waitsAt(step, right.name)) && allBarriers(second, 2, waitsAt(step, left.name))
		})
		time.Sleep(200 * time.Millisecond) // both are told that they wait
		require.True(t, allBarriers(first, 2, waitsAt(step, right.name)) && allBarriers(second, 2, waitsAt(step, left.name)))

		c.net.Part(left.host, second.host, false)
		c.within(time.Second, "the batch was under way", func() bool {
			return allBarriers(second, 2, func(b pserver.BarrierStatus) bool { return b.Step == step+1 })
		})
		require.True(t, allBarriers(first, 2, waitsAt(step, right.name)), "the other shards wait still")
		c.net.Part(right.host, first.host, false)
		c.within(time.Second, "the batch was under way", func() bool {
			return allBarriers(first, 2, func(b pserver.BarrierStatus) bool { return b.Step > step })
		})
		c.wait()
		c.exact(500, seen)
	})
}
