// Command job is `make bench`: what a whole job costs, next to what cannot be
// avoided.
//
// It makes a click log of a million records once, and then, in rounds, measures
// three programs on it, each as processes of their own from start to end: the
// reader alone, the bare parameter-server loop (bench/bareloop, the yardstick),
// and `starfish run` with two pservers and two trainers. All use two workers and
// batches of 512. Rounds are interleaved and rotated, and a ratio is taken within
// its round, so that other load on the machine disturbs it least.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"starfish/bench/bareloop"
	"starfish/internal/ctrgen"
	"starfish/reader"
)

// The configuration of all three programs.
const (
	bits    = 24
	batch   = 512
	workers = 2
	servers = 2
	chunk   = 4 << 20
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type config struct {
	rows   uint64
	rounds int
	cache  string
	bin    string
	least  float64
	scale  bool
}

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) == 2 { // this program plays two of the three
		switch args[0] {
		case "parse":
			return parse(args[1], stdout)
		case "bare":
			return bare(args[1], stdout)
		}
	}
	fs := flag.NewFlagSet("job", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var c config
	fs.Uint64Var(&c.rows, "rows", 1000000, "records")
	fs.IntVar(&c.rounds, "rounds", 5, "rounds")
	fs.StringVar(&c.cache, "cache", filepath.Join("build", "bench"), "directory of the generated data")
	fs.StringVar(&c.bin, "starfish", filepath.Join("bin", "starfish"), "the program starfish")
	fs.Float64Var(&c.least, "least", 0, "fail if the job reaches less than this share of the bare loop's records/s")
	fs.BoolVar(&c.scale, "scale", true, "then compare jobs of four pservers and four trainers with jobs of one each")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || c.rows == 0 || c.rounds < 1 {
		return errors.New("usage: job [-rows N] [-rounds N] [-cache DIR] [-starfish FILE] [-least SHARE] [-scale=false]")
	}
	return c.bench(stdout)
}

// bench measures and reports.
func (c *config) bench(stdout io.Writer) error {
	data, err := c.data(stdout)
	if err != nil {
		return err
	}
	job, err := c.job(whole, data, servers, workers, servers)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	programs := []program{
		{name: "parsing alone", command: []string{self, "parse", data}},
		{name: yardstick, command: []string{self, "bare", data}},
		job,
	}
	rounds, err := c.measure(stdout, programs)
	if err != nil {
		return err
	}
	share := report(stdout, c.rows, programs, rounds)
	if c.scale {
		if err := c.compare(stdout, data); err != nil {
			return err
		}
	}
	if share < c.least {
		return fmt.Errorf("the job reaches %.2f of the bare loop's records/s, less than %.2f", share, c.least)
	}
	return nil
}

// compare measures jobs of four pservers and trainers next to jobs of one, both
// with four shards: what a record costs when more processes share the work.
func (c *config) compare(stdout io.Writer, data string) error {
	one, err := c.job(small, data, 1, 1, 4)
	if err != nil {
		return err
	}
	four, err := c.job(large, data, 4, 4, 4)
	if err != nil {
		return err
	}
	rounds, err := c.measure(stdout, []program{one, four})
	if err != nil {
		return err
	}
	reportScale(stdout, c.rows, rounds)
	return nil
}

