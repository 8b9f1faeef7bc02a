package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// TestUndefinedMetrics: what cannot be computed is null, with the reason, in
// result and summary, and prediction says the same.
func TestUndefinedMetrics(t *testing.T) {
	dir := t.TempDir()
	var s strings.Builder
	s.WriteString("a,w,y\n")
	for i := range 100 {
		fmt.Fprintf(&s, "x%d,%d,1\n", i%3, i%2)
	}
	data := writeFile(t, filepath.Join(dir, "in.csv"), s.String())
	spec := writeFile(t, filepath.Join(dir, "spec.yaml"), "job: j\ndata: {train: [in.csv], test: [in.csv], format: csv, label: y, weight: w}\nmodel: {type: logistic}\n")
	model, result := filepath.Join(dir, "model.npz"), filepath.Join(dir, "result.json")
	c := newCall(t, "run", "-f", spec, "--export", model, "--result", result).succeed()
	const oneClass = "the test data has records of one class only"
	require.Contains(t, c.stdout.String(), "auc undefined ("+oneClass+"), calibration ")
	require.Contains(t, c.stdout.String(), ", normalized_entropy undefined\n")
	text, err := os.ReadFile(result)
	require.NoError(t, err)
	var r job.Result
	require.NoError(t, json.Unmarshal(text, &r))
	require.Contains(t, r.Test.Metrics, "auc")
	require.Nil(t, r.Test.Metrics["auc"])
	require.Equal(t, map[string]string{"auc": oneClass, "normalized_entropy": oneClass}, r.Test.Undefined)

	c = newCall(t, "predict", "-m", model, "-i", data, "-o", os.DevNull).succeed()
	require.Contains(t, c.stderr.String(), "auc undefined ("+oneClass+")")
	none := strings.NewReplacer(",1,1", ",0,1").Replace(s.String())
	c = newCall(t, "predict", "-m", model, "-i", writeFile(t, data, none), "-o", os.DevNull, "--metrics", result).succeed()
	require.Contains(t, c.stderr.String(), "loss undefined, normalized_entropy undefined\n")
	text, err = os.ReadFile(result)
	require.NoError(t, err)
	var test job.TestResult
	require.NoError(t, json.Unmarshal(text, &test))
	require.Equal(t, "no record has a weight", test.Undefined["loss"])
}
