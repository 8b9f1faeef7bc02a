package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestCampaign is the short form of the campaign: a few seeds at once.
func TestCampaign(t *testing.T) {
	if testing.Short() {
		t.Skip("whole jobs on real processes")
	}
	var out, problems bytes.Buffer
	report := filepath.Join(t.TempDir(), "report.json")
	code := cli.Execute(t.Context(), command(&out), []string{"--seeds", "1-4", "--parallel", "4", "--report", report}, &problems)
	require.Zero(t, code, "%s\n%s", &out, &problems)
	text, err := os.ReadFile(report)
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal(text, &r))
	require.Equal(t, 4, r.Exact)
	struck, handOvers := 0, 0
	for _, k := range r.Kinds {
		struck += k.Struck
	}
	require.Greater(t, struck, 8, "%s", &out)
	for _, o := range r.Outcomes {
		handOvers += o.HandOvers
		require.NoDirExists(t, o.Dir)
		require.Positive(t, o.Checkpoints)
	}
	require.Positive(t, handOvers, "%s", &out)
	require.NotEmpty(t, r.Pauses)
}

func TestPlans(t *testing.T) {
	t.Parallel()
	planned := map[string]int{}
	for seed := uint64(0); seed <= 200; seed++ {
		p, moving := NewPlan(seed), false
		require.Equal(t, p, NewPlan(seed), "a seed is a plan")
		for i, f := range p.Faults {
			planned[f.Name]++
			moving = moving || f.Kind.Moving
			require.LessOrEqual(t, f.Kind.Needs, p.Shape.Pservers)
			require.LessOrEqual(t, f.place(), p.Faults[min(i+1, len(p.Faults)-1)].place())
		}
		require.Equal(t, seed > 0, moving)
		require.LessOrEqual(t, p.Shape.Pservers, 4)
		require.LessOrEqual(t, p.Shape.Trainers, 6)
		require.LessOrEqual(t, p.Shape.Shards, 8)
	}
	for _, k := range Kinds() {
		require.GreaterOrEqual(t, planned[k.Name], 25, k.Name)
	}
	require.Len(t, NewPlan(0).Faults, everythingTimes)
	var names []string
	for _, f := range NewPlan(3).Faults {
		if !f.Kind.Moving {
			names = append(names, f.Name)
		}
	}
	require.Equal(t, []string{"stop and continue a trainer", "before-complete", "save-renamed", "after-complete"}, names,
		"what is added to the plans leaves the rest of a seed as it was")
	require.NotEqual(t, NewPlan(1).Shape, NewPlan(2).Shape)
}

// What the audit model is to count is what a reader of the data counts.
func TestDifferences(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := NewPlan(1)
	counts, size, err := writeData(dir, p)
	require.NoError(t, err)
	require.Equal(t, p.Shape.Records, counts["total\t0"])
	require.Positive(t, size)
	file := filepath.Join(dir, "model.txt")
	write := func(change func(key string, n int) (int, bool)) string {
		var b bytes.Buffer
		b.WriteString("# a comment\n")
		for key, n := range counts {
			if n, ok := change(key, 3*n); ok {
				fmt.Fprintf(&b, "%s\t%d\n", key, n)
			}
		}
		require.NoError(t, os.WriteFile(file, b.Bytes(), 0o644))
		d, err := differences(file, counts, 3)
		require.NoError(t, err)
		return d
	}
	require.Empty(t, write(func(_ string, n int) (int, bool) { return n, true }))
	require.Contains(t, write(func(key string, n int) (int, bool) { return n, key != "total\t0" }), "total\t0 is missing")
	require.Contains(t, write(func(key string, n int) (int, bool) {
		if key == "total\t0" {
			n++
		}
		return n, true
	}), fmt.Sprintf(`"total\t0\t%d" instead of "total\t0\t%d"`, 3*p.Shape.Records+1, 3*p.Shape.Records))
}

