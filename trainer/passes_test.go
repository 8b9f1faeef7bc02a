package trainer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// witness is the count model as one that is evaluated: it predicts how many
// records have been trained, so that an evaluation tells of which state it is.
type witness struct {
	model.Model
	w *witnesses
}

// witnesses are those of a cluster.
type witnesses struct {
	mu          sync.Mutex
	evaluations int
	// seen, if not nil, is told of the first prediction of an evaluation.
	seen func()
	slow time.Duration // for each prediction
}

func (w *witnesses) build(spec *job.Spec) (model.Model, error) {
	m, err := model.New(spec)
	return witness{m, w}, err
}

func (w witness) Predict(s *model.Step, out []float64) {
	time.Sleep(w.w.slow)
	for i := range out {
		out[i] = float64(s.Dense[0][0])
	}
	w.w.mu.Lock()
	seen := w.w.seen
	w.w.seen = nil
	w.w.mu.Unlock()
	if seen != nil {
		seen()
	}
}

func (w witness) NewMetrics() model.Metrics {
	w.w.mu.Lock()
	defer w.w.mu.Unlock()
	w.w.evaluations++
	return &bounds{low: math.Inf(1), high: math.Inf(-1)}
}

// bounds are the smallest and the largest prediction.
type bounds struct{ low, high float64 }

func (b *bounds) Add(r model.Scored) {
	b.low, b.high = min(b.low, r.Prediction), max(b.high, r.Prediction)
}

func (b *bounds) Result() []model.Metric {
	return []model.Metric{{Name: "low", Value: &b.low}, {Name: "high", Value: &b.high}}
}

// evaluated is a cluster whose test data are its training data.
func evaluated(t *testing.T, file string, passes int) (*cluster, *witnesses) {
	c := newCluster(t, file, "")
	w := &witnesses{}
	c.models = map[string]trainer.Builder{model.Count: w.build}
	c.spec.Train.Passes = passes
	c.spec.Data.Test = []string{file}
	return c, w
}

func (c *cluster) history() []job.PassResult {
	h, err := job.History(c.ctx, store.Prefixed(c.store, job.Prefix("test")), 0)
	require.NoError(c.t, err)
	return h
}

// witnessed requires a record of each pass, of exactly the state at its end.
func (c *cluster) witnessed(n int) {
	c.t.Helper()
	h := c.history()
	require.Len(c.t, h, c.spec.Train.Passes)
	for pass, p := range h {
		require.Equal(c.t, pass, p.Pass)
		require.EqualValues(c.t, n, p.Records, "pass %d", pass)
		require.EqualValues(c.t, n, p.Test.Records)
		require.InDelta(c.t, 0, *p.Train.Loss, 0)
		for _, name := range []string{"low", "high"} {
			require.InDelta(c.t, float64(n*(pass+1)), *p.Test.Metrics[name], 0, "pass %d: %s", pass, name)
		}
	}
	require.Equal(c.t, h[len(h)-1].Test, c.result().Test, "the last evaluation is the job's")
}

func TestEachPassIsEvaluated(t *testing.T) {
	file, seen := records(t, 300)
	synctest.Test(t, func(t *testing.T) {
		c, w := evaluated(t, file, 3)
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.trainer("trainer-1")
		c.wait()
		c.exact(300, seen)
		c.witnessed(300)
		require.Equal(t, 3, w.evaluations)
		last := time.Duration(0)
		for _, p := range c.history() {
			if p.Seconds != nil { // the steward has seen the first take
				at := time.Duration(*p.Seconds * float64(time.Second))
				require.Greater(t, at, last)
				last = at
			}
		}
	})
}

func TestEvaluateAtTheEndOnly(t *testing.T) {
	file, seen := records(t, 300)
	for name, change := range map[string]func(*job.Spec){
		"end":      func(s *job.Spec) { s.Train.Evaluate = job.EvaluateEnd },
		"one pass": func(s *job.Spec) { s.Train.Passes = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, w := evaluated(t, file, 3)
				change(c.spec)
				c.pserver("pserver-0")
				c.trainer("trainer-0")
				c.wait()
				c.exact(300, seen)
				require.Equal(t, 1, w.evaluations)
				h := c.history()
				require.Len(t, h, 1)
				require.Equal(t, c.spec.Train.Passes-1, h[0].Pass)
				require.Equal(t, c.result().Test, h[0].Test)
			})
		})
	}
}

// Without test data the records tell of training; a model without values has
// none.
func TestPassesWithoutTestData(t *testing.T) {
	file, seen := records(t, 300)
	synctest.Test(t, func(t *testing.T) {
		c, w := evaluated(t, file, 2)
		c.spec.Data.Test = nil
		c.pserver("pserver-0")
		c.trainer("trainer-0")
		c.wait()
		c.exact(300, seen)
		require.Zero(t, w.evaluations)
		h := c.history()
		require.Len(t, h, 2)
		require.EqualValues(t, 300, h[0].Records)
		require.Nil(t, h[0].Test)
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.pserver("pserver-0")
		c.trainer("trainer-0")
		c.wait()
		require.Empty(t, c.history())
	})
}

