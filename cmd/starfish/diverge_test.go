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

// Columns of 0 to 40000 beside one-hot keys: whatever the rate, no job with sgd
// is complete with an absurd model. It stops with the file, the lines, the column
// and what helps; or it is complete, and its model and its metrics are finite and
// better than nothing.
func TestUnscaledColumns(t *testing.T) {
	dir := t.TempDir()
	var csv, svm strings.Builder
	csv.WriteString("income,hours,site,y,z\n")
	for i := range 6000 {
		income, hours, site := i*7919%40001, i*31%60, i*7%10
		y := 0
		if income > 20000 != (site == 3) {
			y = 1
		}
		fmt.Fprintf(&csv, "%d,%d,s%d,%d,%d\n", income, hours, site, y, hours/10+site)
		fmt.Fprintf(&svm, "%d 1:%d 2:%d %d:1\n", y, income, hours, 10+site)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d.csv"), []byte(csv.String()), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d.svm"), []byte(svm.String()), 0o644))
	const columns = "\nfeatures: [{name: income, type: numeric}, {name: hours, type: numeric}, {name: site, type: categorical}]"
	for name, c := range map[string]struct {
		spec, file, column, advice string
		nothing                    float64 // the loss of predicting nothing
	}{
		"linear csv": {"{train: [d.csv], test: [d.csv], format: csv, label: z, chunk: 16KiB}" + columns + "\nmodel: {type: linear}",
			"d.csv", `of column "income"`, "Scale such columns (features: transform: standard, log1p or bucket), ", 70},
		"logistic csv": {"{train: [d.csv], test: [d.csv], format: csv, label: y, chunk: 16KiB}" + columns + "\nmodel: {type: logistic}",
			"d.csv", `of column "income"`, "Scale such columns (features: transform: standard, log1p or bucket), ", 0.7},
		"logistic libsvm": {"{train: [d.svm], test: [d.svm], chunk: 16KiB}\nmodel: {type: logistic}",
			"d.svm", "of key 1 in line", "Scale such values to about 1, ", 0.7},
	} {
		spec := filepath.Join(dir, name+".yaml")
		require.NoError(t, os.WriteFile(spec, []byte("job: unscaled\ndata: "+c.spec+"\ntrain: {passes: 3}\n"), 0o644))
		for _, rate := range []string{"1e-11", "1e-06", "0.0001", "0.01", "10"} {
			t.Run(name+" "+rate, func(t *testing.T) {
				model := filepath.Join(t.TempDir(), "model.txt")
				call := newCall(t, "run", "-f", spec, "--result", "-", "--export", model, "--log-level", "error",
					"--set", "optimizer={type: sgd, learning_rate: "+rate+"}")
				code := call.run()
				r := call.result()
				if rate == "1e-11" {
					require.Zero(t, code, call.stderr.String())
					require.Less(t, largest(t, model), 1.0)
					require.Less(t, *r.Train.Loss, c.nothing)
					require.Less(t, *r.Test.Metrics["loss"], c.nothing)
					return
				}
				require.Equal(t, 1, code, call.stderr.String())
				require.Equal(t, "failed", r.Phase)
				require.NoFileExists(t, model)
				for _, says := range []string{"job unscaled has failed: training diverged: ", filepath.Join(dir, c.file) + ", lines ",
					`parameter "`, c.column, c.advice, "lower optimizer.learning_rate (it is " + rate + ")", "optimizer.clip_norm"} {
					require.Contains(t, call.last(), says)
				}
				require.Contains(t, call.last(), r.Reason)
			})
		}
	}
}

// A job that has failed stays so, and says how to begin anew; scaled, the same
// columns are learnt.
func TestDivergedJobStaysFailed(t *testing.T) {
	dir := t.TempDir()
	var csv strings.Builder
	csv.WriteString("income,y\n")
	for i := range 3000 {
		fmt.Fprintf(&csv, "%d,%d\n", i*7919%40001, i*7919%40001/4000)
	}
	spec := filepath.Join(dir, "spec.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d.csv"), []byte(csv.String()), 0o644))
	require.NoError(t, os.WriteFile(spec, []byte("job: failed\ndata: {train: [d.csv], format: csv, label: y, chunk: 4KiB}\n"+
		"features: [{name: income, type: numeric}]\nmodel: {type: linear}\noptimizer: {type: sgd}\n"), 0o644))
	args := []string{"run", "-f", spec, "--dir", filepath.Join(dir, "run"), "--result", "-"}
	first := newCall(t, args...)
	require.Equal(t, 1, first.run(), first.stderr.String())
	require.Contains(t, first.last(), "training diverged: ")
	again := newCall(t, args...)
	require.Equal(t, 1, again.run(), again.stderr.String())
	require.Equal(t, first.last()+". It had failed before, and a job that has failed does not go on: begin a new one with another --dir, or remove "+
		filepath.Join(dir, "run")+" first", again.last())
	require.Equal(t, first.result().Reason, again.result().Reason)
	status := newCall(t, "status", "--dir", filepath.Join(dir, "run")).succeed().stdout.String()
	require.Contains(t, status, "phase    failed: training diverged: ")

	args[4] = filepath.Join(dir, "another")
	r := newCall(t, append(args, "--set", "features=[{name: income, type: numeric, transform: standard, mean: 20000, stddev: 11500}]",
		"--set", "train.passes=10")...).succeed().result()
	require.Less(t, *r.Train.Loss, 1.0)
}