// measure runs the programs in rounds.
func (c *config) measure(stdout io.Writer, programs []program) ([]map[string]sample, error) {
	rounds := make([]map[string]sample, c.rounds)
	for i := range rounds {
		rounds[i] = map[string]sample{}
		for k := range programs {
			p := programs[(i+k)%len(programs)]
			var err error
			if rounds[i][p.name], err = p.measure(c.rows); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(stdout, "round %d of %d: %s\n", i+1, c.rounds, oneRound(programs, rounds[i]))
	}
	return rounds, nil
}

// job is the program that runs a job with so many pservers, trainers and shards.
func (c *config) job(name, data string, pservers, trainers, shards int) (program, error) {
	spec := filepath.Join(c.cache, fmt.Sprintf("bench-%d-%d.yaml", pservers, trainers))
	if err := os.WriteFile(spec, []byte(specText(data, pservers, trainers, shards)), 0o644); err != nil {
		return program{}, err
	}
	return program{name: name, command: []string{c.bin, "run", "-f", spec, "--result", "-", "--log-level", "warn"}}, nil
}

// data makes the click log unless it is there.
func (c *config) data(stdout io.Writer) (string, error) {
	file, err := filepath.Abs(filepath.Join(c.cache, fmt.Sprintf("ctr-seed1-bits%d-%d.libsvm", bits, c.rows)))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(c.cache, 0o755); err != nil {
		return "", err
	}
	start := time.Now()
	f, err := os.CreateTemp(c.cache, ".ctr-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	cfg := ctrgen.Default()
	cfg.Bits = bits
	if _, err := ctrgen.Write(context.Background(), cfg, 0, c.rows, "libsvm", f, nil); err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	fmt.Fprintf(stdout, "%d records made in %.1f s: %s\n", c.rows, time.Since(start).Seconds(), file)
	return file, os.Rename(f.Name(), file)
}

// specText is the job: logistic regression as the bare loop does it.
func specText(data string, pservers, trainers, shards int) string {
	return fmt.Sprintf(`job: bench
data: {train: [%s], format: libsvm, chunk: %s}
model: {type: logistic, bits: %d}
optimizer: {type: adagrad, learning_rate: 0.1, reduction: sum}
train: {mode: async, passes: 1, batch: %d, shuffle: false, window: 1}
shards: %d
run: {pservers: %d, trainers: %d}
`, strconv.Quote(data), strconv.Quote("4MiB"), bits, batch, shards, pservers, trainers)
}

// parse reads the whole file with package reader, by as many workers as the job
// has trainers.
func parse(file string, stdout io.Writer) error {
	plan, err := reader.NewPlan([]string{file}, "libsvm", chunk)
	if err != nil {
		return err
	}
	chunks := make(chan int64)
	counts := make(chan int64, workers)
	errs := make(chan error, workers)
	for range workers {
		go func() {
			n, err := parseChunks(plan, chunks)
			counts <- n
			errs <- err
		}()
	}
	for i := range plan.Chunks() {
		chunks <- i
	}
	close(chunks)
	var records int64
	for range workers {
		records += <-counts
		if err := <-errs; err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(stdout, records)
	return err
}

// parseChunks reads chunks; after an error it goes on taking them, so that
// nobody waits.
func parseChunks(plan *reader.Plan, chunks <-chan int64) (records int64, err error) {
	var b reader.Batch
	for chunk := range chunks {
		if err != nil {
			continue
		}
		var n int64
		n, err = parseChunk(plan, chunk, &b)
		records += n
	}
	return records, err
}

func parseChunk(plan *reader.Plan, chunk int64, b *reader.Batch) (records int64, err error) {
	r, err := plan.Open(context.Background(), chunk, reader.Options{Batch: batch, Bits: bits, Labels: reader.LabelBinary})
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	for {
		err := r.Next(b)
		if errors.Is(err, io.EOF) {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		records += int64(b.Records())
	}
}

// bare runs the bare loop over the whole file.
func bare(file string, stdout io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	r, err := bareloop.Run(text, bareloop.Config{Bits: bits, Batch: batch, Workers: workers, Servers: servers})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, r.Rows)
	return err
}

// program is one of the programs measured. It writes to stdout the number of
// records, or the result of a job.
type program struct {
	name    string
	command []string
}

// measure runs the program once.
func (p program) measure(rows uint64) (sample, error) {
	cmd := exec.Command(p.command[0], p.command[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	out, err := cmd.Output()
	wall := time.Since(start)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", p.name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() // descendants included
	s, err := readOutput(out)
	if err != nil {
		return s, fmt.Errorf("%s: %w", p.name, err)
	}
	if s.records != rows {
		return s, fmt.Errorf("%s: %d records instead of %d", p.name, s.records, rows)
	}
	s.wall, s.cpu = wall.Seconds(), cpu.Seconds()
	return s, nil
}
