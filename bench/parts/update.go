package main

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"starfish/internal/hugepage"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// updates are dense updates next to copying.
func updates() []part {
	var parts []part
	for _, s := range []struct {
		job.OptimizerSettings
		touched int // words of memory that a weight's update reads and writes
	}{
		{job.OptimizerSettings{Type: job.OptimizerSGD, LearningRate: 0.1}, 3},
		{job.OptimizerSettings{Type: job.OptimizerAdagrad, LearningRate: 0.1, Epsilon: 1e-10}, 5},
		{job.OptimizerSettings{Type: job.OptimizerAdam, LearningRate: 0.1, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}, 7},
	} {
		parts = append(parts, part{
			name: fmt.Sprintf("dense %s ÷ copy of the bytes touched", s.Type), unit: "CPU-s a GB touched", target: atLeast(0.7),
			open: func(c *config) (func() (pair, error), func() error, error) {
				round, err := updateRounds(s.OptimizerSettings, s.touched, c.mib<<20)
				return round, nothing, err
			},
		})
	}
	return parts
}

// updateRounds updates blocks as a shard has them, so many bytes of weights,
// state and gradient in all. A copy reads and writes as many bytes as the
// updates do.
func updateRounds(settings job.OptimizerSettings, touched, bytes int) (func() (pair, error), error) {
	o, err := optimizer.New(settings)
	if err != nil {
		return nil, err
	}
	words := job.BlockSize + o.Words(job.BlockSize)
	n := max(1, bytes/4/(words+job.BlockSize))
	blocks, grads := make([][]float32, n), make([][]float32, n)
	memory := large(n * words)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range blocks {
		blocks[i], grads[i] = memory[i*words:(i+1)*words], make([]float32, job.BlockSize)
		o.Init(blocks[i][:job.BlockSize], blocks[i][job.BlockSize:])
		for k := range grads[i] {
			grads[i][k] = rng.Float32() - 0.5
		}
	}
	from, to := large(n*job.BlockSize*touched/2), large(n*job.BlockSize*touched/2)
	copy(to, from)
	gb := 8 * float64(len(from)) / 1e9
	s := sides{
		of: func(u usage) float64 { return u.cpu / gb },
		ours: func() error {
			for i, b := range blocks {
				if bad := o.Dense(b[:job.BlockSize], b[job.BlockSize:], grads[i], optimizer.Step{Scale: 1, Rate: 0.1}); bad >= 0 {
					return errors.New("a weight is not finite")
				}
			}
			return nil
		},
		yardstick: func() error { copy(to, from); return nil },
	}
	for range 2 { // with the pages there
		if err := s.ours(); err != nil {
			return nil, err
		}
	}
	return s.round, s.yardstick()
}

// large is memory on large pages, where there are any. It is written once: all
// that was never written is one page of zeros, which stays in the cache.
func large(n int) []float32 {
	x := make([]float32, n)
	hugepage.Advise(x)
	for i := range x {
		x[i] = 1
	}
	return x
}
