package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// The names of the programs that are compared.
const (
	yardstick = "bare loop"
	whole     = "starfish run"
	small     = "1+1"
	large     = "4+4"
)

// sample is one run of one program.
type sample struct {
	records  uint64
	wall     float64 // s, of the whole command
	cpu      float64 // s, of all its processes
	training float64 // s from first take to last complete; 0 if there is no such thing
}

// readOutput reads what a program wrote: a number of records, or a result.
func readOutput(out []byte) (sample, error) {
	out = bytes.TrimSpace(out)
	if n, err := strconv.ParseUint(string(out), 10, 64); err == nil {
		return sample{records: n}, nil
	}
	var r struct {
		Records uint64   `json:"records"`
		Seconds *float64 `json:"seconds"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return sample{}, fmt.Errorf("neither a number nor a result: %q", out)
	}
	s := sample{records: r.Records}
	if r.Seconds != nil {
		s.training = *r.Seconds
	}
	return s, nil
}

// oneRound is a round in one line.
func oneRound(programs []program, round map[string]sample) string {
	var parts []string
	for _, p := range programs {
		parts = append(parts, fmt.Sprintf("%s %.2f s", p.name, round[p.name].wall))
	}
	return strings.Join(parts, ", ")
}

// report writes the table and returns the job's share of the yardstick's
// records/s, of the wall time of the whole commands.
func report(w io.Writer, rows uint64, programs []program, rounds []map[string]sample) float64 {
	over := spreadOf(rounds)
	million := float64(rows) / 1e6
	fmt.Fprintf(w, "\n%d records, batches of %d, %d workers, %d servers; median (least – most) of %d rounds\n\n", rows, batch, workers, servers, len(rounds))
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "\tthousand records/s of wall time\tCPU-s per million records\t÷ %s, records/s\t÷ %s, CPU-s\n", yardstick, yardstick)
	var share float64
	for _, p := range programs {
		ratio := over(func(r map[string]sample) float64 { return r[yardstick].wall / r[p.name].wall })
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", p.name,
			over(func(r map[string]sample) float64 { return float64(rows) / r[p.name].wall / 1e3 }).format("%.0f"),
			over(func(r map[string]sample) float64 { return r[p.name].cpu / million }).format("%.2f"),
			ratio.format("%.2f"),
			over(func(r map[string]sample) float64 { return r[p.name].cpu / r[yardstick].cpu }).format("%.2f"))
		if p.name == whole {
			share = ratio.median
		}
	}
	_ = t.Flush() // w is the terminal
	training := over(func(r map[string]sample) float64 { return r[whole].training })
	if training.median > 0 {
		rate := over(func(r map[string]sample) float64 { return r[yardstick].wall / r[whole].training })
		fmt.Fprintf(w, "\nof the job, first take to last complete: %s s, %s of the %s's records/s\n", training.format("%.2f"), rate.format("%.2f"), yardstick)
	}
	return share
}

// reportScale writes what a record costs with four pservers and trainers, next to
// what it costs with one of each.
func reportScale(w io.Writer, rows uint64, rounds []map[string]sample) {
	over := spreadOf(rounds)
	million := float64(rows) / 1e6
	fmt.Fprintf(w, "\nCPU-s per million records, %s: %s, %s: %s, ratio %s\n",
		small, over(func(r map[string]sample) float64 { return r[small].cpu / million }).format("%.2f"),
		large, over(func(r map[string]sample) float64 { return r[large].cpu / million }).format("%.2f"),
		over(func(r map[string]sample) float64 { return r[large].cpu / r[small].cpu }).format("%.2f"))
}

// spreadOf gives the spread of some value over the rounds.
func spreadOf(rounds []map[string]sample) func(func(map[string]sample) float64) spread {
	return func(f func(map[string]sample) float64) spread {
		values := make([]float64, len(rounds))
		for i, r := range rounds {
			values[i] = f(r)
		}
		return newSpread(values)
	}
}

// spread is the middle and the ends of some values.
type spread struct{ least, median, most float64 }

func newSpread(values []float64) spread {
	v := slices.Clone(values)
	slices.Sort(v)
	n := len(v)
	return spread{v[0], (v[(n-1)/2] + v[n/2]) / 2, v[n-1]}
}

func (s spread) format(verb string) string {
	return fmt.Sprintf(verb+" ("+verb+" – "+verb+")", s.median, s.least, s.most)
}
