package trainer_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/ranges"
	"starfish/internal/store"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// The simulation: small worlds, each with a plan of faults that its seed draws.
// See docs/simulation.md.
var (
	simulations = flag.Uint64("simulations", 300, "how many seeds to simulate")
	firstSeed   = flag.Uint64("first", 0, "the first seed of the simulation")
	onlyFaults  = flag.String("faults", "all", "which faults of the plan strike, such as 0,3,7")
	timelineTo  = flag.String("timeline", "", "file to which the timeline of the simulation is written")
	reportTo    = flag.String("report", "", "file to which the numbers of the faults that struck, and of the jobs by mode, are written as JSON")
)

// TestSimulation is the whole job under every kind of fault, many times.
func TestSimulation(t *testing.T) {
	const n = 300
	file, seen := records(t, n)
	struck, modes := map[string]int{}, map[string]int{}
	for seed := *firstSeed; seed < *firstSeed+*simulations; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("make simulate SEEDS=%d shows what it needs to fail, and how it comes to it", seed)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				p, list := newSimulation(newCluster(t, file, ""), seed)
				stop := p.draw(seed, list)
				defer stop()
				w := p.guard()
				p.run(list)
				require.NoError(t, w.bounds(true))
				require.Equal(t, etcdqueue.PhaseComplete, p.state().Phase)
				p.exact(n, seen)
				for kind, times := range p.struck {
					struck[kind] += times
				}
				modes[steps(p.spec)]++
			})
		})
	}
	for _, kind := range slices.Sorted(maps.Keys(faults)) {
		t.Logf("%-20s struck %5d times", kind, struck[kind])
		if *simulations >= 300 && *onlyFaults == "all" {
			require.Positive(t, struck[kind], kind)
		}
	}
	t.Logf("jobs by mode: %v", modes)
	if *reportTo != "" {
		b, err := json.Marshal(map[string]map[string]int{"struck": struck, "modes": modes})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*reportTo, b, 0o600))
	}
}

// newSimulation makes the world of a seed and its plan.
func newSimulation(c *cluster, seed uint64) (*plague, []fault) {
	r := rand.New(rand.NewPCG(seed, 8))
	c.spec.Checkpoint.Interval = time.Duration(1+r.IntN(4)) * time.Second
	c.spec.Train.Passes = 2 + r.IntN(2)
	c.spec.Shards = 1 + r.IntN(4)
	drawMode(c.spec, seed)
	pause := 20 * time.Millisecond
	if r.IntN(2) == 0 { // slowly, so that faults meet every phase of the job
		c.latency, pause = 40*time.Millisecond, 3*time.Second
		c.models = map[string]trainer.Builder{model.Count: newPulled}
		c.spec.Data.Chunk = 600
		if r.IntN(2) == 0 { // others write between a look and what it leads to
			c.storeJitter = 50 * time.Millisecond
		}
	}
	if r.IntN(2) == 0 { // nobody takes over what the dead have left before the steward does
		c.spec.Queue.Speculate = 0
	}
	if r.IntN(2) == 0 { // chunks go to others although their trainers live
		c.spec.Queue.StallTimeout = time.Duration(1+r.IntN(3)) * time.Second
	}
	if r.IntN(2) == 0 { // work goes on between the cut of a save and its end
		c.diskLatency = time.Duration(1 + r.Int64N(int64(pause/20)))
	}
	list := chosen(plan(r, 4+r.IntN(12), pause), *onlyFaults)
	c.net.Record()
	skew := rand.New(rand.NewPCG(seed, 9))
	c.prepare = func(proc *process) { // no two clocks agree
		proc.clock.jump(time.Duration(skew.Int64N(int64(20*365*24*time.Hour))) - 10*365*24*time.Hour)
	}
	return newPlague(c, r), list
}

// drawMode draws the mode of a seed's job by itself, so that nothing else of the
// world depends on it.
func drawMode(spec *job.Spec, seed uint64) {
	switch r := rand.New(rand.NewPCG(seed, 9)); r.IntN(4) {
	case 0, 1:
		spec.Train.Mode, spec.Train.Window = job.ModeSync, 0
	case 2:
		spec.Train.Staleness = 1 + r.IntN(4)
	}
}

// steps says how the trainers of a job keep step: async, sync, or staleness, which
// is async with a bound.
func steps(spec *job.Spec) string {
	if spec.Train.Staleness > 0 {
		return "staleness"
	}
	return spec.Train.Mode
}

