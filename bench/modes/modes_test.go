package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/trainer/model"
)

func TestReport(t *testing.T) {
	t.Parallel()
	cells := []cell{
		{mode: "async", trainers: 1, auc: 0.7636, loss: 0.48, seconds: 2.04, cpu: 3},
		{mode: "sync", trainers: 16, auc: 0.7596, loss: 0.4846, seconds: 20, cpu: 30, stale: &job.Staleness{P99: 7}},
	}
	var b bytes.Buffer
	require.EqualError(t, report(&b, table{name: "clicks", within: 0.003}, cells),
		"clicks: the AUC is 0.7596 (sync, 16 trainers) to 0.7636 (async, 1 trainers), more than 0.003 apart")
	require.Contains(t, b.String(), "16         sync    0.7596   0.4846     0               7     20.0      30.0")
	require.Contains(t, b.String(), "AUC within 0.0040\n")
	require.NoError(t, report(io.Discard, table{within: 0.005}, cells))
	require.NoError(t, report(io.Discard, table{}, cells), "no bound")
}

func TestReadResult(t *testing.T) {
	t.Parallel()
	auc, loss, seconds := 0.9, 0.3, 2.0
	r := job.Result{Test: &job.TestResult{Metrics: map[string]*float64{"auc": &auc, "loss": &loss}},
		Staleness: &job.Staleness{P50: 1, P99: 2}, Seconds: &seconds, CPUSeconds: &seconds}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	c, err := readResult(text)
	require.NoError(t, err)
	require.Equal(t, cell{auc: auc, loss: loss, seconds: seconds, cpu: seconds, stale: &job.Staleness{P50: 1, P99: 2}}, c)
	_, err = readResult([]byte(`{"v":1}`))
	require.ErrorContains(t, err, "lacks")
	_, err = readResult([]byte("Segmentation fault"))
	require.Error(t, err)
}

// The specs are valid in every mode.
func TestSpecsAreValid(t *testing.T) {
	t.Parallel()
	c := config{staleness: 4}
	file := filepath.Join(t.TempDir(), "spec.yaml")
	require.NoError(t, os.WriteFile(file, []byte(specText("/data/with space/train.libsvm", "/data/test.libsvm")), 0o600))
	names, sets := c.modes()
	for _, mode := range names {
		for _, spec := range []string{file, filepath.Join("..", "..", "examples", "adult", "adult.yaml")} {
			var given []string
			if set := sets[mode]; set != nil {
				given = set[1:]
			}
			s, err := job.ReadSpec(spec, given, job.Models(model.Names()...))
			require.NoError(t, err)
			require.Equal(t, mode == job.ModeSync, s.Train.Mode == job.ModeSync)
			require.Equal(t, mode == "staleness: 4", s.Train.Staleness == 4)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-trainers", "0"}, {"-trainers", "1,x"}, {"-staleness", "0"}, {"x"}, {"-frobnicate"}} {
		require.Error(t, run(args, io.Discard, io.Discard), args)
	}
	require.ErrorContains(t, run([]string{"-adult=false", "-rows", "5", "-cache", t.TempDir(), "-starfish", "/does/not/exist"}, io.Discard, io.Discard), "/does/not/exist")
}
