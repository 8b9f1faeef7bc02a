package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config is how much is measured.
type config struct {
	rounds int
	only   *regexp.Regexp
	keys   int    // of the table behind the data plane
	rows   int    // of the pserver whose memory is measured
	mib    int    // touched by a dense update
	python string // has NumPy with OpenBLAS
	cpu    bool   // processor time instead of wall time
}

// part is one thing that is measured. open makes what its rounds share and
// returns the round; close ends it.
type part struct {
	name   string
	unit   string // of the ratio's two sides
	target target
	open   func(c *config) (round func() (pair, error), end func() error, err error)
}

// pair is what a part and its yardstick took for the same work, or gave, in
// whatever unit.
type pair struct{ ours, yardstick float64 }

// target is the least, or the most, that the ratio may be.
type target struct {
	bound float64
	most  bool
	// speed: the sides are costs and the ratio is that of speeds.
	speed bool
}

func atLeast(x float64) target { return target{bound: x, speed: true} }
func atMost(x float64) target  { return target{bound: x, most: true} }

func (t target) ratio(p pair) float64 {
	if t.speed {
		return p.yardstick / p.ours
	}
	return p.ours / p.yardstick
}

func (t target) String() string {
	if t.most {
		return fmt.Sprintf("≤ %g", t.bound)
	}
	return fmt.Sprintf("≥ %g", t.bound)
}

func (t target) verdict(ratio float64) string {
	if t.most == (ratio <= t.bound) || ratio == t.bound {
		return "met"
	}
	return "missed"
}

// errAbsent: what a part is compared with is not on this machine.
var errAbsent = errors.New("not measured")

func run(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("parts", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var c config
	if len(args) > 0 && args[0] == "hold" { // this program plays the pserver whose memory is measured
		return hold(args[1:], stdout)
	}
	only := fs.String("only", "", "the parts whose names match")
	fs.IntVar(&c.rounds, "rounds", 5, "rounds")
	fs.IntVar(&c.keys, "keys", 10_000_000, "rows of the tables behind the data plane")
	fs.IntVar(&c.rows, "rows", 50_000_000, "rows of the pserver whose memory is measured")
	fs.IntVar(&c.mib, "mib", 256, "MiB that a dense update touches")
	fs.BoolVar(&c.cpu, "cpu", false, "processor time where it would be wall time, for a machine with other load")
	fs.StringVar(&c.python, "python", "python3", "a Python with NumPy over OpenBLAS")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 || min(c.rounds, c.keys, c.rows, c.mib) < 1 {
		return errors.New("usage: parts [-only REGEXP] [-rounds N] [-keys N] [-rows N] [-mib N] [-python FILE] [-cpu]")
	}
	var err error
	if c.only, err = regexp.Compile(*only); err != nil {
		return err
	}
	return c.measure(all(), stdout)
}

// all are the parts, in the order of the table.
func all() []part {
	return slices.Concat(parsers(), planes(), updates(), products(), queues(), memories())
}

// measure measures the parts one after the other, and prints each as it is done.
func (c *config) measure(parts []part, stdout io.Writer) error {
	t := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "part\tratio, median (least – most)\ttarget\t\tours\tyardstick")
	for _, p := range parts {
		if !c.only.MatchString(p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s …\n", p.name)
		pairs, err := c.pairs(p)
		if errors.Is(err, errAbsent) {
			fmt.Fprintf(t, "%s\t%v\t%s\t\t\t\n", p.name, err, p.target)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		p.print(t, pairs)
	}
	return t.Flush()
}

// pairs runs the rounds of one part.
func (c *config) pairs(p part) (pairs []pair, err error) {
	round, end, err := p.open(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	for range c.rounds {
		one, err := round()
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, one)
	}
	return pairs, nil
}

func (p part) print(w io.Writer, pairs []pair) {
	var ratios, ours, yardsticks []float64
	for _, x := range pairs {
		ratios = append(ratios, p.target.ratio(x))
		ours, yardsticks = append(ours, x.ours), append(yardsticks, x.yardstick)
	}
	r := median(ratios)
	fmt.Fprintf(w, "%s\t%.2f (%.2f – %.2f)\t%s\t%s\t%.4g %s\t%.4g %s\n", p.name, r, slices.Min(ratios), slices.Max(ratios),
		p.target, p.target.verdict(r), median(ours), p.unit, median(yardsticks), p.unit)
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
