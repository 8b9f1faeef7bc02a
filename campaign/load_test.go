package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/campaign/history"
	"starfish/etcdqueue"
	"starfish/internal/membership"
)

// held is owners that hold so many shards each, of incarnations of their names.
func held(shards map[string]int) membership.View {
	var v membership.View
	for _, name := range []string{"", "a", "b", "c", "d"} {
		for range shards[name] {
			v.Shards = append(v.Shards, membership.Owner{Name: "p" + name, Incarnation: name})
		}
	}
	return v
}

func rosterOf(leaving string, incarnations ...string) membership.Roster {
	r := membership.Roster{Members: map[string]membership.Registration{}}
	for _, i := range incarnations {
		r.Members["p"+i] = membership.Registration{Name: "p" + i, Incarnation: i, Leaving: i == leaving}
	}
	return r
}

func TestEven(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		held   map[string]int
		roster membership.Roster
		even   bool
	}{
		"one has all":         {map[string]int{"a": 3}, rosterOf("", "a"), true},
		"one more":            {map[string]int{"a": 3, "b": 2}, rosterOf("", "a", "b"), true},
		"two more":            {map[string]int{"a": 3, "b": 1}, rosterOf("", "a", "b"), false},
		"one has none":        {map[string]int{"a": 2}, rosterOf("", "a", "b"), false},
		"fewer shards":        {map[string]int{"a": 1}, rosterOf("", "a", "b", "c"), true},
		"a shard is free":     {map[string]int{"": 1, "a": 1}, rosterOf("", "a", "b"), false},
		"an owner is gone":    {map[string]int{"a": 1, "b": 1, "c": 1}, rosterOf("", "a", "b"), false},
		"one leaves, and has": {map[string]int{"a": 1, "b": 1}, rosterOf("b", "a", "b"), false},
		"one leaves, empty":   {map[string]int{"a": 2}, rosterOf("b", "a", "b"), true},
		"nobody":              {map[string]int{"a": 1}, rosterOf(""), false},
	}
	for name, c := range cases {
		require.Equal(t, c.even, even(held(c.held), c.roster), name)
	}
}

// A change of the pservers is measured from its revision on until the load is
// even, or the next one takes its place.
func TestLoad(t *testing.T) {
	t.Parallel()
	var l load
	at := time.Unix(0, 0)
	var phase etcdqueue.Phase
	var v membership.View
	roster := map[string]membership.Registration{}
	see := func(after time.Duration, change func()) {
		t.Helper()
		at = at.Add(after)
		change()
		l.see(at, phase, v, roster)
	}
	registered := func(incarnation string, leaving bool) func() {
		return func() {
			roster["p"+incarnation] = membership.Registration{Name: "p" + incarnation, Incarnation: incarnation, Leaving: leaving}
		}
	}
	owns := func(counts map[string]int) func() { return func() { v = held(counts) } }
	see(0, registered("a", false))
	require.Zero(t, l.since, "the job does not train yet")
	see(0, func() { phase, v = etcdqueue.PhaseTraining, held(map[string]int{"a": 4}) })
	require.Empty(t, l.evened, "it is even, and was when the measurement began")
	see(0, registered("b", false))
	see(time.Second, owns(map[string]int{"a": 3, "b": 1}))
	see(time.Second, owns(map[string]int{"a": 2, "b": 2}))
	require.Equal(t, []float64{2}, l.evened)
	see(time.Second, registered("c", false))
	see(time.Second, registered("d", false))
	require.Zero(t, l.late, "the next change came before it had to be even")
	see(6*time.Second, registered("d", true))
	require.Equal(t, 1, l.late)
	see(time.Second, owns(map[string]int{"a": 2, "b": 1, "c": 1}))
	require.Equal(t, []float64{2, 1}, l.evened)
	see(time.Second, func() { delete(roster, "pd") })
	require.Zero(t, l.since, "nothing is to be evened out")
	see(time.Second, registered("a", true))
	see(time.Second, func() { phase = etcdqueue.PhaseDraining })
	require.Zero(t, l.since, "nothing is handed over any more")
	require.Equal(t, 1, l.late)

	l.since = at
	l.pause()
	l.close(at.Add(time.Minute))
	require.Equal(t, 1, l.late, "etcd was away")
}

// A line of a pserver's log is a pause; its size is that of the checkpoint.
func TestReadPauses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := func(shard, generation int, seconds float64) string {
		return fmt.Sprintf("time=\"2026-11-30T17:50:28Z\" level=info msg=\"received the shard\" from=pserver-0 generation=%d job=campaign pserver=pserver-1 seconds=%v shard=%d\n",
			generation, seconds, shard)
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("pserver-0.log", line(3, 2, 0.25)+"time=x level=info msg=\"serving the shard\" generation=2 seconds=9 shard=3\n"+line(1, 5, 1e-05))
	write("pserver-101.log", line(2, 4, 0.5)+"time=x level=info msg=\"received the shard\" from=pser")
	write("trainer-0.log", line(7, 7, 7))
	pauses, err := readPauses(dir, map[history.Ownership]int64{{Shard: 3, Generation: 2}: 5000, {Shard: 2, Generation: 4}: 4096})
	require.NoError(t, err)
	require.Equal(t, []Pause{{3, 2, 5000, 0.25}, {1, 5, 0, 1e-05}, {2, 4, 4096, 0.5}}, pauses)

	r := newReport([]Outcome{{Pauses: pauses, Evened: []float64{1, 6, 2}, Late: 1}}, 1)
	require.Equal(t, []PauseClass{{0, Spread{1, 1e-05, 1e-05, 1e-05}}, {4096, Spread{1, 0.5, 0.5, 0.5}}, {16384, Spread{1, 0.25, 0.25, 0.25}}}, r.Pauses)
	require.Equal(t, Spread{3, 2, 6, 6}, r.Evened)
	require.Equal(t, 2, r.Late)
	require.Equal(t, 4, r.Changes)
	require.ErrorContains(t, (&campaign{least: 1}).judge(r, 1), "after 2 of 4 changes")
	require.False(t, Report{Changes: 20, Late: 2}.uneven())
}
