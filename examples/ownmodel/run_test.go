package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/predict"
	"starfish/reader"
	"starfish/trainer/model"
)

// TestFromTrainingToPrediction: the job trains as well as its spec says, the
// exported file is loaded in this process, and it predicts what the job's own
// evaluation did, record by record.
func TestFromTrainingToPrediction(t *testing.T) {
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/starfish", "./cmd/pserver", "./examples/ownmodel")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	file := filepath.Join(dir, "visits.safetensors")
	run := exec.Command(filepath.Join(dir, "starfish"), "run", "-f", "visits.yaml", "--trainer-binary", filepath.Join(dir, "ownmodel"),
		"--dir", filepath.Join(dir, "run"), "--export", file, "--result", "-")
	var log strings.Builder
	run.Stderr = &log
	text, err := run.Output()
	require.NoError(t, err, log.String())
	var r job.Result
	require.NoError(t, json.Unmarshal(text, &r))
	require.NotNil(t, r.Test.Metrics["deviance"])
	require.Less(t, *r.Test.Metrics["deviance"], 1.2)

	m, err := predict.LoadWith(file, newPoisson)
	require.NoError(t, err)
	require.Equal(t, r.Records, m.Records())
	lines, err := m.Lines(predict.LineOptions{Labels: true})
	require.NoError(t, err)
	records, err := os.ReadFile("visits.test.libsvm")
	require.NoError(t, err)
	metrics, read, batch := m.NewMetrics(), reader.NewText(nil, m.Options()), reader.Batch{}
	flaws, err := read.Parse(records, &batch, nil)
	require.NoError(t, err)
	require.Empty(t, flaws)
	predictions := make([]float64, batch.Records())
	m.Predict(&batch, predictions)
	model.AddBatch(metrics, &batch, predictions)
	require.Equal(t, r.Test, model.TestResult(int64(batch.Records()), metrics))
	for i, line := range strings.Split(strings.TrimSpace(string(records)), "\n") {
		p, err := lines.Score([]byte(line))
		require.NoError(t, err)
		require.Equal(t, predictions[i], p) //nolint:testifylint // to the bit
	}

	_, err = predict.Load(file)
	require.ErrorIs(t, err, model.ErrUnknown, "the program starfish does not know it")
}
