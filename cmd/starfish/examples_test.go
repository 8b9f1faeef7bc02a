package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// leastSquares is the least mean squared error that a linear model of the
// file's columns, the last of which is the label, can have on that file. It
// solves the normal equations of the standardised columns.
func leastSquares(t *testing.T, file string) float64 {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	x := make([][]float64, len(rows)-1)
	for i, row := range rows[1:] {
		x[i] = make([]float64, len(row))
		for j, cell := range row {
			x[i][j], err = strconv.ParseFloat(cell, 64)
			require.NoError(t, err)
		}
	}
	standardise(x)
	n := len(x[0]) - 1
	a := make([][]float64, n) // the normal equations, the right side as last column
	for i := range a {
		a[i] = make([]float64, n+1)
		for _, row := range x {
			for j := range a[i] {
				a[i][j] += row[i] * row[j]
			}
		}
	}
	for i := range a { // they are positive definite: elimination needs no pivots
		for k := range a {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for j := i; j <= n; j++ {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	var sum float64
	for _, row := range x {
		e := row[n]
		for i := range a {
			e -= a[i][n] / a[i][i] * row[i]
		}
		sum += e * e
	}
	return sum / float64(len(x))
}

// standardise centres all columns, which stands for the bias, and scales all
// but the last.
func standardise(x [][]float64) {
	last := len(x[0]) - 1
	for j := range x[0] {
		var sum, squares float64
		for _, row := range x {
			sum += row[j]
		}
		mean := sum / float64(len(x))
		for _, row := range x {
			row[j] -= mean
			squares += row[j] * row[j]
		}
		for _, row := range x {
			if j != last {
				row[j] /= math.Sqrt(squares / float64(len(x)))
			}
		}
	}
}

// Linear regression ends at the exact solution, five times of five, with two
// trainers that do not wait for each other.
func TestRunHousing(t *testing.T) {
	exact := leastSquares(t, "../../examples/housing/train.csv")
	require.InDelta(t, 22.778, exact, 0.0005)
	for seed := range 5 {
		r := newCall(t, "run", "-f", "../../examples/housing/housing.yaml", "--trainers", "2", "--result", "-",
			"--set", fmt.Sprintf("train.seed=%d", seed)).succeed().result()
		require.EqualValues(t, 100*404, r.Records)
		require.EqualValues(t, 404, r.Test.Records)
		require.EqualValues(t, 2500, r.Shards[0].Batches, "the schedule's steps are no longer those of the job")
		loss := *r.Test.Metrics["loss"]
		require.Less(t, loss, 1.01*exact)
		require.Greater(t, loss, exact-1e-3, "better than possible")
		require.InDelta(t, math.Sqrt(loss), *r.Test.Metrics["rmse"], 1e-9)
	}
	r := newCall(t, "run", "-f", "../../examples/housing/housing.yaml", "--set", "data.test=test.csv", "--result", "-").succeed().result()
	// The exact solution has 32.80. Asynchronous runs end near it, by chance: 40 of
	// them had 32.42 to 32.84.
	require.InDelta(t, 32.80, *r.Test.Metrics["loss"], 0.8)
}

// The click log of the example as its README makes it: a million records, one
// pass, two optimizers.
func TestRunClicks(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 486 MB of data")
	}
	dir := t.TempDir()
	train, test := filepath.Join(dir, "train.libsvm"), filepath.Join(dir, "test.libsvm")
	newCall(t, "generate", "ctr", "--rows", "1000000", "-o", train).succeed()
	newCall(t, "generate", "ctr", "--rows", "200000", "--first", "100000000", "-o", test).succeed()
	for name, c := range map[string]struct {
		set  []string
		loss float64
	}{
		"ftrl":    {nil, 0.4760},
		"adagrad": {[]string{"--set", "optimizer={type: adagrad, learning_rate: 0.05, reduction: sum}"}, 0.4775},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "-f", "../../examples/clicks/clicks.yaml", "--set", "data.train=" + train, "--set", "data.test=" + test,
				"--result", "-"}, c.set...)
			r := newCall(t, args...).succeed().result()
			require.EqualValues(t, 1_000_000, r.Records)
			require.EqualValues(t, 200_000, r.Test.Records)
			require.LessOrEqual(t, *r.Test.Metrics["loss"], c.loss)
			require.Greater(t, *r.Test.Metrics["loss"], 0.46981, "better than the true linear model")
			require.GreaterOrEqual(t, *r.Test.Metrics["auc"], 0.766)
		})
	}
}
