// Command run is `make mutants`: it applies each mutant and runs its tests.
//
//	go run ./mutants/run [-only REGEXP] [-list]
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
	"strings"

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
	if err := fs.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	b := bench{root: root, baseline: map[[2]string]error{}}
	var bad int
	var all int
	for _, m := range mutants.List() {
		if !wanted.MatchString(m.Name) {
			continue
		}
		all++
		fmt.Fprintf(stdout, "%d  %-34s %s\n", m.Invariant, m.Name, m.Breaks)
		if *list {
			continue
		}
		start := clock.System.Now()
		o, err := b.try(m)
		if err != nil {
			bad++
			fmt.Fprintf(stdout, "   BROKEN: %v\n", err)
			continue
		}
		if !o.caught {
			bad++
		}
		fmt.Fprintf(stdout, "   %s (%s -run '%s', %.1f s)\n", o, m.Package, m.Run, clock.System.Now().Sub(start).Seconds())
	}
	if all == 0 {
		return errors.New("no mutant has such a name")
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", bad, all)
	}
	if !*list {
		fmt.Fprintf(stdout, "all %d mutants were caught\n", all)
	}
	return nil
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
	baseline map[[2]string]error // of the tests without a mutant
}

// timeout of the tests of one mutant: some mutants hang.
const timeout = "60s"

// try applies one mutant.
func (b *bench) try(m mutants.Mutant) (outcome, error) {
	changed, err := m.Apply(b.root)
	if err != nil {
		return outcome{}, err
	}
	if err := b.sound(m); err != nil {
		return outcome{}, err
	}
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(dir)
	file, overlay := filepath.Join(dir, filepath.Base(m.File)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		return outcome{}, err
	}
	j, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(b.root, m.File): file}})
	if err != nil {
		return outcome{}, err
	}
	if err := os.WriteFile(overlay, j, 0o644); err != nil {
		return outcome{}, err
	}
	out, err := b.test(m, "-overlay", overlay)
	return judge(out, err)
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
