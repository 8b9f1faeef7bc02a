package trainer_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// snag is the count model as one that takes a time of its own for each batch, on
// one trainer: as long as hold says. The process lives, and so does its lease.
type snag struct {
	model.Model
	hold  func() time.Duration
	stuck *atomic.Bool
}

func (m snag) Gradient(s *model.Step) float64 {
	if d := m.hold(); d > 0 {
		m.stuck.Store(true)
		time.Sleep(d)
	}
	return m.Model.Gradient(s)
}

// snagged is a trainer whose model is held up.
func (c *cluster) snagged(name string, hold func() time.Duration) (*process, *atomic.Bool) {
	stuck := &atomic.Bool{}
	return c.trainer(name, func(cfg *trainer.Config) {
		cfg.Models = map[string]trainer.Builder{model.Count: func(spec *job.Spec) (model.Model, error) {
			m, err := newPulled(spec)
			return snag{m, hold, stuck}, err
		}}
	}), stuck
}

// straggle plays a pass of two trainers, of which one takes so long for each
// batch from its fifth on, and says how long the job took.
func straggle(t *testing.T, speculate, hold time.Duration, check func(c *cluster)) (took time.Duration) {
	t.Helper()
	file, seen := records(t, 2000)
	synctest.Test(t, func(t *testing.T) {
		c := slowCluster(t, file, 1)
		c.spec.Queue.Speculate, c.spec.Queue.StallTimeout = speculate, time.Minute
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		began := time.Now()
		batches := 0
		c.snagged("trainer-1", func() time.Duration {
			if batches++; batches < 5 {
				return 0
			}
			return hold
		})
		c.untilTaken()
		c.until("the end", func() bool { return c.state().Phase.Ended() })
		took = time.Since(began)
		c.wait() // also for the one that hangs
		c.exact(2000, seen)
		require.Zero(t, c.totals().Failed, "to be slow is no failure of a chunk")
		require.Equal(t, c.totals().Speculated, c.result().Queue.Speculated)
		check(c)
	})
	return took
}

// A trainer whose model hangs, while its lease lives on: what it has goes back
// after the stall timeout, others do it, and when the trainer goes on it
// drops what is not its own any more.
func TestStallOfALivingTrainer(t *testing.T) {
	took := straggle(t, 0, 3*time.Minute, func(c *cluster) {
		sum := c.totals()
		require.Positive(t, sum.Requeued)
		require.Zero(t, sum.Speculated)
	})
	t.Logf("the job took %v", took)
	require.Greater(t, took, time.Minute, "nobody knows before the stall timeout")
	require.Less(t, took, 80*time.Second)
}

// At the end of a pass a trainer without work takes over what a slow one has: the
// job does not wait for it. It was slow all the time, so without that the pass
// lasts as long as its last chunks do.
func TestStragglerIsOvertaken(t *testing.T) {
	for name, hold := range map[string]time.Duration{"hangs": 3 * time.Minute, "is slow": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			waits := straggle(t, 0, hold, func(*cluster) {})
			helps := straggle(t, time.Second, hold, func(c *cluster) {
				sum := c.totals()
				require.Positive(t, sum.Speculated)
				require.Zero(t, sum.Requeued)
			})
			t.Logf("the job took %v, and %v with queue.speculate", waits, helps)
			require.Less(t, helps, waits/2)
		})
	}
}

// Trainers that overtake each other without need, and a job with faults all the
// time: every record counts once.
func TestOvertakingLosesNothing(t *testing.T) {
	file, seen := records(t, 600)
	for seed := range *seeds {
		synctest.Test(t, func(t *testing.T) {
			c := slowCluster(t, file, 2)
			c.spec.Queue.Speculate, c.spec.Data.Chunk = 100*time.Millisecond, 600
			c.pserver("pserver-0")
			p := c.pserver("pserver-1")
			for i, name := range []string{"trainer-0", "trainer-1", "trainer-2"} {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				c.snagged(name, func() time.Duration {
					if r.IntN(20) > 0 {
						return 0
					}
					return time.Duration(r.Int64N(int64(20 * time.Second)))
				})
			}
			c.until("some work", func() bool { return c.totals().Complete > 3 })
			if seed%2 == 0 {
				c.kill(p)
				c.pserver("pserver-1")
			}
			c.wait()
			c.exact(600, seen)
			require.Positive(t, c.totals().Speculated)
		})
	}
}
