package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
)

// eventsOf reads the events of a file by kind.
func eventsOf(t *testing.T, file string) map[string][]map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	kinds := make(map[string][]map[string]any)
	for line := range strings.Lines(string(text)) {
		var event map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &event), line)
		kind := event["kind"].(string)
		kinds[kind] = append(kinds[kind], event)
	}
	return kinds
}

func TestMetricsOut(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "m.jsonl")
	args := []string{"run", "-f", adult, "--dir", filepath.Join(dir, "d"), "--metrics-out", file, "--result", "-"}
	r := newCall(t, args...).succeed().result()
	kinds := eventsOf(t, file)
	require.NotEmpty(t, kinds["progress"])
	require.Contains(t, kinds["progress"][0], "loss")
	require.Len(t, kinds["pass"], 5)
	for i, p := range kinds["pass"] {
		require.InDelta(t, i, p["pass"], 0)
		require.InDelta(t, *r.History[i].Test.Metrics["auc"], p["test"].(map[string]any)["auc"], 0)
	}
	require.Len(t, kinds["result"], 1)
	require.InDelta(t, r.Records, kinds["result"][0]["result"].(map[string]any)["records"], 0)

	newCall(t, args...).succeed()
	kinds = eventsOf(t, file)
	require.Len(t, kinds["result"], 2, "the file of a directory that is resumed goes on")
	require.Len(t, kinds["pass"], 5, "without what was there")

	bad := newCall(t, "run", "-f", adult, "--metrics-out", filepath.Join(dir, "none", "m.jsonl"))
	require.Equal(t, 2, bad.run())
	require.Contains(t, bad.stderr.String(), "--metrics-out")
}

// A full disk is logged once, and nothing else happens.
func TestMetricsOutOnAFullDisk(t *testing.T) {
	log, hook := test.NewNullLogger()
	log.SetLevel(logrus.ErrorLevel)
	e, err := openEvents("/dev/full", log)
	require.NoError(t, err)
	defer e.close()
	now := time.Unix(100, 0)
	m := &meter{last: sight{loss: math.NaN()}}
	for i := range 3 {
		e.see(now.Add(time.Duration(i)*time.Minute), now, m)
	}
	require.Len(t, hook.AllEntries(), 1)
}