func TestReport(t *testing.T) {
	t.Parallel()
	seconds := func(s float64) *float64 { return &s }
	strike := func(s float64) Outcome {
		return Outcome{Strikes: []Strike{{Kind: "kill a pserver", Struck: true, Failover: seconds(s)}, {Kind: "after-take"}}}
	}
	outcomes := []Outcome{{Failure: "x"}}
	for i := range 10 {
		outcomes = append(outcomes, strike(float64(10-i)/10))
	}
	r := newReport(outcomes, 7)
	require.Equal(t, 11, r.Runs)
	require.Equal(t, 10, r.Exact)
	require.Equal(t, "kill a pserver", r.Kinds[1].Kind)
	require.Equal(t, 10, r.Kinds[1].Struck)
	require.Equal(t, 0.5, *r.Kinds[1].Median)
	require.Equal(t, 0.9, *r.Kinds[1].P90)
	require.Empty(t, r.slow())
	require.NotContains(t, r.few(10), "kill a pserver: 10")
	require.Contains(t, r.few(11), "kill a pserver: 10")
	require.Contains(t, r.few(1), "after-take: 0")
	late := newReport([]Outcome{strike(1.2)}, 1)
	require.Equal(t, []string{"kill a pserver: 1.20 s, not 1 s"}, late.slow())

	c := campaign{least: 1}
	require.ErrorContains(t, c.judge(r, 200), "1 of 11 runs were not right")
	require.ErrorContains(t, c.judge(r, 200), "11 of 200 seeds")
	require.NoError(t, (&campaign{}).judge(newReport(outcomes[1:], 1), 200))
	var b bytes.Buffer
	require.NoError(t, r.write(&b))
	require.Regexp(t, `kill a pserver +training +0 +10 +0\.50 s +0\.90 s +1\.00 s`, b.String())
	require.Contains(t, b.String(), "\n7 s; ")
	require.Contains(t, b.String(), "11 runs: 0 async, 0 sync, 0 staleness; 0 with joins and leaves; 10 exact\n")
}

// A report says in which modes jobs were run, and in how many of them processes
// came and went.
func TestReportOfModes(t *testing.T) {
	t.Parallel()
	outcome := func(mode string, staleness int, strikes ...Strike) Outcome {
		return Outcome{Plan: Plan{Shape: Shape{Mode: mode, Staleness: staleness}}, Strikes: strikes}
	}
	r := newReport([]Outcome{
		outcome("async", 0, Strike{Kind: "kill a pserver", Struck: true}),
		outcome("async", 0, Strike{Kind: "a trainer joins"}), // it did not come to it
		outcome("sync", 0, Strike{Kind: "a pserver leaves", Struck: true}, Strike{Kind: "trainers come and go", Struck: true}),
		outcome("async", 3, Strike{Kind: "a trainer joins", Struck: true}),
	}, 1)
	var b bytes.Buffer
	require.NoError(t, r.write(&b))
	require.Contains(t, b.String(), "4 runs: 2 async, 1 sync, 1 staleness; 2 with joins and leaves; all exact\n")
}

func TestParseSeeds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]uint64{"7": {7, 7}, "1-200": {1, 200}, "0-0": {0, 0}, "": nil, "3-1": nil, "a": nil, "1-": nil} {
		first, last, err := parseSeeds(text)
		if want == nil {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, []uint64{first, last})
	}
	require.Equal(t, []string{"--seeds", "1-3", "-f", "--x"}, longFlags([]string{"-seeds", "1-3", "-f", "--x"}))
}

