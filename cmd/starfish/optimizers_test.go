package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each optimizer learns as much as the solvers of others do on these data; the
// settings are the ones that docs/spec.md advises.
func TestRunAdultWithEachOptimizer(t *testing.T) {
	for name, optimizer := range map[string]string{
		"ftrl":     "{type: ftrl, reduction: sum}",
		"ftrl, l1": "{type: ftrl, reduction: sum, l1: 1, l2: 0.1}",
		"adam":     "{type: adam, learning_rate: 0.003}",
		"momentum": "{type: momentum, clip_norm: 1}",
		"nesterov": "{type: nesterov, learning_rate: 0.02, schedule: {type: cosine, steps: 2665, warmup: 100}}",
	} {
		t.Run(name, func(t *testing.T) {
			r := newCall(t, "run", "-f", adult, "--result", "-", "--set", "optimizer="+optimizer).succeed().result()
			require.EqualValues(t, 5*32561, r.Records)
			require.GreaterOrEqual(t, *r.Test.Metrics["auc"], 0.9010)
			require.GreaterOrEqual(t, *r.Test.Metrics["accuracy"], 0.847)
			require.LessOrEqual(t, *r.Test.Metrics["loss"], 0.3275)
		})
	}
}

// Losing processes changes neither what an optimizer reaches nor the time of its
// schedule: every batch counts once.
func TestRunWithAScheduleUnderKills(t *testing.T) {
	r := newCall(t, "run", "-f", adult, "--result", "-", "--chaos", "pserver=1s,trainer=1s", "--chaos-seed", "3",
		"--set", "train.passes=20", "--set", "checkpoint.interval=300ms", "--set", "lease_ttl=2s",
		"--set", "optimizer={type: adam, learning_rate: 0.003, schedule: {type: linear, steps: 10660, final: 0.1}}").succeed().result()
	require.EqualValues(t, 20*32561, r.Records)
	require.GreaterOrEqual(t, *r.Test.Metrics["auc"], 0.9010)
	require.LessOrEqual(t, *r.Test.Metrics["loss"], 0.3275)
	for _, s := range r.Shards {
		require.EqualValues(t, 20*533, s.Batches, "shard %d", s.Shard)
	}
}

// One trainer makes one model, whatever the number of pservers and whatever
// happens to the timing: also where the rate depends on time, and where rows
// have a time of their own.
func TestOptimizersAreDeterministic(t *testing.T) {
	for name, optimizer := range map[string]string{
		"ftrl":     "{type: ftrl, l1: 0.01}",
		"adam":     "{type: adam, schedule: {type: linear, steps: 400, final: 0.2}}",
		"nesterov": "{type: nesterov, l2: 0.001, clip_norm: 0.1, schedule: {type: exponential, steps: 100, decay: 0.9, warmup: 20}}",
	} {
		t.Run(name, func(t *testing.T) {
			var models []string
			for _, pservers := range []string{"1", "3"} {
				path := filepath.Join(t.TempDir(), "model.txt")
				newCall(t, "run", "-f", adult, "--trainers", "1", "--pservers", pservers, "--export", path,
					"--set", "train.passes=1", "--set", "optimizer="+optimizer).succeed()
				models = append(models, exported(t, path))
			}
			require.Greater(t, len(models[0]), 1000)
			require.Equal(t, models[0], models[1])
		})
	}
}
