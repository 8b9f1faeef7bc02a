package trainer_test

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/job"
	"starfish/reader"
	"starfish/trainer"
	"starfish/trainer/model"
)

// wild is a model whose gradients and losses are what a test wants.
type wild struct {
	model.Model
	gradient func(s *model.Step) float64
}

func (w wild) Gradient(s *model.Step) float64 { return w.gradient(s) }

func (w wild) Baseline(b *reader.Batch) float64 { return w.Model.(model.Baseliner).Baseline(b) }

func wildCluster(t *testing.T, file string, gradient func(s *model.Step) float64) *cluster {
	t.Helper()
	c := newCluster(t, file, "")
	c.spec.Model.Type = "wild"
	c.models = map[string]trainer.Builder{"wild": func(*job.Spec) (model.Model, error) {
		m, err := model.New(&job.Spec{Model: job.Model{Type: model.Linear}})
		return wild{m, gradient}, err
	}}
	return c
}

// fails requires that all processes end because training diverged, and gives the
// reason.
func (c *cluster) fails() string {
	c.t.Helper()
	for range 4 {
		c.endsWith(job.ExitFailure)
	}
	require.Equal(c.t, etcdqueue.PhaseFailed, c.state().Phase)
	require.Contains(c.t, c.state().Reason, "training diverged: ")
	return c.state().Reason
}

func (c *cluster) everybody() {
	c.pserver("pserver-0")
	c.pserver("pserver-1")
	c.trainer("trainer-0")
	c.trainer("trainer-1")
}

// A gradient that makes a weight infinite breaks the shard; the trainer whose
// batch it was says where it comes from.
func TestBrokenShardIsExplained(t *testing.T) {
	file, _ := records(t, 400)
	synctest.Test(t, func(t *testing.T) {
		c := wildCluster(t, file, func(s *model.Step) float64 {
			for i := range s.Tables[0].Grad {
				s.Tables[0].Grad[i] = -math.MaxFloat32
			}
			return 1
		})
		c.spec.Optimizer.LearningRate = 8 // the divisor of a batch of 8
		c.everybody()
		require.Regexp(t, `^training diverged: on shard \d parameter "weights", row \d+ became non-finite in (batch \d+ of chunk rank \d+ of pass 0)`+
			`; seen at (batch \d+ of chunk rank \d+ of pass 0): `+file+`, lines \d+ to \d+; the largest gradient is of parameter "weights", row \d+`+
			`\. Lower optimizer\.learning_rate \(it is 8\), or set optimizer\.clip_norm; then run a new job$`, c.fails())
	})
}

// Without the trainer that knows more the pserver fails the job by itself.
func TestBrokenShardWithoutItsTrainer(t *testing.T) {
	file, _ := records(t, 400)
	synctest.Test(t, func(t *testing.T) {
		var worker *process
		batch := 0
		c := wildCluster(t, file, func(s *model.Step) float64 {
			if batch++; batch == 1 {
				worker.intercept(func(op, key string) error {
					if op == "put" && strings.HasSuffix(key, "/state") {
						return errInjected
					}
					return nil
				})
			}
			s.DenseGrad[0][0] = -math.MaxFloat32
			return 1
		})
		c.spec.Optimizer.LearningRate = 8
		c.prepare = func(p *process) { worker = p } // the last one is the trainer
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		for range 3 {
			c.endsWith(job.ExitFailure)
		}
		require.Regexp(t, `^training diverged on shard \d: parameter "bias", element 0 became non-finite in batch 1 of chunk rank \d+ of pass 0$`, c.state().Reason)
	})
}

// Batches that are not finite are skipped and counted, up to what the spec
// allows.
func TestTooManySkippedBatches(t *testing.T) {
	file, _ := records(t, 800)
	every := func(n int) func(s *model.Step) float64 {
		batch := 0
		return func(s *model.Step) float64 {
			if batch++; batch%n == 0 {
				s.DenseGrad[0][0] = float32(math.NaN())
			}
			return 1
		}
	}
	for name, test := range map[string]struct {
		every      int
		maxSkipped float64
		says       string
	}{
		"more than 10, more than 1 %": {2, 0.01, "loss or gradient was not finite in 11 of 22 batches, more than may be skipped (train.max_skipped: 0.01)"},
		"none may be":                 {20, 0, "loss or gradient was not finite in 1 of 20 batches"},
		"half may be":                 {2, 0.5, ""},
		"all may be":                  {1, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := wildCluster(t, file, every(test.every))
				c.spec.Train.MaxSkipped = test.maxSkipped
				c.spec.Train.MaxLossGrowth = 0
				c.pserver("pserver-0")
				c.pserver("pserver-1")
				c.trainer("trainer-0")
				if test.says == "" {
					c.wait()
					r := c.result()
					for _, s := range r.Shards {
						require.Equal(t, r.Queue.Batches/int64(test.every), s.Skipped)
						require.Equal(t, r.Queue.Batches, s.Batches+s.Skipped)
					}
					return
				}
				for range 3 {
					c.endsWith(job.ExitFailure)
				}
				reason := c.state().Reason
				require.Contains(t, reason, test.says)
				require.Contains(t, reason, file)
				require.Contains(t, reason, `parameter "bias"`)
			})
		})
	}
}

// A loss that grows fails the job, and at the end of the data less will do; a
// trainer that is not registered any more has no say.
func TestGrowingLoss(t *testing.T) {
	file, _ := records(t, 800)
	growing := func(from int64) func(s *model.Step) float64 {
		var batch atomic.Int64 // of all trainers
		return func(s *model.Step) float64 {
			if batch.Add(1) >= from {
				return 1e9
			}
			return 0.1
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := wildCluster(t, file, growing(1))
		c.everybody()
		require.Contains(t, c.fails(), "times that of predicting nothing, and stayed above 5 times (train.max_loss_growth)")
	})
	synctest.Test(t, func(t *testing.T) {
		// The last two or three samples of 64 records.
		c := wildCluster(t, file, growing(185))
		c.pserver("pserver-0")
		c.pserver("pserver-1")
		c.trainer("trainer-0")
		for range 3 {
			c.endsWith(job.ExitFailure)
		}
		require.Contains(t, c.state().Reason, "(train.max_loss_growth)")
		require.Equal(t, 1, c.state().Pass, "of two")
	})
}
