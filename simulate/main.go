// Command simulate is `make simulate`: it runs the seeds of TestSimulation on all
// cores, adds up the faults that struck, and cuts the plan of a seed that fails
// down to the faults that it needs.
//
//	go run ./simulate -seeds 0-9999
//	go run ./simulate -seeds 17 -overlay mutant.json
//
// Each process of the test binary runs a block of seeds. Of a seed that fails it
// prints the command that repeats it and the timeline of its smallest plan. A
// seed repeats the world and the plan, not how goroutines interleave: a failure
// that does not come again is shown as it was.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"starfish/internal/clock"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

// block is how many seeds one process runs.
const block = 100

func run(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	seeds := fs.String("seeds", "0-9999", "the seeds, such as 7 or 0-9999")
	overlay := fs.String("overlay", "", "overlay of the Go toolchain to build with, for a mutant")
	parallel := fs.Int("parallel", runtime.NumCPU(), "how many processes at a time")
	if err := fs.Parse(args); err != nil {
		return err
	}
	first, last, err := parseSeeds(*seeds)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "simulate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	b := &bench{dir: dir, binary: filepath.Join(dir, "trainer.test"), out: stdout, counts: counts{Struck: map[string]int{}, Modes: map[string]int{}}}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", *overlay, "-o", b.binary, "./trainer")
	build.Stderr = stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	began := clock.System.Now()
	b.all(ctx, first, last, *parallel)
	b.summary(clock.System.Now().Sub(began))
	if len(b.failed) > 0 {
		return fmt.Errorf("%d seeds failed", len(b.failed))
	}
	return nil
}

var errSeeds = errors.New("seeds are a number, or two with a dash")

func parseSeeds(s string) (first, last uint64, err error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	if first, err = strconv.ParseUint(from, 10, 64); err != nil {
		return 0, 0, errSeeds
	}
	if last, err = strconv.ParseUint(to, 10, 64); err != nil || last < first {
		return 0, 0, errSeeds
	}
	return first, last, nil
}

// bench runs seeds and adds up.
type bench struct {
	dir, binary string
	out         io.Writer

	mu     sync.Mutex
	done   uint64
	cpu    time.Duration
	failed []uint64
	counts
}

// all runs the seeds in blocks.
func (b *bench) all(ctx context.Context, first, last uint64, parallel int) {
	var work errgroup.Group
	work.SetLimit(max(1, parallel))
	for at := first; at <= last; at += block {
		work.Go(func() error {
			b.block(ctx, at, min(last, at+block-1))
			return nil
		})
	}
	_ = work.Wait() // none of them returns an error
}

// block runs seeds; one that fails ends the process, and the next goes on after it.
func (b *bench) block(ctx context.Context, first, last uint64) {
	for first <= last {
		r := b.seeds(ctx, first, last-first+1, "all")
		bad, failed := r.failed(first)
		ran := last - first + 1
		if failed {
			ran = bad - first + 1
		}
		b.add(r, ran)
		if failed {
			b.explain(ctx, bad, r)
		}
		first += ran
	}
}

func (b *bench) add(r result, seeds uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += seeds
	b.cpu += r.cpu
	for kind, n := range r.Struck {
		b.Struck[kind] += n
	}
	for mode, n := range r.Modes {
		b.Modes[mode] += n
	}
}

// explain cuts the plan of a seed that has failed, and prints what is left of it.
func (b *bench) explain(ctx context.Context, seed uint64, r result) {
	small, again := minimise(faultsOf(r.timeline), func(faults []int) (result, bool) {
		r := b.seeds(ctx, seed, 1, list(faults))
		_, failed := r.failed(seed)
		return r, failed
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = append(b.failed, seed)
	fmt.Fprintf(b.out, "seed %d FAILED", seed)
	if again == nil {
		fmt.Fprintf(b.out, ", and did not when it was repeated:\n%s\n%s\n", r.timeline, r.output)
		return
	}
	fmt.Fprintf(b.out, "; it needs the faults %s of its plan. Repeat it with\n", list(small))
	fmt.Fprintf(b.out, "  go test ./trainer -run TestSimulation -first %d -simulations 1 -faults %s -timeline /dev/stdout\n", seed, list(small))
	fmt.Fprintf(b.out, "%s\n%s\n", again.timeline, again.output)
}

func (b *bench) summary(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, "%-20s %s\n", "fault", "struck")
	for _, kind := range slices.Sorted(maps.Keys(b.Struck)) {
		fmt.Fprintf(b.out, "%-20s %6d\n", kind, b.Struck[kind])
	}
	fmt.Fprintf(b.out, "jobs: %d async, %d sync, %d staleness\n", b.Modes["async"], b.Modes["sync"], b.Modes["staleness"])
	fmt.Fprintf(b.out, "%d seeds in %.0f s, %.0f CPU seconds; %d failed\n", b.done, took.Seconds(), b.cpu.Seconds(), len(b.failed))
}
