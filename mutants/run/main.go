// Command run is `make mutants`: it applies each mutant and runs its tests.
//
//	go run ./mutants/run [-only REGEXP] [-list] [-by tests|simulation|all] [-table FILE]
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
	"regexp"
	"slices"
	"strings"
	"time"

	"starfish/internal/clock"
	"starfish/mutants"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(stderr)
	only := fs.String("only", "", "regular expression of the names of the mutants to run")
	list := fs.Bool("list", false, "list the mutants and do nothing")
	by := fs.String("by", "all", "tests: those named with a mutant; simulation: its seeds, for every mutant; all: tests, and the simulation where it is to catch the mutant")
	budget := fs.Duration("budget", time.Minute, "processor time in which the simulation has to find a mutant")
	table := fs.String("table", "", "file to which the outcome is written as a table")
	if err := fs.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"all", "tests", "simulation"}, *by) {
		return fmt.Errorf("-by %s: all, tests or simulation", *by)
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	b := bench{root: root, budget: *budget, baseline: map[[2]string]error{}}
	var rows []string
	bad, all := 0, 0
	for _, m := range mutants.List() {
		if !wanted.MatchString(m.Name) {
			continue
		}
		all++
		fmt.Fprintf(stdout, "%d  %-34s %s\n", m.Invariant, m.Name, m.Breaks)
		if *list {
			continue
		}
		row, err := b.one(m, *by, stdout)
		if err != nil {
			bad++
			fmt.Fprintf(stdout, "   %v\n", err)
		}
		rows = append(rows, row)
	}
	if *table != "" {
		if err := os.WriteFile(*table, []byte(strings.Join(rows, "")), 0o644); err != nil {
			return err
		}
	}
	switch {
	case all == 0:
		return errors.New("no mutant has such a name")
	case bad > 0:
		return fmt.Errorf("%d of %d mutants were not caught", bad, all)
	case !*list:
		fmt.Fprintf(stdout, "all %d mutants were caught\n", all)
	}
	return nil
}

var errSurvived = errors.New("SURVIVED")

// one tries a mutant by its tests, by the simulation, or by both. It returns its
// row of the table, and an error if it was not caught by what is to catch it.
func (b *bench) one(m mutants.Mutant, by string, stdout io.Writer) (row string, err error) {
	tests, simulation := "", ""
	if by != "simulation" && m.Run != "" {
		start := clock.System.Now()
		o, failed := b.try(m)
		took := clock.System.Now().Sub(start).Seconds()
		switch {
		case failed != nil:
			err = fmt.Errorf("BROKEN: %w", failed)
		case !o.caught:
			err = errSurvived
		}
		if failed == nil {
			fmt.Fprintf(stdout, "   %s (%s -run '%s', %.1f s)\n", o, m.Package, m.Run, took)
		}
		if o.caught {
			tests = fmt.Sprintf("`%s`, %.1f s", o.by, took)
		}
	}
	if by == "simulation" || by == "all" && m.Simulation {
		f, failed := b.simulated(m)
		switch {
		case failed != nil:
			err = errors.Join(err, fmt.Errorf("BROKEN: %w", failed))
		case !f.caught && m.Simulation:
			err = errors.Join(err, errSurvived)
		}
		if failed == nil {
			fmt.Fprintf(stdout, "   %s\n", f)
		}
		if f.caught {
			simulation = fmt.Sprintf("seed %d, %.1f s: %s", f.seed, f.cpu.Seconds(), strings.ReplaceAll(f.how, "|", "/"))
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s |\n", m.Name, tests, simulation), err
}

// outcome of a mutant.
type outcome struct {
	caught bool
	by     string // the first test that failed
}

func (o outcome) String() string {
	if o.caught {
		return "caught by " + o.by
	}
	return "SURVIVED"
}

// bench runs tests in a module.
type bench struct {
	root     string
	budget   time.Duration       // of the simulation
	baseline map[[2]string]error // of the tests without a mutant
}

// timeout of the tests of one mutant: some mutants hang.
const timeout = "60s"

// try applies one mutant.
func (b *bench) try(m mutants.Mutant) (outcome, error) {
	dir, overlay, err := b.overlay(m)
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	if err := b.sound(m); err != nil {
		return outcome{}, err
	}
	out, err := b.test(m, "-overlay", overlay)
	return judge(out, err)
}

// overlay writes the changed file and an overlay of the Go toolchain with it into
// a new directory.
func (b *bench) overlay(m mutants.Mutant) (dir, overlay string, err error) {
	changed, err := m.Apply(b.root)
	if err != nil {
		return "", "", err
	}
	if dir, err = os.MkdirTemp("", "mutant-"); err != nil {
		return "", "", err
	}
	file := filepath.Join(dir, filepath.Base(m.File))
	overlay = filepath.Join(dir, "overlay.json")
	j, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(b.root, m.File): file}})
	if err = errors.Join(err, os.WriteFile(file, changed, 0o644), os.WriteFile(overlay, j, 0o644)); err != nil {
		return "", "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, overlay, nil
}

// sound makes sure that the tests pass without the mutant.
func (b *bench) sound(m mutants.Mutant) error {
	key := [2]string{m.Package, m.Run}
	if err, known := b.baseline[key]; known {
		return err
	}
	out, err := b.test(m)
	if err != nil {
		err = fmt.Errorf("its tests fail without it: %s", bytes.TrimSpace(out))
	} else if bytes.Contains(out, []byte("no tests to run")) {
		err = fmt.Errorf("%s has no tests %s", m.Package, m.Run)
	}
	b.baseline[key] = err
	return err
}

func (b *bench) test(m mutants.Mutant, flags ...string) ([]byte, error) {
	args := append([]string{"test", "-count=1", "-failfast", "-timeout", timeout, "-run", m.Run}, flags...)
	cmd := exec.Command("go", append(args, m.Package)...)
	cmd.Dir = b.root
	return cmd.CombinedOutput()
}

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	hung   = regexp.MustCompile(`(?m)^panic: test timed out`)
	crash  = regexp.MustCompile(`(?m)^(panic|fatal error): .*$`)
)

// firstFailed is the name of the first test that failed, down to the subtest, which
// says the seed where there is one.
func firstFailed(out []byte) string {
	by := ""
	for _, m := range failed.FindAllSubmatch(out, -1) {
		if name := string(m[1]); by == "" || strings.HasPrefix(name, by+"/") {
			by = name
		}
	}
	return by
}

// judge reads the output of tests that ran with a mutant. Code that does not
// compile proves nothing.
func judge(out []byte, err error) (outcome, error) {
	if err == nil {
		return outcome{}, nil
	}
	if bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")) {
		return outcome{}, fmt.Errorf("it does not compile: %s", bytes.TrimSpace(out))
	}
	if by := firstFailed(out); by != "" {
		return outcome{true, by}, nil
	}
	if hung.Match(out) {
		return outcome{true, "the time-out"}, nil
	}
	if m := crash.Find(out); m != nil {
		return outcome{true, string(m)}, nil
	}
	return outcome{}, fmt.Errorf("its tests ended strangely: %w: %s", err, bytes.TrimSpace(out))
}
