package etcdqueue

import (
	"flag"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/store/storetest"
)

// histories is how many histories are recorded over the fake store; over etcd it
// is a twentieth of that.
var histories = flag.Int("histories", 100, "how many histories to record over the fake store (and a twentieth over etcd)")

// sums are what histories had in them.
type sums map[string]int

func (s sums) add(k *traffic) {
	for name, n := range k.rec.calls {
		s[name] += n
	}
}

// requireAll requires that every kind of call was there, with every answer that
// it can have.
func (s sums) requireAll(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"take ok", "take ?", "complete ok", "complete stale", "complete guarded", "complete ?", "release ok", "release stale", "fail ok",
		"touch ok", "touch stale", "requeue ok", "reopen ok", "turn ok", "read ok",
	} {
		require.Positive(t, s[name], "%s in %v", name, s)
	}
}

// TestHistoriesOverTheFake: what callers are told, by calls that overlap, lose
// their answers, come late or wait for a partition to end, is what a queue with
// one caller could have answered.
func TestHistoriesOverTheFake(t *testing.T) {
	t.Parallel()
	all, operations := sums{}, 0
	for seed := range *histories {
		var k *traffic
		good := t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := fake.New(fake.Options{})
				k = newTraffic(t, uint64(seed), func(name string) (store.Store, *fake.Client) {
					client := st.Client(name)
					client.Fail(func(op, _ string) error {
						if op != "watch" {
							k.rest(1)
						}
						return nil
					})
					return store.Prefixed(client, prefix), client
				}, 8*time.Millisecond, 24)
				k.run()
			})
			n, err := k.rec.check()
			operations += n
			require.NoError(t, err)
		})
		if k != nil {
			all.add(k)
		}
		if !good {
			return
		}
	}
	t.Logf("%d histories, %d operations, %v", *histories, operations, all)
	all.requireAll(t)
}

// TestHistoriesOverEtcd is the same over a real etcd.
func TestHistoriesOverEtcd(t *testing.T) {
	t.Parallel()
	root := storetest.Embedded(t)
	all, operations, n := sums{}, 0, max(1, *histories/20)
	for seed := range n {
		k := newTraffic(t, uint64(seed), func(string) (store.Store, *fake.Client) {
			return store.Prefixed(root, fmt.Sprintf("%d/", seed)), nil
		}, 20*time.Millisecond, 24)
		k.run()
		all.add(k)
		checked, err := k.rec.check()
		require.NoError(t, err, "seed %d", seed)
		operations += checked
	}
	t.Logf("%d histories, %d operations, %v", n, operations, all)
}

// TestTheCheckerCanFail feeds it histories that no queue may have.
func TestTheCheckerCanFail(t *testing.T) {
	t.Parallel()
	id := chunkID{0, 0}
	a, b, again := Holder{"a", 5}, Holder{"b", 7}, Holder{"a", 9}
	type step struct {
		at   span
		call chunkCall
		is   chunkAnswer
	}
	over := func(s step) step {
		s.call.over = true
		return s
	}
	take := func(call, ret int64, h Holder) step {
		return step{span{call, ret}, chunkCall{verb: "take", holder: h}, chunkAnswer{effect: ok}}
	}
	report := func(call, ret int64, verb string, h Holder, e effect) step {
		return step{span{call, ret}, chunkCall{verb: verb, holder: h, limit: 2}, chunkAnswer{effect: e}}
	}
	requeue := func(call, ret int64, from string) step {
		return step{span{call, ret}, chunkCall{verb: "requeue", lost: func(h Holder) bool { return h.Incarnation == from }}, chunkAnswer{effect: ok}}
	}
	read := func(call, ret int64, p place) step {
		return step{span{call, ret}, chunkCall{verb: "read"}, chunkAnswer{effect: ok, place: p}}
	}
	guarded := func(s step, g int64) step {
		s.call.guard = g
		return s
	}
	again1 := func(s step) step {
		s.call.unsure = true
		return s
	}
	guard := func(call, ret, v int64) step {
		return step{span{call, ret}, chunkCall{verb: "guard", guard: v}, chunkAnswer{effect: ok}}
	}
	left := step{span{20, 21}, chunkCall{verb: "state", finished: true}, chunkAnswer{effect: ok}}
	tests := map[string]struct {
		steps []step
		legal bool
	}{
		"take, complete":                       {[]step{take(1, 2, a), report(3, 4, "complete", a, ok), read(5, 6, complete)}, true},
		"double take":                          {[]step{take(1, 2, a), take(3, 4, b)}, false},
		"taken over":                           {[]step{take(1, 2, a), over(take(3, 4, b)), report(5, 6, "complete", b, ok)}, true},
		"taken over with a smaller token":      {[]step{take(1, 2, b), over(take(3, 4, a))}, false},
		"taken over from itself":               {[]step{take(1, 2, a), over(take(3, 4, again))}, false},
		"taken over after it was complete":     {[]step{take(1, 2, a), report(3, 4, "complete", a, ok), over(take(5, 6, b))}, false},
		"complete by who was overtaken":        {[]step{take(1, 2, a), over(take(3, 4, b)), report(5, 6, "complete", a, ok)}, false},
		"who was overtaken is refused":         {[]step{take(1, 2, a), over(take(3, 4, b)), report(5, 6, "complete", a, refused)}, true},
		"taken again after a requeue":          {[]step{take(1, 2, a), requeue(3, 4, "a"), take(5, 6, b)}, true},
		"taken again while a requeue goes on":  {[]step{take(1, 2, a), requeue(3, 9, "a"), take(5, 6, b)}, true},
		"a requeue from the living":            {[]step{take(1, 2, a), requeue(3, 4, "c"), take(5, 6, b)}, false},
		"a smaller token":                      {[]step{take(1, 2, b), requeue(3, 4, "b"), take(5, 6, a)}, false},
		"an old token is accepted":             {[]step{take(1, 2, a), requeue(3, 4, "a"), take(5, 6, again), report(7, 8, "complete", a, ok)}, false},
		"an old token is refused":              {[]step{take(1, 2, a), requeue(3, 4, "a"), take(5, 6, again), report(7, 8, "complete", a, refused)}, true},
		"the right token is refused":           {[]step{take(1, 2, a), report(3, 4, "complete", a, refused)}, false},
		"complete twice":                       {[]step{take(1, 2, a), report(3, 4, "complete", a, ok), report(5, 6, "complete", a, ok)}, false},
		"complete again after a lost answer":   {[]step{take(1, 2, a), report(3, math.MaxInt64, "complete", a, unknown), again1(report(5, 6, "complete", a, ok))}, true},
		"a lost report may not have happened":  {[]step{take(1, 2, a), report(3, math.MaxInt64, "complete", a, unknown), report(5, 6, "release", a, ok), take(7, 8, b)}, true},
		"a lost report may come late":          {[]step{take(1, 2, a), report(3, math.MaxInt64, "release", a, unknown), report(5, 6, "touch", a, ok), read(7, 8, todo)}, true},
		"a lost chunk":                         {[]step{take(1, 2, a), report(3, 4, "release", a, ok), read(5, 6, complete)}, false},
		"a chunk that is nowhere":              {[]step{read(1, 2, place("nowhere"))}, false},
		"a pass that is left with a chunk":     {[]step{take(1, 2, a), left}, false},
		"a pass that is left in order":         {[]step{take(1, 2, a), report(3, 4, "complete", a, ok), left}, true},
		"complete under an old guard":          {[]step{guard(1, 2, 50), take(3, 4, a), guard(5, 6, 51), guarded(report(7, 8, "complete", a, ok), 50)}, false},
		"a guard that stands does not bar":     {[]step{guard(1, 2, 50), take(3, 4, a), guarded(report(7, 8, "complete", a, barred), 50)}, false},
		"quarantined at the limit, and before": {[]step{take(1, 2, a), report(3, 4, "fail", a, ok), read(5, 6, failedAt)}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecording(1, Config{Lanes: 1, Passes: 1})
			for _, s := range test.steps {
				if s.call.over {
					r.config.Speculate = time.Second
				}
				if s.call.verb == "take" {
					require.NoError(t, r.granted(s.at, grantOf{id, s.call.holder}))
					continue
				}
				r.chunk(s.at, id, s.call, s.is)
			}
			_, err := r.check()
			if test.legal {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, errIllegal)
			}
		})
	}
}

