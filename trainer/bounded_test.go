package trainer_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

// stuck is a model whose computation stands still between hold and release.
type stuck struct {
	model.Model
	gate *atomic.Pointer[chan struct{}]
}

func (s stuck) Gradient(step *model.Step) float64 {
	if wait := s.gate.Load(); wait != nil {
		<-*wait
	}
	return s.Model.Gradient(step)
}

// stalling makes a trainer whose computation can be held: it lives, and answers,
// and comes to no end of its batch until it is released.
func stalling() (change func(*trainer.Config), hold func() (release func())) {
	var gate atomic.Pointer[chan struct{}]
	build := func(spec *job.Spec) (model.Model, error) {
		m, err := newPulled(spec)
		return stuck{m, &gate}, err
	}
	return func(cfg *trainer.Config) { cfg.Models = map[string]trainer.Builder{model.Count: build} }, func() func() {
		wait := make(chan struct{})
		gate.Store(&wait)
		return func() {
			gate.Store(nil)
			close(wait)
		}
	}
}

// One trainer is held. With a bound of k steps nobody comes further than k steps
// ahead of it at any shard, and everybody does come so far; they go on when it is
// released, or when it is killed and its lease has ended.
func TestBoundedStalenessOfAJob(t *testing.T) {
	file, seen := records(t, 1000)
	for _, k := range []int64{1, 3} {
		for _, window := range []int{0, 1} {
			for _, killed := range []bool{false, true} {
				t.Run(fmt.Sprintf("k %d, window %d, killed %v", k, window, killed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := slowCluster(t, file, 2)
						c.spec.Train.Staleness, c.spec.Train.Window, c.spec.Queue.Speculate = int(k), window, 0
						c.boundedStaleness(k, killed)
						c.exact(1000, seen)
					})
				})
			}
		}
	}
}

func (c *cluster) boundedStaleness(k int64, killed bool) {
	servers := []*process{c.pserver("pserver-0"), c.pserver("pserver-1")}
	change, hold := stalling()
	slow := c.trainer("trainer-0", change)
	c.trainer("trainer-1")
	c.trainer("trainer-2")
	all := func() []pserver.BarrierStatus { return slices.Concat(barriers(servers[0]), barriers(servers[1])) }
	most := int64(0) // that anybody has been ahead
	look := func() []pserver.BarrierStatus {
		now := all()
		for _, b := range now {
			most = max(most, b.Lead)
		}
		return now
	}
	c.soon("some steps", func() bool {
		return slices.ContainsFunc(look(), func(b pserver.BarrierStatus) bool { return b.Step > 20 })
	})

	release := hold()
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(time.Millisecond) {
		look()
	}
	held := look()
	require.Len(c.t, held, c.spec.Shards)
	for _, b := range held {
		require.Equal(c.t, held[0], b)
		require.Equal(c.t, []string{"trainer-0"}, b.Missing)
		require.Equal(c.t, []int64{2, k}, []int64{int64(b.Batches), b.Lead}, "both wait, as far ahead as they may be")
	}
	began := time.Now()
	if killed {
		c.kill(slow)
	}
	release()
	c.soon("the others", func() bool { return look()[0].Step > held[0].Step+2 })
	limit := time.Second
	if killed {
		limit += c.spec.LeaseTTL
	}
	require.LessOrEqual(c.t, time.Since(began), limit)
	for c.n > 0 {
		select {
		case e := <-c.ends:
			require.NoError(c.t, e.err, e.name)
			c.n--
		case <-time.After(time.Millisecond):
			look()
		}
	}
	require.Equal(c.t, k, most)
}
