package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Outcome is what became of a plan.
type Outcome struct {
	Plan    Plan     `json:"plan"`
	Strikes []Strike `json:"strikes"`
	// Failure is empty if everything was as it must be; then Dir may be gone.
	Failure string  `json:"failure,omitempty"`
	Dir     string  `json:"dir,omitempty"`
	Seconds float64 `json:"seconds"`
	// Batches that shards have applied again after a restore, and batches that
	// they have been sent twice and have not applied twice.
	Replayed   int64 `json:"replayed"`
	Duplicates int64 `json:"duplicates"`
	// Checkpoints that were listed at the end, and have loaded.
	Checkpoints int `json:"checkpoints"`
}

// Tally is what became of the faults of one kind.
type Tally struct {
	Kind    string `json:"kind"`
	Window  Window `json:"window"`
	Planned int    `json:"planned"`
	Struck  int    `json:"struck"`
	// Failovers, of kills of pservers: how often, and how long until all its
	// shards were served again, in seconds.
	Failovers int      `json:"failovers,omitempty"`
	Median    *float64 `json:"failover_median_seconds,omitempty"`
	P90       *float64 `json:"failover_p90_seconds,omitempty"`
	Max       *float64 `json:"failover_max_seconds,omitempty"`
	// Limit is what P90 must not exceed, in seconds; 0: nothing is measured.
	Limit float64 `json:"failover_limit_seconds,omitempty"`
}

// Report is the outcome of a campaign.
type Report struct {
	Runs     int       `json:"runs"`
	Exact    int       `json:"exact"`
	Seconds  float64   `json:"seconds"`
	Kinds    []Tally   `json:"kinds"`
	Outcomes []Outcome `json:"outcomes"`
}

// newReport sums outcomes up.
func newReport(outcomes []Outcome, seconds float64) Report {
	r := Report{Runs: len(outcomes), Seconds: seconds, Outcomes: outcomes}
	slices.SortFunc(r.Outcomes, func(a, b Outcome) int { return cmp.Compare(a.Plan.Seed, b.Plan.Seed) })
	for _, k := range Kinds() {
		t := Tally{Kind: k.Name, Window: k.Window, Limit: k.Limit.Seconds()}
		var times []float64
		for _, o := range outcomes {
			for _, f := range o.Plan.Faults {
				if f.Name == k.Name {
					t.Planned++
				}
			}
			for _, s := range o.Strikes {
				if s.Kind == k.Name && s.Struck {
					t.Struck++
				}
				if s.Kind == k.Name && s.Failover != nil {
					times = append(times, *s.Failover)
				}
			}
		}
		if t.Failovers = len(times); len(times) > 0 {
			slices.Sort(times)
			t.Median, t.P90, t.Max = quantile(times, 0.5), quantile(times, 0.9), quantile(times, 1)
		}
		r.Kinds = append(r.Kinds, t)
	}
	for _, o := range outcomes {
		if o.Failure == "" {
			r.Exact++
		}
	}
	return r
}

// quantile is the smallest of the sorted times that at least the part q of them
// does not exceed.
func quantile(sorted []float64, q float64) *float64 {
	i := 0
	for float64(i+1) < q*float64(len(sorted)) {
		i++
	}
	return &sorted[i]
}

// few lists the kinds that have struck less often than least.
func (r Report) few(least int) []string {
	var names []string
	for _, t := range r.Kinds {
		if t.Struck < least {
			names = append(names, fmt.Sprintf("%s: %d", t.Kind, t.Struck))
		}
	}
	return names
}

// slow lists the kinds after which shards were away for too long.
func (r Report) slow() []string {
	var names []string
	for _, t := range r.Kinds {
		if t.P90 != nil && *t.P90 > t.Limit {
			names = append(names, fmt.Sprintf("%s: %.2f s, not %.0f s", t.Kind, *t.P90, t.Limit))
		}
	}
	return names
}

// write writes the report for people.
func (r Report) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "fault\twindow\tplanned\tstruck\tfailover median\tp90\tmax\n")
	seconds := func(s *float64) string {
		if s == nil {
			return ""
		}
		return fmt.Sprintf("%.2f s", *s)
	}
	for _, k := range r.Kinds {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", k.Kind, k.Window, k.Planned, k.Struck, seconds(k.Median), seconds(k.P90), seconds(k.Max))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var replayed, duplicates int64
	checkpoints := 0
	for _, o := range r.Outcomes {
		replayed, duplicates, checkpoints = replayed+o.Replayed, duplicates+o.Duplicates, checkpoints+o.Checkpoints
	}
	_, err := fmt.Fprintf(w, "%d runs, %d exact, %.0f s; %d batches replayed, %d duplicates ignored, %d listed checkpoints loaded\n",
		r.Runs, r.Exact, r.Seconds, replayed, duplicates, checkpoints)
	return err
}
