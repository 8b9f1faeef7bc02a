// Command modes is `make bench BENCH=modes`: how good a model is, by the way in
// which trainers keep step (docs/sync.md) and by how many they are.
//
// It trains the example examples/adult, and logistic regression in one pass over
// a generated click log, which it makes once, with 1, 4 and 16 trainers each in
// the modes async, sync and staleness. The AUC on test data must be the same in
// all cells of a table, but for a bound.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"starfish/job"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// firstTest is the number of the first record of the test data: nobody trains on
// those.
const (
	firstTest  = 100_000_000
	testShare  = 5 // a fifth as many as those to train on
	pservers   = 2
	adultBound = 0.002
)

type config struct {
	rows      uint64
	trainers  string
	staleness int
	within    float64
	adult     bool
	sets      []string
	cache     string
	bin       string
}

// table is one set of data in all modes, with all numbers of trainers.
type table struct {
	name   string
	spec   string
	within float64 // by how much the AUC of two cells may differ
}

// cell is one job.
type cell struct {
	mode     string
	trainers int
	auc      float64
	loss     float64
	stale    *job.Staleness
	seconds  float64
	cpu      float64
}

func run(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("modes", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var c config
	fs.Uint64Var(&c.rows, "rows", 1000000, "records of the click log; 0: none")
	fs.StringVar(&c.trainers, "trainers", "1,4,16", "numbers of trainers")
	fs.IntVar(&c.staleness, "staleness", 4, "the bound on staleness")
	fs.Float64Var(&c.within, "within", 0.003, "fail if the AUC of two cells on the click log differs by more; 0: never")
	fs.BoolVar(&c.adult, "adult", true, "the example adult too")
	fs.Func("set", "path=value overrides one field of the specs; may be repeated", func(s string) error {
		c.sets = append(c.sets, "--set", s)
		return nil
	})
	fs.StringVar(&c.cache, "cache", filepath.Join("build", "bench"), "directory of the generated data")
	fs.StringVar(&c.bin, "starfish", filepath.Join("bin", "starfish"), "the program starfish")
	if err := fs.Parse(args); err != nil {
		return err
	}
	numbers, err := parseNumbers(c.trainers)
	if err != nil || fs.NArg() > 0 || c.staleness < 1 {
		return errors.New("usage: modes [-rows N] [-trainers 1,4,16] [-staleness K] [-within D] [-adult=false] [-set path=value] [-cache DIR] [-starfish FILE]")
	}
	tables, err := c.tables(stdout)
	if err != nil {
		return err
	}
	var outside []error
	for _, t := range tables {
		cells, err := c.measure(t, numbers)
		if err != nil {
			return err
		}
		outside = append(outside, report(stdout, t, cells))
	}
	return errors.Join(outside...)
}

func parseNumbers(s string) (numbers []int, err error) {
	for f := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of trainers", f)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// tables are the data to train on.
func (c *config) tables(stdout io.Writer) ([]table, error) {
	var tables []table
	if c.adult {
		within := adultBound
		if c.within == 0 {
			within = 0
		}
		tables = append(tables, table{name: "adult, 5 passes", spec: filepath.Join("examples", "adult", "adult.yaml"), within: within})
	}
	if c.rows == 0 {
		return tables, nil
	}
	train, err := c.data(stdout, "train", 0, c.rows)
	if err != nil {
		return nil, err
	}
	test, err := c.data(stdout, "test", firstTest, max(c.rows/testShare, 1))
	if err != nil {
		return nil, err
	}
	spec := filepath.Join(c.cache, "modes.yaml")
	if err := os.WriteFile(spec, []byte(specText(train, test)), 0o644); err != nil {
		return nil, err
	}
	return append(tables, table{name: fmt.Sprintf("%d records of a click log, 1 pass", c.rows), spec: spec, within: c.within}), nil
}

// data makes a part of the click log unless it is there.
func (c *config) data(stdout io.Writer, name string, first, rows uint64) (string, error) {
	file, err := filepath.Abs(filepath.Join(c.cache, fmt.Sprintf("modes-%s-%d.libsvm", name, rows)))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(c.cache, 0o755); err != nil {
		return "", err
	}
	out, err := c.starfish("generate", "ctr", "--rows", strconv.FormatUint(rows, 10), "--first", strconv.FormatUint(first, 10), "-o", file)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(stdout, "%s:\n%s", file, out)
	return file, nil
}

// specText is the job on the click log. The sum of the gradients of a step is not
// divided: docs/sync.md says why that matters where steps are of unequal size.
func specText(train, test string) string {
	return fmt.Sprintf(`job: modes
data: {train: [%s], test: [%s], format: libsvm, chunk: 1MiB}
model: {type: logistic, bits: 24}
optimizer: {type: adagrad, learning_rate: 0.1, reduction: sum}
train: {passes: 1, batch: 64, seed: 1}
shards: 2
`, strconv.Quote(train), strconv.Quote(test))
}

// starfish runs the program and returns what it says on stdout.
func (c *config) starfish(args ...string) ([]byte, error) {
	cmd := exec.Command(c.bin, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// modes are the ways of keeping step, with what a spec says of them.
func (c *config) modes() (names []string, sets map[string][]string) {
	bounded := fmt.Sprintf("staleness: %d", c.staleness)
	return []string{job.ModeAsync, job.ModeSync, bounded}, map[string][]string{
		job.ModeSync: {"--set", "train.mode=sync"},
		bounded:      {"--set", fmt.Sprintf("train.staleness=%d", c.staleness)},
	}
}

// measure trains the jobs of a table.
func (c *config) measure(t table, numbers []int) (cells []cell, err error) {
	names, sets := c.modes()
	for _, n := range numbers {
		for _, mode := range names {
			args := append([]string{"run", "-f", t.spec, "--pservers", strconv.Itoa(pservers), "--trainers", strconv.Itoa(n),
				"--result", "-", "--log-level", "warn"}, sets[mode]...)
			out, err := c.starfish(append(args, c.sets...)...)
			if err != nil {
				return nil, err
			}
			cl, err := readResult(out)
			if err != nil {
				return nil, err
			}
			cl.mode, cl.trainers = mode, n
			cells = append(cells, cl)
		}
	}
	return cells, nil
}

// readResult reads what the table shows from a job's result.
func readResult(out []byte) (cell, error) {
	var r job.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return cell{}, err
	}
	if r.Test == nil || r.Test.Metrics["auc"] == nil || r.Test.Metrics["loss"] == nil || r.Seconds == nil || r.CPUSeconds == nil {
		return cell{}, fmt.Errorf("the result lacks what is to be compared: %s", out)
	}
	return cell{auc: *r.Test.Metrics["auc"], loss: *r.Test.Metrics["loss"], stale: r.Staleness, seconds: *r.Seconds, cpu: *r.CPUSeconds}, nil
}