// chosen are the faults of a plan whose numbers are listed.
func chosen(list []fault, which string) []fault {
	if which == "all" {
		return list
	}
	var some []fault
	for _, number := range strings.Split(which, ",") {
		if i, err := strconv.Atoi(number); err == nil && i < len(list) {
			some = append(some, list[i])
		}
	}
	return some
}

// timeline writes what happens, with the virtual time since the beginning.
type timeline struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
	old   map[string]etcdqueue.Lane
	view  membership.View
}

func (l *timeline) line(who, text string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "%10.3fs  %-18s %s\n", time.Since(l.began).Seconds(), who, fmt.Sprintf(text, args...))
}

// draw writes a timeline, if one is asked for, until stop is called: the plan, then
// starts, ends and faults, and what the records of the job say, as they change.
func (p *plague) draw(seed uint64, list []fault) (stop func()) {
	if *timelineTo == "" {
		return func() {}
	}
	out, err := os.Create(*timelineTo)
	require.NoError(p.t, err)
	fmt.Fprintf(out, "seed %d: mode %s, staleness %d, %d passes, %d shards, %s between faults, chunks of %d bytes\n",
		seed, p.spec.Train.Mode, p.spec.Train.Staleness, p.spec.Train.Passes, p.spec.Shards, map[bool]string{true: "long", false: "short"}[p.latency > time.Millisecond], p.spec.Data.Chunk)
	for _, f := range list {
		fmt.Fprintf(out, "fault %d: %s, %v after the first take\n", f.number, f.kind, f.at)
	}
	l := &timeline{out: out, began: time.Now(), old: map[string]etcdqueue.Lane{}}
	p.line = l.line
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for r := range p.store.Watch(ctx, p.prefix(), store.PrefixEnd(p.prefix()), 0) {
				for _, e := range r.Events {
					l.event(strings.TrimPrefix(e.KV.Key, p.prefix()), e)
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
		require.NoError(p.t, out.Close())
	}
}

func (l *timeline) event(key string, e store.Event) {
	switch {
	case strings.HasPrefix(key, "queue/") && !e.Deleted:
		var lane etcdqueue.Lane
		if json.Unmarshal(e.KV.Value, &lane) == nil {
			l.lane(key, lane)
		}
	case key == "owners":
		if v, err := membership.DecodeView(e.KV); err == nil {
			l.owners(v)
		}
	case key == "state":
		if s, err := etcdqueue.DecodeState(e.KV); err == nil {
			l.line("state", "%s, pass %d, floor %d, reopened %v", s.Phase, s.Pass, s.Floor, s.Reopened)
		}
	case strings.HasPrefix(key, "checkpoints/"):
		l.line(key, "%s", map[bool]string{true: "removed", false: "listed"}[e.Deleted])
	case e.Deleted:
		l.line(key, "gone")
	case strings.HasPrefix(key, "pservers/"), strings.HasPrefix(key, "trainers/"), key == "steward":
		l.line(key, "%s", e.KV.Value)
	}
}

// lane says what has changed in a lane.
func (l *timeline) lane(key string, lane etcdqueue.Lane) {
	old := l.old[key]
	l.old[key] = lane
	pending := func(of etcdqueue.Lane) (all ranges.Set) {
		for _, e := range of.Pending {
			all = all.Union(e.At)
		}
		return all
	}
	for _, e := range lane.Pending {
		if at := e.At.Minus(pending(old)); !at.IsEmpty() {
			l.line(e.Owner, "takes %s of %s, token %d", at, key, e.Token)
		}
	}
	for _, e := range old.Pending {
		if at := e.At.Intersect(lane.Complete); !at.IsEmpty() {
			l.line(e.Owner, "completes %s of %s, token %d", at, key, e.Token)
		}
		if at := e.At.Intersect(lane.Todo); !at.IsEmpty() {
			l.line(e.Owner, "has no more %s of %s, token %d", at, key, e.Token)
		}
	}
	if at := old.Complete.Intersect(lane.Todo); !at.IsEmpty() {
		l.line(key, "reopened: %s", at)
	}
}

// owners says which shards have changed hands.
func (l *timeline) owners(v membership.View) {
	for i, o := range v.Shards {
		switch {
		case i < len(l.view.Shards) && l.view.Shards[i].Generation == o.Generation && l.view.Shards[i].Owned() == o.Owned():
		case o.Owned():
			l.line(o.Name, "claims shard %d, generation %d", i, o.Generation)
		default:
			l.line("owners", "shard %d is free", i)
		}
	}
	l.view = v
}
