package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"starfish/job"
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
	// Claims and HandOvers are the changes of owner; Pauses of the latter those
	// that are known, of receivers that lived to serve the shard.
	Claims    int     `json:"claims"`
	HandOvers int     `json:"handovers"`
	Pauses    []Pause `json:"pauses,omitempty"`
	// Evened are the times from a change of the pservers that left an uneven load
	// until it was even again, in seconds. Late: so many more were not evened out
	// after evenWithin, when the next change came.
	Evened []float64 `json:"evened_seconds,omitempty"`
	Late   int       `json:"late,omitempty"`
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

// Spread is what many times were like, in seconds.
type Spread struct {
	N      int     `json:"n"`
	Median float64 `json:"median_seconds"`
	P90    float64 `json:"p90_seconds"`
	Max    float64 `json:"max_seconds"`
}

func newSpread(times []float64) Spread {
	if len(times) == 0 {
		return Spread{}
	}
	slices.Sort(times)
	return Spread{len(times), *quantile(times, 0.5), *quantile(times, 0.9), *quantile(times, 1)}
}

// PauseClass is the pauses of shards of about one size.
type PauseClass struct {
	// UpTo is the largest size, in bytes of the checkpoint; 0: it is not known.
	UpTo int64 `json:"up_to_bytes"`
	Spread
}

// Report is the outcome of a campaign.
type Report struct {
	Runs    int     `json:"runs"`
	Exact   int     `json:"exact"`
	Seconds float64 `json:"seconds"`
	// Modes counts the runs by the way in which their trainers keep step; Moved
	// are those in which processes joined or left.
	Modes map[string]int `json:"modes"`
	Moved int            `json:"moved"`
	Kinds []Tally        `json:"kinds"`
	// Pauses of moved shards, by size.
	Pauses []PauseClass `json:"pauses"`
	// Changes of the pservers that left an uneven load; Evened is how long it was
	// so, of those that were evened out before the next change. Late counts the
	// changes after which it was so for more than evenWithin.
	Changes  int       `json:"changes"`
	Evened   Spread    `json:"evened"`
	Late     int       `json:"late"`
	Outcomes []Outcome `json:"outcomes"`
}

// newReport sums outcomes up.
func newReport(outcomes []Outcome, seconds float64) Report {
	r := Report{Runs: len(outcomes), Seconds: seconds, Modes: map[string]int{}, Outcomes: outcomes}
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
	var evened []float64
	for _, o := range outcomes {
		if o.Failure == "" {
			r.Exact++
		}
		r.Modes[o.Plan.Shape.steps()]++
		if o.moved() {
			r.Moved++
		}
		r.Late += o.Late
		r.Changes += len(o.Evened) + o.Late
		for _, s := range o.Evened {
			if evened = append(evened, s); s > evenWithin.Seconds() {
				r.Late++
			}
		}
	}
	r.Evened, r.Pauses = newSpread(evened), classes(outcomes)
	return r
}

// bounded is async with a bound on staleness.
const bounded = "staleness"

// steps is how the trainers keep step: async, sync or bounded.
func (s Shape) steps() string {
	if s.Staleness > 0 {
		return bounded
	}
	return s.Mode
}

// moved tells whether processes joined or left while the job trained.
func (o Outcome) moved() bool {
	return slices.ContainsFunc(o.Strikes, func(s Strike) bool {
		switch named(s.Kind).Action {
		case Join, Leave, Burst:
			return s.Struck
		}
		return false
	})
}

// classes parts the pauses by size: each class is of shards up to four times as
// large as those of the one before.
func classes(outcomes []Outcome) []PauseClass {
	times := map[int64][]float64{}
	for _, o := range outcomes {
		for _, p := range o.Pauses {
			upTo := p.Bytes
			if upTo > 0 {
				for upTo = 4 << 10; upTo < p.Bytes; upTo *= 4 {
				}
			}
			times[upTo] = append(times[upTo], p.Seconds)
		}
	}
	var cs []PauseClass
	for _, upTo := range slices.Sorted(maps.Keys(times)) {
		cs = append(cs, PauseClass{upTo, newSpread(times[upTo])})
	}
	return cs
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

// uneven tells whether the load was uneven for too long after more than one change
// in ten.
func (r Report) uneven() bool { return 10*r.Late > r.Changes }

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
	for _, c := range r.Pauses {
		size := fmt.Sprintf("up to %d KiB", c.UpTo>>10)
		if c.UpTo == 0 {
			size = "of unknown size"
		}
		fmt.Fprintf(w, "pause of a moved shard %s: %d, median %.3f s, p90 %.3f s, longest %.3f s\n", size, c.N, c.Median, c.P90, c.Max)
	}
	var replayed, duplicates int64
	claims, handOvers, checkpoints := 0, 0, 0
	for _, o := range r.Outcomes {
		replayed, duplicates, checkpoints = replayed+o.Replayed, duplicates+o.Duplicates, checkpoints+o.Checkpoints
		claims, handOvers = claims+o.Claims, handOvers+o.HandOvers
	}
	fmt.Fprintf(w, "%d hand-overs, %d claims; load even again after %d changes: median %.2f s, p90 %.2f s, longest %.2f s; later than %.0f s: %d\n",
		handOvers, claims, r.Evened.N, r.Evened.Median, r.Evened.P90, r.Evened.Max, evenWithin.Seconds(), r.Late)
	fmt.Fprintf(w, "%.0f s; %d batches replayed, %d duplicates ignored, %d listed checkpoints loaded\n", r.Seconds, replayed, duplicates, checkpoints)
	exact := "all exact"
	if r.Exact != r.Runs {
		exact = fmt.Sprintf("%d exact", r.Exact)
	}
	_, err := fmt.Fprintf(w, "%d runs: %d async, %d sync, %d staleness; %d with joins and leaves; %s\n",
		r.Runs, r.Modes[job.ModeAsync], r.Modes[job.ModeSync], r.Modes[bounded], r.Moved, exact)
	return err
}