// TestTheCheckerCanFailOnState does so with the job's state.
func TestTheCheckerCanFailOnState(t *testing.T) {
	t.Parallel()
	at := func(rev int64, phase Phase, pass int, reopened ...int) State {
		return State{Phase: phase, Pass: pass, Reopened: reopened, Lanes: 1, Revision: rev}
	}
	type step struct {
		stateCall
		effect effect
		state  State
	}
	turn := func(s State) step { return step{stateCall{verb: "turn"}, ok, s} }
	reopen := func(pass int) step { return step{stateCall{verb: "reopen", pass: pass}, ok, State{}} }
	read := func(s State) step { return step{stateCall{verb: "state"}, ok, s} }
	tests := map[string]struct {
		steps []step
		legal bool
	}{
		"two turns":                       {[]step{turn(at(2, PhaseTraining, 1)), turn(at(3, PhaseDraining, 1))}, true},
		"back":                            {[]step{turn(at(2, PhaseTraining, 1)), turn(at(3, PhaseTraining, 0))}, false},
		"draining with a reopened pass":   {[]step{turn(at(2, PhaseTraining, 1)), reopen(0), turn(at(4, PhaseDraining, 1, 0))}, false},
		"a reopen that is not listed":     {[]step{turn(at(2, PhaseTraining, 1)), reopen(0), read(at(3, PhaseTraining, 1))}, false},
		"a reopen lets a job train again": {[]step{turn(at(2, PhaseTraining, 1)), turn(at(3, PhaseDraining, 1)), reopen(0), read(at(4, PhaseTraining, 1, 0))}, true},
		"a reopen of a pass to come":      {[]step{reopen(1)}, false},
		"a turn that nobody has made":     {[]step{read(at(2, PhaseTraining, 1))}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecording(0, Config{Lanes: 1, Passes: 2})
			for _, s := range test.steps {
				r.onState(span{r.tick(), r.tick()}, s.stateCall, stateAnswer{effect: s.effect, state: s.state})
			}
			_, err := r.check()
			require.Equal(t, test.legal, err == nil, "%v", err)
		})
	}
}

// TestALateReportForgetsOneChunk: a report on a chunk that was reported on
// already does not make the handle forget another one of the same take, which it
// would then hand out again when it looks for what a lost take has taken.
func TestALateReportForgetsOneChunk(t *testing.T) {
	t.Parallel()
	w := setup(t, 3, Config{Lanes: 1})
	q, client := w.client("q")
	tasks := mustTake(t, q, 2)
	require.NoError(t, q.Complete(t.Context(), finished(tasks[0])))
	require.ErrorIs(t, q.Complete(t.Context(), finished(tasks[0])), ErrStale)
	hits := 0
	client.FailAfter(serial(once("put", "queue/", 0, &hits)))
	again := mustTake(t, q, 2)
	require.Equal(t, 1, hits, "the answer was lost")
	require.Equal(t, []int64{2}, ranks(again))
	_, err := q.Take(t.Context(), 2)
	require.ErrorIs(t, err, ErrEmpty)
}
