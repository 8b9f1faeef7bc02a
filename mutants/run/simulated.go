package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"starfish/mutants"
)

const (
	// block is how many seeds one process runs.
	block = 20
	// hanging is how long a block may take: mutants hang, too.
	hanging = "5m"
)

// find is what the simulation made of a mutant.
type find struct {
	caught bool
	seed   uint64 // the first that failed, of seeds if caught
	seeds  uint64
	how    string
	cpu    time.Duration
}

func (f find) String() string {
	if !f.caught {
		return fmt.Sprintf("SURVIVED %d seeds of the simulation (%.0f CPU seconds)", f.seeds, f.cpu.Seconds())
	}
	return fmt.Sprintf("caught by seed %d of the simulation in %.1f CPU seconds: %s", f.seed, f.cpu.Seconds(), f.how)
}

// simulated runs the seeds of TestSimulation, from 0 on and on one processor, with
// the mutant, until one fails or the budget is spent.
func (b *bench) simulated(m mutants.Mutant) (find, error) {
	dir, overlay, err := b.overlay(m)
	if err != nil {
		return find{}, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "trainer.test")
	build := exec.Command("go", "test", "-c", "-ldflags", "-s -w", "-overlay", overlay, "-o", binary, "./trainer")
	build.Dir = b.root
	if out, err := build.CombinedOutput(); err != nil {
		return find{}, fmt.Errorf("it does not compile: %w: %s", err, bytes.TrimSpace(out))
	}
	f := find{}
	for f.cpu < b.budget && !f.caught {
		cmd := exec.Command(binary, "-test.run", "^TestSimulation$", "-test.failfast", "-test.timeout", hanging,
			"-first", fmt.Sprint(f.seeds), "-simulations", fmt.Sprint(block))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			return find{}, fmt.Errorf("the simulation did not start: %w", err)
		}
		f.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if err != nil {
			f.caught, f.seed, f.how = true, f.seeds, reason(out)
			if s := seedOf.FindSubmatch(out); s != nil {
				f.seed, _ = strconv.ParseUint(string(s[1]), 10, 64) // digits, few
			}
		}
		f.seeds += block
	}
	f.caught = f.caught && f.cpu <= b.budget
	return f, nil
}

var (
	seedOf = regexp.MustCompile(`TestSimulation/seed_(\d+)`)
	why    = regexp.MustCompile(`(?m)^\s+(?:Error:\s+|\S+_test\.go:\d+: )(\S.*)$`)
)

// reason is the first line that says why a simulation has failed.
func reason(out []byte) string {
	if hung.Match(out) {
		return "it hangs"
	}
	for _, m := range why.FindAllSubmatch(out, -1) {
		if text := string(bytes.TrimSpace(m[1])); !bytes.HasPrefix(m[1], []byte("make simulate")) && text != "" {
			return text[:min(len(text), 160)]
		}
	}
	if m := crash.Find(out); m != nil {
		return string(m)
	}
	return "it failed"
}