// The steward dies while it evaluates the first pass, at the moment at which it
// would write what it has found, or right after: the record is written once,
// and is true.
func TestStewardIsKilledInAnEvaluation(t *testing.T) {
	file, seen := records(t, 300)
	for _, when := range []string{"predicting", "before the write", "after the write"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, w := evaluated(t, file, 3)
				strike := make(chan struct{})
				var once sync.Once
				at := func(op, key string) error {
					if op == "put" && strings.Contains(key, "/metrics/") {
						once.Do(func() { close(strike) })
						return errKilled
					}
					return nil
				}
				switch when {
				case "predicting":
					w.seen, w.slow = func() { close(strike) }, time.Second
				case "before the write":
					c.prepare = func(p *process) { p.intercept(at) }
				case "after the write":
					c.prepare = func(p *process) { p.client.FailAfter(at) }
				}
				c.pserver("pserver-0")
				trainers := []*process{c.trainer("trainer-0"), c.trainer("trainer-1")}
				c.await("the evaluation", strike)
				for _, p := range trainers {
					if p.trainer.Status().Steward {
						c.kill(p)
						c.prepare = nil
					}
					p.intercept(nil)
					p.client.FailAfter(nil)
				}
				<-c.ends
				c.n--
				c.trainer("trainer-2")
				c.wait()
				c.exact(300, seen)
				c.witnessed(300)
			})
		})
	}
}

// A pserver that has saved nothing of the pass dies while the pass is
// evaluated, or when it has been: what is reopened is trained again, and what
// the record says is of a state in which nothing was missing.
func TestPserverIsKilledInAnEvaluation(t *testing.T) {
	file, seen := records(t, 300)
	for _, when := range []string{"predicting", "turned"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, w := evaluated(t, file, 3)
				if when == "predicting" {
					w.slow = 300 * time.Millisecond
				}
				strike := make(chan struct{})
				w.seen = func() { close(strike) }
				doomed := c.pserver("pserver-0")
				c.pserver("pserver-1")
				c.trainer("trainer-0")
				c.trainer("trainer-1")
				c.until("its shards", func() bool { return len(c.ownedBy(doomed)) > 0 })
				c.await("the evaluation", strike)
				if when == "turned" {
					c.until("the next pass", func() bool { return c.state().Pass == 1 })
				}
				c.kill(doomed)
				<-c.ends
				c.n--
				c.pserver("pserver-0")
				c.wait()
				c.exact(300, seen)
				c.witnessed(300)
				require.Positive(t, c.reopened())
			})
		})
	}
}

// While a pass is evaluated a shard is lost, and its next owner serves before it
// has looked at the lanes. What it would say then is not evaluated.
func TestScheduleEvaluationAsksAnOwnerWithoutHistory(t *testing.T) {
	file, seen := records(t, 300)
	synctest.Test(t, func(t *testing.T) {
		c, w := evaluated(t, file, 2)
		w.slow = 10 * time.Millisecond
		strike := make(chan struct{})
		w.seen = func() { close(strike) }
		c.spec.Checkpoint.Interval = time.Hour
		doomed, heir := c.pserver("pserver-0"), c.pserver("pserver-1")
		c.trainer("trainer-0")
		c.await("the evaluation", strike)
		require.Empty(t, c.checkpoints(c.ownedBy(doomed)[0]))
		lanes := hold(heir, "range", "queue/")
		c.kill(doomed)
		<-c.ends
		c.n--
		c.until("all shards are its own and serve", func() bool { return len(c.ownedBy(heir)) == 4 && heir.server.Ready() == nil })
		c.await("the look at the lanes", lanes.arrived)
		evaluations := w.evaluations
		time.Sleep(2 * time.Second)
		require.Equal(t, evaluations, w.evaluations, "nothing is evaluated meanwhile")
		lanes.open()
		c.wait()
		c.exact(300, seen)
		c.witnessed(300)
		require.Positive(t, c.reopened())
	})
}

// Processes of every kind die at random moments: every record of a pass is of
// a state in which every record was trained as often as it should have been.
func TestEvaluationsUnderKills(t *testing.T) {
	file, seen := records(t, 1000)
	for seed := range *seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, w := evaluated(t, file, 4)
				c.latency, w.slow = 20*time.Millisecond, 20*time.Millisecond
				c.spec.Data.Chunk = 1500
				struck := c.chaos(rand.New(rand.NewPCG(seed, 9)), 3*time.Second, 4, 5)
				c.wait()
				c.exact(1000, seen)
				c.witnessed(1000)
				require.Positive(t, struck)
			})
		})
	}
}
