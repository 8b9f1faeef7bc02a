package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/job"
)

func main() {
	os.Exit(cli.Main(func() *cobra.Command { return command(os.Stdout) }, longFlags(os.Args[1:]), os.Stderr))
}

// longFlags lets flags be written with one dash, as those of `go test` are.
func longFlags(args []string) []string {
	long := make([]string, len(args))
	for i, a := range args {
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			a = "-" + a
		}
		long[i] = a
	}
	return long
}

// campaign is what is to be done.
type campaign struct {
	seeds    string
	budget   time.Duration
	parallel int
	least    int
	report   string
	dir      string
	plan     bool
	keep     bool
}

func command(out io.Writer) *cobra.Command {
	var c campaign
	cmd := &cobra.Command{
		Use:   "campaign",
		Short: "Kill the processes of whole jobs at random moments and at named points, and demand exact results",
		RunE:  func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), out) },
	}
	fs := cmd.Flags()
	fs.StringVar(&c.seeds, "seeds", "0-200", "seeds of the plans, such as 7 or 1-200; 0 kills everything ten times over")
	fs.DurationVar(&c.budget, "budget", 45*time.Minute, "begin no further run after this time")
	fs.IntVar(&c.parallel, "parallel", 2, "how many runs at once")
	fs.IntVar(&c.least, "least", 0, "demand that each kind of fault strikes so often, that every seed is run, and that shards come back and lie evenly in time")
	fs.StringVar(&c.report, "report", "", "write the report as JSON to this file")
	fs.StringVar(&c.dir, "dir", "", "directory for those of the runs (default: a temporary one), used by one campaign at a time; a failed run keeps its own")
	fs.BoolVar(&c.keep, "keep", false, "keep the directories of all runs")
	fs.BoolVar(&c.plan, "plan", false, "show the plans and do nothing")
	return cmd
}

func (c *campaign) run(ctx context.Context, out io.Writer) error {
	first, last, err := parseSeeds(c.seeds)
	if err != nil || c.parallel < 1 {
		return cli.Usage("--seeds %q, --parallel %d: not seeds such as 1-200, or no runs at once", c.seeds, c.parallel)
	}
	if c.plan {
		return showPlans(out, first, last)
	}
	dir := c.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "starfish-campaign-"); err != nil {
			return err
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	programs := filepath.Join(dir, "programs")
	if err := build(ctx, programs); err != nil {
		return err
	}
	began := clock.System.Now()
	outcomes := c.carryOut(ctx, out, first, last, programs, dir)
	r := newReport(outcomes, clock.System.Now().Sub(began).Seconds())
	if err := r.write(out); err != nil {
		return err
	}
	if c.report != "" {
		text, err := json.MarshalIndent(r, "", " ")
		if err == nil {
			err = os.WriteFile(c.report, append(text, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
	}
	if r.Exact == r.Runs {
		os.RemoveAll(programs)
		os.Remove(dir) // if it is empty
	}
	return c.judge(r, int(last-first)+1)
}

// judge says whether the campaign was a success.
func (c *campaign) judge(r Report, seeds int) error {
	var errs []error
	if r.Exact != r.Runs {
		errs = append(errs, fmt.Errorf("%d of %d runs were not right", r.Runs-r.Exact, r.Runs))
	}
	if c.least > 0 {
		if r.Runs < seeds {
			errs = append(errs, fmt.Errorf("%d of %d seeds were run in the time", r.Runs, seeds))
		}
		if slow := r.slow(); len(slow) > 0 {
			errs = append(errs, fmt.Errorf("shards were away for too long (p90): %s", strings.Join(slow, ", ")))
		}
		if r.uneven() {
			errs = append(errs, fmt.Errorf("the load was uneven for longer than %v after %d of %d changes of the pservers", evenWithin, r.Late, r.Changes))
		}
		if few := r.few(c.least); len(few) > 0 {
			errs = append(errs, fmt.Errorf("kinds of fault that struck less than %d times: %s", c.least, strings.Join(few, ", ")))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return job.Exit(job.ExitFailure, err)
	}
	return nil
}

// carryOut carries out the plans of the seeds, some at a time.
func (c *campaign) carryOut(ctx context.Context, out io.Writer, first, last uint64, programs, dir string) []Outcome {
	ends := clock.System.Now().Add(c.budget)
	var mu sync.Mutex
	var outcomes []Outcome
	next := first
	draw := func() (uint64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if next > last || ctx.Err() != nil || clock.System.Now().After(ends) {
			return 0, false
		}
		next++
		return next - 1, true
	}
	var workers sync.WaitGroup
	for range c.parallel {
		workers.Go(func() {
			for seed, ok := draw(); ok; seed, ok = draw() {
				o := carryOut(ctx, NewPlan(seed), programs, filepath.Join(dir, fmt.Sprintf("seed-%d", seed)))
				if o.Failure == "" && !c.keep {
					os.RemoveAll(o.Dir)
				}
				mu.Lock()
				outcomes = append(outcomes, o)
				say(out, o)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return outcomes
}

// say says what became of a plan.
func say(out io.Writer, o Outcome) {
	struck := 0
	for _, s := range o.Strikes {
		if s.Struck {
			struck++
		}
	}
	verdict := "exact"
	if o.Failure != "" {
		verdict = fmt.Sprintf("FAILED: %s\n  logs: %s\n  again: go run ./campaign -seeds %d", o.Failure, o.Dir, o.Plan.Seed)
	}
	s := o.Plan.Shape
	fmt.Fprintf(out, "seed %d: %s, %d pservers, %d trainers, %d shards; %d of %d faults struck; %.1f s; %s\n",
		o.Plan.Seed, s.Model, s.Pservers, s.Trainers, s.Shards, struck, len(o.Plan.Faults), o.Seconds, verdict)
}

func showPlans(out io.Writer, first, last uint64) error {
	for seed := first; seed <= last; seed++ {
		text, err := json.Marshal(NewPlan(seed))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", text)
	}
	return nil
}

// parseSeeds reads "7" or "1-200".
func parseSeeds(text string) (first, last uint64, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if first, err = strconv.ParseUint(from, 10, 32); err != nil {
		return 0, 0, err
	}
	last = first
	if isRange {
		last, err = strconv.ParseUint(to, 10, 32)
	}
	if err == nil && last < first {
		err = fmt.Errorf("%d is more than %d", first, last)
	}
	return first, last, err
}

// build builds the programs with their points. What is started as a daemon is a
// script before it.
func build(ctx context.Context, into string) error {
	daemons := filepath.Join(into, "real")
	for dir, programs := range map[string][]string{into: {"starfish"}, daemons: {pservers, trainers}} {
		args := []string{"build", "-tags", "failpoints", "-o", dir + "/"}
		for _, p := range programs {
			args = append(args, "starfish/cmd/"+p)
		}
		if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("build the programs: %w\n%s", err, text)
		}
	}
	for _, p := range []string{pservers, trainers} {
		if err := os.WriteFile(filepath.Join(into, p), []byte(holdScript), 0o755); err != nil {
			return err
		}
	}
	return nil
}