func TestParseProcess(t *testing.T) {
	t.Parallel()
	require.Equal(t, process{1, "pserver-0", pservers}, parseProcess(1, []string{"/x/pserver", "--job", "j", "--name", "pserver-0"}))
	require.Equal(t, process{2, "", "sh"}, parseProcess(2, []string{"/bin/sh", "/x/pserver.sh", "--name", "pserver-0"}))
	all := []process{{1, "pserver-0", pservers}, {2, "pserver-1", pservers}, {3, "trainer-0", trainers}}
	p, ok := pick(all, pservers, 0.99)
	require.True(t, ok)
	require.Equal(t, "pserver-1", p.name)
	_, ok = pick(all[2:], pservers, 0)
	require.False(t, ok)
	require.True(t, process{pid: os.Getpid()}.alive())
	require.False(t, process{pid: 1 << 30}.alive())
	require.Less(t, time.Duration(0), Kinds()[1].Limit)
}

// A process stays stopped over the next fault only if that one can strike.
func TestOver(t *testing.T) {
	t.Parallel()
	stop := func(role string) Fault { return Fault{Kind: named("stop and continue a " + role), Over: true} }
	cases := []struct {
		first, next string
		shape       Shape
		over        bool
	}{
		{"trainer", "kill a trainer", Shape{Pservers: 1, Trainers: 1}, true},
		{"trainer", "after-take", Shape{Pservers: 1, Trainers: 1}, false},
		{"trainer", "after-take", Shape{Pservers: 1, Trainers: 2}, true},
		{"pserver", "kill a pserver for good", Shape{Pservers: 2, Trainers: 2}, false},
		{"pserver", "kill a pserver for good", Shape{Pservers: 3, Trainers: 1}, true},
		{"pserver", "terminate a pserver", Shape{Pservers: 3, Trainers: 3}, false},
		{"pserver", "kill everything", Shape{Pservers: 3, Trainers: 3}, false},
		{"pserver", "a pserver joins", Shape{Pservers: 1, Trainers: 1}, true},
		{"trainer", "a pserver leaves", Shape{Pservers: 3, Trainers: 3}, false},
		{"pserver", "before-handover", Shape{Pservers: 4, Trainers: 3}, false},
	}
	for _, c := range cases {
		require.Equal(t, c.over, c.shape.over(stop(c.first), Fault{Kind: named(c.next)}), "%+v", c)
	}
	require.False(t, Shape{Pservers: 3, Trainers: 3}.over(Fault{Kind: named("stop and continue a trainer")}, Fault{Kind: named("kill a trainer")}))
	over := 0
	for seed := uint64(1); seed <= 200; seed++ {
		p := NewPlan(seed)
		for i := range len(p.Faults) - 1 {
			if p.Shape.over(p.Faults[i], p.Faults[i+1]) {
				over++
			}
		}
	}
	require.Greater(t, over, 10)
}

// What comes after a fault of a plan that has others leave is another shape.
func TestShapeNow(t *testing.T) {
	t.Parallel()
	r := &run{plan: Plan{Shape: Shape{Pservers: 2, Trainers: 3}}, left: map[string]bool{"pserver-0": true, "trainer-2": true},
		extras: []*extra{{role: pservers, name: "pserver-101"}, {role: pservers, name: "pserver-102"}}}
	require.Equal(t, []string{"pserver-1", "pserver-101", "pserver-102"}, r.placed(pservers))
	require.Equal(t, []string{"trainer-0", "trainer-1"}, r.placed(trainers))
	require.Equal(t, Shape{Pservers: 3, Trainers: 2}, r.shapeNow())
	require.Equal(t, []string{"c", "a"}, those([]string{"a", "b", "c"}, 0.99, 2))
	require.Empty(t, those([]string{"a"}, 0.5, -1))
}

// A fault of a plan whose job has ended does nothing, and asks no etcd.
func TestNoFaultAfterTheEnd(t *testing.T) {
	t.Parallel()
	r := &run{ended: make(chan struct{})}
	close(r.ended)
	for _, k := range Kinds() {
		require.NoError(t, r.strikeIfRunning(t.Context(), Fault{Kind: k, Name: k.Name}))
	}
	require.Empty(t, r.out.Strikes)
}
