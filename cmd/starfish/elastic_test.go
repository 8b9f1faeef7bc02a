package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/job"
)

// elastic is a job `count` of daemons of which tests start and stop some.
type elastic struct {
	*ground
	store  store.Store // the job's
	queue  *etcdqueue.Queue
	spec   []string
	passes int
	all    map[string]*call // that are to end in order
}

func newElastic(t *testing.T, passes int, set ...string) *elastic {
	t.Helper()
	return newElasticOf(t, count, passes, set...)
}

// newElasticOf is newElastic with a spec of a job `count` that lies elsewhere.
func newElasticOf(t *testing.T, spec string, passes int, set ...string) *elastic {
	t.Helper()
	g := newGround(t)
	e := &elastic{ground: g, store: g.job("count"), passes: passes, all: map[string]*call{}}
	e.spec = []string{"--spec", spec, "--set", fmt.Sprintf("train.passes=%d", passes), "--set", "checkpoint.dir=" + filepath.Join(t.TempDir(), "checkpoints")}
	for _, s := range set {
		e.spec = append(e.spec, "--set", s)
	}
	var err error
	e.queue, err = etcdqueue.New(etcdqueue.Config{Store: e.store})
	require.NoError(t, err)
	t.Cleanup(e.queue.Close)
	return e
}

func (e *elastic) begin(names ...string) {
	e.t.Helper()
	for _, name := range names {
		e.all[name] = e.daemon(name, e.spec...)
	}
}

func (e *elastic) signal(name string, s syscall.Signal) {
	e.t.Helper()
	require.NoError(e.t, e.all[name].cmd.Process.Signal(s))
}

func (e *elastic) until(what string, ok func() bool) {
	e.t.Helper()
	require.Eventually(e.t, ok, 3*time.Minute, 5*time.Millisecond, what)
}

func (e *elastic) phase() etcdqueue.Phase {
	s, err := e.queue.State(e.t.Context())
	if err != nil {
		return ""
	}
	return s.Phase
}

// trainers are those that are registered.
func (e *elastic) trainers() membership.Roster {
	r, err := membership.ReadRoster(e.t.Context(), e.store, membership.Trainers)
	require.NoError(e.t, err)
	return r
}

// holds tells whether a trainer has chunks in hand.
func (e *elastic) holds(name string) bool {
	kvs, _, err := store.List(e.t.Context(), e.store, "queue/", store.PrefixEnd("queue/"))
	require.NoError(e.t, err)
	for _, kv := range kvs {
		if strings.Contains(string(kv.Value), `"owner":"`+name+`"`) {
			return true
		}
	}
	return false
}

// end waits for all daemons, requires that every record has counted once, and
// returns the result.
func (e *elastic) end() job.Result {
	e.t.Helper()
	for name, c := range e.all {
		require.Zero(e.t, c.wait(), "%s: %s", name, c.stderr.String())
	}
	kv, err := store.Lookup(e.t.Context(), e.store, job.KeyResult)
	require.NoError(e.t, err)
	var r job.Result
	require.NoError(e.t, json.Unmarshal(kv.Value, &r))
	require.EqualValues(e.t, e.passes*32561, r.Records)
	for _, s := range r.Shards {
		require.Equal(e.t, r.Queue.Batches, s.Batches, "shard %d", s.Shard)
	}
	file := filepath.Join(e.t.TempDir(), "counts.txt")
	e.says("export", "--job", "count", "-o", file)
	requireExact(e.t, file, e.passes)
	return r
}

// Real processes: trainers 1, 20, 3 in the middle of a job. Those that are asked to
// stop give back what they have in hand, so that nobody waits for their leases,
// which live longer than the test; and every record counts once.
func TestTrainersComeAndGo(t *testing.T) {
	e := newElastic(t, 300, "lease_ttl=10m", "queue.speculate=0s", "queue.stall_timeout=10m")
	e.begin("pserver-0", "pserver-1", "trainer-0")
	e.until("the first works", func() bool { return e.holds("trainer-0") })
	began := time.Now()
	for i := 1; i < 20; i++ {
		e.begin(fmt.Sprintf("trainer-%d", i))
	}
	e.until("all work", func() bool { return len(e.trainers().Members) == 20 })
	t.Logf("20 trainers after %.2f s", time.Since(began).Seconds())
	for i := range 20 {
		name := fmt.Sprintf("trainer-%d", i)
		e.until(name+" works", func() bool { return e.holds(name) || e.phase() != etcdqueue.PhaseTraining })
	}
	require.Equal(t, etcdqueue.PhaseTraining, e.phase())
	var longest time.Duration
	for i := 19; i >= 3; i-- {
		name := fmt.Sprintf("trainer-%d", i)
		asked := time.Now()
		e.signal(name, syscall.SIGTERM)
		require.Zero(t, e.all[name].wait(), e.all[name].stderr.String())
		longest = max(longest, time.Since(asked))
		require.False(t, e.holds(name), "it has given back what it had")
		delete(e.all, name)
	}
	require.Len(t, e.trainers().Members, 3)
	t.Logf("17 trainers stopped one after the other, the slowest in %.3f s from the signal to the end of the process", longest.Seconds())
	require.Equal(t, etcdqueue.PhaseTraining, e.phase(), "it is too short a job for this test")
	r := e.end()
	require.Zero(t, r.Queue.Requeued)
	t.Logf("%d takes of %d chunks", r.Queue.Takes, r.Queue.Complete)
}

// Real processes: a trainer that is stopped (SIGSTOP) while it has chunks in hand
// and a lease that lives on. Its chunks come back after the stall timeout, or
// are taken over at the end of the pass by one that has nothing to do; when it goes
// on it drops them, and every record counts once.
func TestStoppedTrainer(t *testing.T) {
	for name, test := range map[string]struct {
		set                  []string
		requeued, speculated bool
	}{
		"stall timeout": {set: []string{"queue.speculate=0s", "queue.stall_timeout=8s"}, requeued: true},
		"speculation":   {set: []string{"queue.speculate=500ms", "queue.stall_timeout=10m"}, speculated: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newElastic(t, 20, append(test.set, "lease_ttl=10m")...)
			e.begin("pserver-0", "pserver-1", "trainer-0", "trainer-1")
			victim := "trainer-0" // that is not the steward: one that is stopped is replaced when its lease ends
			e.until("there is a steward", func() bool {
				kv, err := store.Lookup(t.Context(), e.store, "steward")
				require.NoError(t, err)
				if strings.Contains(string(kv.Value), victim) {
					victim = "trainer-1"
				}
				return kv.Exists()
			})
			for stopped := false; !stopped; {
				e.until("it works", func() bool { return e.holds(victim) })
				e.signal(victim, syscall.SIGSTOP)
				time.Sleep(20 * time.Millisecond) // what it has sent arrives
				if stopped = e.holds(victim); !stopped {
					e.signal(victim, syscall.SIGCONT)
				}
			}
			began := time.Now()
			e.until("the others are through", func() bool { return e.phase() != etcdqueue.PhaseTraining })
			t.Logf("%.2f s from the stop of the trainer to the end of training", time.Since(began).Seconds())
			e.signal(victim, syscall.SIGCONT)
			r := e.end()
			require.Equal(t, test.requeued, r.Queue.Requeued > 0)
			require.Equal(t, test.speculated, r.Queue.Speculated > 0)
			t.Logf("%d of %d takes requeued, %d speculated", r.Queue.Requeued, r.Queue.Takes, r.Queue.Speculated)
		})
	}
}
