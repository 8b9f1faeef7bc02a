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
)

// largest is the largest absolute value of an exported model.
func largest(t *testing.T, file string) float64 {
	t.Helper()
	most := 0.0
	for line := range strings.Lines(exported(t, file)) {
		for _, cell := range strings.Fields(line)[2:] {
			v, err := strconv.ParseFloat(cell, 64)
			require.NoError(t, err, line)
			require.False(t, math.IsNaN(v) || math.IsInf(v, 0), line)
			most = max(most, math.Abs(v))
		}
	}
	return most
}

// One absurd value does not touch the model: its record is a broken one, named
// by file and line, whatever the optimizer and the format.
func TestAbsurdValue(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	var csv, svm, labels strings.Builder
	csv.WriteString("age,site,y\n")
	for i := range 2000 {
		age, site, y := strconv.Itoa(i%50), i*7%10, i%50/25
		label := strconv.Itoa(i % 50)
		if i == 999 {
			age = "1e19"
			label = "1e19"
		}
		fmt.Fprintf(&csv, "%s,s%d,%d\n", age, site, y)
		fmt.Fprintf(&svm, "%d 1:%s %d:1\n", y, age, 10+site)
		fmt.Fprintf(&labels, "%s %d:1\n", label, 10+site)
	}
	write("d.csv", csv.String())
	write("d.svm", svm.String())
	write("labels.svm", labels.String())
	for name, c := range map[string]struct{ spec, says string }{
		"csv":    {"data: {train: [d.csv], format: csv, label: y, chunk: 4KiB}\nmodel: {type: logistic}", `d.csv:1001: "1e19" (column "age") is larger than 1e+09 (data.max_value)`},
		"libsvm": {"data: {train: [d.svm], chunk: 4KiB}\nmodel: {type: logistic}", `d.svm:1000: the value of "1:1e19" is larger than 1e+09 (data.max_value)`},
		"label":  {"data: {train: [labels.svm], chunk: 4KiB}\nmodel: {type: linear}", `labels.svm:1000: the label "1e19" is larger than 1e+09 (data.max_value)`},
	} {
		for _, optimizer := range []string{"{type: sgd, learning_rate: 0.001}", "{type: adagrad}"} {
			t.Run(name+" "+optimizer, func(t *testing.T) {
				spec, model := write(name+".yaml", "job: absurd\n"+c.spec+"\n"), filepath.Join(t.TempDir(), "model.txt")
				args := []string{"run", "-f", spec, "--result", "-", "--export", model, "--log-level", "error", "--set", "optimizer=" + optimizer}
				call := newCall(t, args...)
				require.Equal(t, 7, call.run(), call.stderr.String())
				require.Contains(t, call.last(), c.says)
				require.EqualValues(t, 1, call.result().Queue.Failed)
				require.Less(t, largest(t, model), 100.0)

				r := newCall(t, append(args, "--set", "data.max_bad_records=1")...).succeed().result()
				require.EqualValues(t, 1999, r.Records)
				require.Zero(t, r.Queue.Failed)
				require.Less(t, largest(t, model), 100.0)
				require.NotNil(t, r.Train.Loss)
			})
		}
	}
}
