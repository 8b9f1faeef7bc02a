package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// trained runs a job over one csv file, in one batch a pass so that it does
// not matter how records are cut, and gives its result and exported model.
func trained(t *testing.T, train, test, more string) (job.Result, map[string]float64, string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d.csv"), []byte(train), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t.csv"), []byte(test), 0o644))
	spec := `
job: weights
data: {train: [d.csv], test: [t.csv], format: csv, chunk: file, label: y, group: c` + more + `}
features: [{name: x, type: numeric}, {name: c, type: categorical}]
model: {type: logistic}
optimizer: {type: sgd, learning_rate: 0.002, reduction: sum}
train: {passes: 20, batch: 4096, shuffle: false, window: 0}
run: {pservers: 1, trainers: 1}
`
	file := filepath.Join(dir, "spec.yaml")
	require.NoError(t, os.WriteFile(file, []byte(spec), 0o644))
	out := filepath.Join(dir, "model.txt")
	r := newCall(t, "run", "-f", file, "--result", "-", "--export", out).succeed().result()
	values := make(map[string]float64)
	text := exported(t, out)
	for line := range strings.Lines(text) {
		cells := strings.Fields(line)
		v, err := strconv.ParseFloat(cells[2], 64)
		require.NoError(t, err)
		values[cells[0]+" "+cells[1]] = v
	}
	return r, values, text
}

// A record with a weight trains and measures what as many records do; weight 0
// is counted and does nothing; weight 1 is no weight.
func TestWeights(t *testing.T) {
	const weights = ", weight: w"
	var weighted, repeated, ones, none strings.Builder
	for _, b := range []*strings.Builder{&weighted, &repeated, &ones} {
		b.WriteString("x,c,w,y\n")
	}
	none.WriteString("x,c,y\n")
	for i := range 200 {
		x, c, y, w := math.Sin(float64(i)), i%3, (i*7%11)/6, i%4
		fmt.Fprintf(&weighted, "%v,k%d,%d,%d\n", x, c, w, y)
		fmt.Fprintf(&ones, "%v,k%d,1,%d\n", x, c, y)
		fmt.Fprintf(&none, "%v,k%d,%d\n", x, c, y)
		for range w {
			fmt.Fprintf(&repeated, "%v,k%d,1,%d\n", x, c, y)
		}
	}
	r, model, text := trained(t, weighted.String(), weighted.String(), weights)
	r2, model2, _ := trained(t, repeated.String(), repeated.String(), weights)
	require.EqualValues(t, 20*200, r.Records)
	require.EqualValues(t, 20*300, r2.Records)
	require.Len(t, model, 5)
	require.Len(t, model2, 5)
	for name, v := range model {
		require.InDelta(t, model2[name], v, 1e-5, name)
		require.NotZero(t, v, name)
	}
	require.InDelta(t, *r2.Train.Loss, *r.Train.Loss, 1e-6, "a mean by weight")

	// Of one and the same model: the metrics of both files.
	r2, _, text2 := trained(t, weighted.String(), repeated.String(), weights)
	require.Equal(t, text, text2)
	require.Len(t, r.Test.Metrics, 8)
	for name, v := range r.Test.Metrics {
		require.InDelta(t, *r2.Test.Metrics[name], *v, 1e-9, name)
	}

	with, _, textWith := trained(t, ones.String(), ones.String(), weights)
	without, _, textWithout := trained(t, none.String(), none.String(), "")
	require.Equal(t, textWithout, textWith)
	require.Equal(t, without.Test, with.Test)
	require.Equal(t, without.Train, with.Train)
}

// Test data of which a part cannot be read have no metrics; the job ends all
// the same, and says why.
func TestDamagedTestData(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	write("d.csv", "y,a\n1,x\n0,z\n")
	write("t.csv.gz", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x33\x54")
	write("spec.yaml", "job: d\ndata: {train: [d.csv], test: [t.csv.gz], format: csv, label: y}\nmodel: {type: logistic}\n")
	logs := filepath.Join(dir, "run")
	r := newCall(t, "run", "-f", filepath.Join(dir, "spec.yaml"), "--result", "-", "--dir", logs).succeed().result()
	require.Nil(t, r.Test)
	require.EqualValues(t, 2, r.Records)
	said := ""
	for _, name := range []string{"trainer-0.log", "trainer-1.log"} {
		text, err := os.ReadFile(filepath.Join(logs, "logs", name))
		require.NoError(t, err)
		said += string(text)
	}
	require.Contains(t, said, "the result has no test metrics")
	require.Contains(t, said, "t.csv.gz: byte 12: the compressed file is truncated")
}
