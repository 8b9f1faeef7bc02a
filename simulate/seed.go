package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// result is what became of one process of the test binary.
type result struct {
	err      error
	output   string
	timeline string // of its last seed
	counts
	cpu time.Duration
}

// counts are what the seeds of a process were: how often each kind of fault struck,
// and how many jobs were in each mode.
type counts struct {
	Struck map[string]int
	Modes  map[string]int
}

// limit is how long a process may take. One that waits for ever ends at once, as
// virtual time has a deadlock; it is for one that spins, and has to be enough for
// a block of seeds on a machine that does much else.
const limit = "30m"

// seeds runs n seeds with those faults of their plans, up to the first that fails.
func (b *bench) seeds(ctx context.Context, first, n uint64, faults string) result {
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return result{err: err}
	}
	defer os.RemoveAll(dir)
	timeline, report := filepath.Join(dir, "timeline"), filepath.Join(dir, "report")
	cmd := exec.CommandContext(ctx, b.binary, "-test.run", "^TestSimulation$", "-test.failfast", "-test.timeout", limit,
		"-first", fmt.Sprint(first), "-simulations", fmt.Sprint(n), "-faults", faults, "-timeline", timeline, "-report", report)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	r := result{err: err, output: shortened(string(out))}
	if cmd.ProcessState != nil {
		r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if text, err := os.ReadFile(timeline); err == nil {
		r.timeline = string(text)
	}
	if text, err := os.ReadFile(report); err == nil {
		_ = json.Unmarshal(text, &r.counts) // one that is cut short counts for nothing
	}
	return r
}

// shortened leaves out most of a long text: the stacks of a deadlock.
func shortened(s string) string {
	const most = 4000
	if len(s) <= most {
		return s
	}
	return s[:most] + "\n...\n"
}

var seedLine = regexp.MustCompile(`(?m)^seed (\d+)`)

// failed tells which seed has failed: the last one that began.
func (r result) failed(first uint64) (seed uint64, failed bool) {
	if r.err == nil {
		return 0, false
	}
	if m := seedLine.FindStringSubmatch(r.timeline); m != nil {
		if n, err := strconv.ParseUint(m[1], 10, 64); err == nil {
			return n, true
		}
	}
	return first, true
}

var faultLine = regexp.MustCompile(`(?m)^fault (\d+)`)

// faultsOf lists the numbers of the faults in the head of a timeline.
func faultsOf(timeline string) []int {
	var all []int
	for _, m := range faultLine.FindAllStringSubmatch(timeline, -1) {
		n, err := strconv.Atoi(m[1])
		if err == nil {
			all = append(all, n)
		}
	}
	return all
}

func list(faults []int) string {
	if len(faults) == 0 {
		return "none"
	}
	text := make([]string, len(faults))
	for i, f := range faults {
		text[i] = strconv.Itoa(f)
	}
	return strings.Join(text, ",")
}

// attempts is how often a plan is tried before it counts as one that passes:
// goroutines interleave in more than one way.
const attempts = 3

// minimise drops parts of a plan, larger ones first, while what is left still
// fails (ddmin, Zeller and Hildebrandt 2002, without its complements). It returns
// the rest and its last failure, nil if the whole plan does not fail again.
func minimise(plan []int, try func([]int) (result, bool)) ([]int, *result) {
	var last *result
	fails := func(faults []int) bool {
		for range attempts {
			if r, failed := try(faults); failed {
				last = &r
				return true
			}
		}
		return false
	}
	if !fails(plan) {
		return plan, nil
	}
	for part := max(1, len(plan)/2); ; part /= 2 {
		for at := 0; at < len(plan); {
			less := slices.Delete(slices.Clone(plan), at, min(at+part, len(plan)))
			if fails(less) {
				plan = less
			} else {
				at += part
			}
		}
		if part <= 1 {
			return plan, last
		}
	}
}
