package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// traffic is callers of all kinds on one queue, whose calls are recorded.
type traffic struct {
	t    *testing.T
	rec  *recording
	open func(name string) (store.Store, *fake.Client) // the client is nil over etcd
	// pace is the scale of all waits.
	pace   time.Duration
	steps  int
	stalls bool

	mu     sync.Mutex
	random *rand.Rand
	live   map[string]bool
	next   int
	calm   bool
	late   sync.WaitGroup
	// guard is the revision of the key that guards Complete.
	guard  atomic.Int64
	guards store.Store
}

const guardKey = "owners"

func newTraffic(t *testing.T, seed uint64, open func(string) (store.Store, *fake.Client), pace time.Duration, steps int) *traffic {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	k := &traffic{t: t, open: open, pace: pace, steps: steps, random: r, live: map[string]bool{}, stalls: r.IntN(2) == 0}
	c := Config{
		Lanes: 1 + r.IntN(4), Shuffle: r.IntN(2) == 0, Seed: seed, Passes: 2 + r.IntN(2), MaxFailures: 2 + r.IntN(2),
		StallTimeout: time.Hour, Peers: func() int { return 2 },
	}
	if k.stalls {
		c.StallTimeout = 4 * pace
	}
	if r.IntN(2) == 0 {
		c.Speculate = 2 * pace
	}
	k.rec = newRecording(int64(1+r.IntN(9)), c)
	return k
}

func (k *traffic) intN(n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.random.IntN(n)
}

func (k *traffic) chance(n int) bool { return k.intN(n) == 0 }

// rest waits up to n paces.
func (k *traffic) rest(n int) {
	time.Sleep(k.pace * time.Duration(k.intN(16*n)) / 16) //nolint:forbidigo // virtual time, or an etcd's own
}

// fault strikes every sixth write or so.
func (k *traffic) fault() fault {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calm || k.random.IntN(6) > 0 {
		return none
	}
	return fault(1 + k.random.IntN(3))
}

// caller is one incarnation, and the calls that it makes one after the other.
type caller struct {
	*traffic
	q      *Queue
	tap    *tap
	client *fake.Client
	name   string
	held   []Task
	old    []Task
	doubt  map[Task]bool // reports that went without an answer
}

func (k *traffic) caller() *caller {
	k.mu.Lock()
	k.next++
	name := fmt.Sprintf("i%d", k.next)
	k.live[name] = true
	k.mu.Unlock()
	st, client := k.open(name)
	c := &caller{traffic: k, client: client, name: name, doubt: map[Task]bool{}}
	c.tap = &tap{Store: st, fault: k.fault, late: &k.late, delay: func() { k.rest(2) }}
	config := k.rec.config
	config.Store, config.Name, config.Incarnation = c.tap, name, name
	q, err := New(config)
	require.NoError(k.t, err)
	c.q = q
	return c
}

// call makes one call; lost are the writes in it that went without an answer.
func (c *caller) call(f func(ctx context.Context) error) (s span, lost []store.Txn, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*c.pace+time.Millisecond)
	defer cancel()
	s.call = c.rec.tick()
	err = f(ctx)
	s.ret = c.rec.tick()
	if err != nil && !slices.ContainsFunc([]error{
		errLost, context.DeadlineExceeded, ErrStale, ErrGuard, ErrEmpty, ErrNoPass, ErrPhase,
	}, func(allowed error) bool { return errors.Is(err, allowed) }) {
		if failed := (*ErrFailed)(nil); !errors.As(err, &failed) {
			c.t.Errorf("unexpected: %v", err)
		}
	}
	return s, c.tap.taken(), err
}

// answered is the effect of a call that says nothing about single chunks.
func answered(err error) effect {
	if err == nil {
		return ok
	}
	return unknown
}

func (c *caller) id(t Task) chunkID { return chunkID{t.Pass, t.Rank} }

func (c *caller) take() {
	var tasks []Task
	s, lost, err := c.call(func(ctx context.Context) (err error) {
		tasks, err = c.q.Take(ctx, 1+c.intN(4))
		return err
	})
	for _, x := range lost {
		for _, g := range c.rec.asks(x, c.name) {
			c.rec.asked(s.call, g)
		}
	}
	for _, t := range tasks {
		if err := c.rec.granted(s, grantOf{c.id(t), Holder{c.name, t.Token}}); err != nil {
			c.t.Error(err)
		}
	}
	c.held = append(c.held, tasks...)
	if errors.Is(err, ErrEmpty) {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*c.pace)
		defer cancel()
		_ = c.q.Changed(ctx) // or nothing comes
	}
}

// report makes one report on tasks and records what each was told.
func (c *caller) report(verb string, tasks []Task, guard int64, f func(ctx context.Context) error) {
	s, lost, err := c.call(f)
	stale := map[Task]bool{}
	if se := (*StaleError)(nil); errors.As(err, &se) {
		for _, t := range se.Tasks {
			stale[t] = true
		}
	}
	for _, t := range tasks {
		e := unknown
		switch {
		case stale[t]:
			e = refused
		case err == nil || len(stale) > 0:
			e = ok
		case errors.Is(err, ErrGuard):
			e = barred
		}
		unsure := len(lost) > 0 || c.doubt[t]
		if verb == "touch" {
			if e == ok || e == refused {
				c.rec.chunk(s, c.id(t), chunkCall{verb: verb, holder: Holder{c.name, t.Token}}, chunkAnswer{effect: e})
			}
			continue
		}
		c.rec.chunk(s, c.id(t), chunkCall{
			verb: verb, holder: Holder{c.name, t.Token}, unsure: unsure, guard: guard, limit: c.rec.config.MaxFailures,
		}, chunkAnswer{effect: e})
		if verb == "fail" {
			c.rec.quarantined(s.call, t)
		}
		settled := e == ok || e == refused
		if c.doubt[t] = unsure && !settled; settled {
			c.held = slices.DeleteFunc(c.held, func(h Task) bool { return h == t })
			c.old = append(c.old, t)
		}
	}
}

// work makes a report of some kind on tasks.
func (c *caller) work(tasks []Task, n int) {
	switch {
	case n < 8:
		guard := c.guard.Load()
		c.rest(1) // so that some guards are old when they are used
		c.report("complete", tasks, guard, func(ctx context.Context) error {
			return c.q.Complete(ctx, finished(tasks...), store.Unchanged(guardKey, guard))
		})
	case n < 9:
		c.report("release", tasks, 0, func(ctx context.Context) error { return c.q.Release(ctx, tasks) })
	case n < 10:
		c.report("fail", tasks[:1], 0, func(ctx context.Context) error { return c.q.Fail(ctx, tasks[0], "bad", nil) })
	default:
		c.report("touch", tasks, 0, func(ctx context.Context) error { return c.q.Touch(ctx, tasks, "") })
	}
}

func (k *traffic) taker() {
	c := k.caller()
	for range k.steps {
		c.rest(1)
		switch n := k.intN(16); {
		case n == 0: // the end of the lease; it may not know
			k.mu.Lock()
			k.live[c.name] = false
			k.mu.Unlock()
			if k.chance(2) {
				c.q.Close()
				c = k.caller()
			}
		case n == 1 && c.client != nil:
			client := c.client
			client.Partition(true)
			time.AfterFunc(c.pace*time.Duration(k.intN(30)), func() { client.Partition(false) }) //nolint:forbidigo // virtual time
		case n < 4 && len(c.old) > 0: // a report that comes too late
			c.work([]Task{c.old[k.intN(len(c.old))]}, k.intN(12))
		case n < 9 || len(c.held) == 0:
			c.take()
		default:
			some := slices.Clone(c.held[:1+k.intN(len(c.held))])
			c.work(some, k.intN(12))
		}
	}
	c.q.Close()
}

func (c *caller) requeue() {
	var registered map[string]bool
	s, lost, err := c.call(func(ctx context.Context) error {
		n, err := c.q.Requeue(ctx, func(context.Context) (map[string]bool, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			registered = maps.Clone(c.live)
			return registered, nil
		})
		if err == nil && n == 0 {
			registered = nil
		}
		return err
	})
	if registered == nil && len(lost) == 0 {
		return // nothing was moved
	}
	c.rec.mu.Lock()
	c.rec.note("requeue", answered(err))
	c.rec.mu.Unlock()
	e := answered(err)
	if len(lost) > 0 {
		e = unknown
	}
	c.rec.many(s, e, func(chunkID) (chunkCall, chunkAnswer, bool) {
		return chunkCall{verb: "requeue", lost: func(h Holder) bool { return c.stalls || !registered[h.Incarnation] }}, chunkAnswer{effect: e}, true
	})
}

func (c *caller) turn() (seen State) {
	s, _, err := c.call(func(ctx context.Context) (err error) {
		seen, err = c.q.Turn(ctx, nil)
		return err
	})
	c.rec.onState(s, stateCall{verb: "turn"}, stateAnswer{effect: answered(err), state: seen})
	return seen
}

func (c *caller) remove(below int) {
	s, _, err := c.call(func(ctx context.Context) error { return c.q.RemovePasses(ctx, below) })
	c.rec.onState(s, stateCall{verb: "remove", pass: below}, stateAnswer{effect: answered(err)})
}

// read reads a pass with `state`.
func (c *caller) read(pass int) (State, []Lane) {
	var lanes []Lane
	var seen State
	s, _, err := c.call(func(ctx context.Context) (err error) {
		lanes, seen, _, err = c.q.Lanes(ctx, pass)
		return err
	})
	if err != nil {
		return State{}, nil
	}
	c.rec.onState(s, stateCall{verb: "state"}, stateAnswer{effect: ok, state: seen})
	c.rec.lanesRead(s, pass, lanes)
	return seen, lanes
}

func (k *traffic) steward() {
	c := k.caller()
	defer c.q.Close()
	for range k.steps {
		c.rest(2)
		switch n := k.intN(8); {
		case n < 3:
			c.requeue()
		case n < 6:
			c.turn()
		case n < 7:
			c.read(k.intN(k.rec.passes))
		default:
			c.remove(k.intN(k.rec.passes))
		}
	}
}

// owner moves the guard and reopens chunks.
func (k *traffic) owner() {
	c := k.caller()
	defer c.q.Close()
	for range k.steps / 3 {
		c.rest(6)
		if k.chance(2) {
			k.moveGuard()
			continue
		}
		pass, lane := k.intN(k.rec.passes), k.intN(k.rec.lanes)
		size := LaneSize(k.rec.chunks, k.rec.lanes, lane)
		if size == 0 {
			continue
		}
		lo := int64(k.intN(int(size)))
		c.reopen(pass, lane, lo, min(size-1, lo+int64(k.intN(3))))
	}
}

func (c *caller) reopen(pass, lane int, lo, hi int64) {
	var n int64
	s, _, err := c.call(func(ctx context.Context) (err error) {
		n, err = c.q.Reopen(ctx, pass, lane, ranges.Of(lo, hi), nil)
		return err
	})
	if errors.Is(err, ErrNoPass) || errors.Is(err, ErrPhase) {
		return
	}
	a := chunkAnswer{effect: answered(err), none: err == nil && n == 0, all: err == nil && n == hi-lo+1}
	c.rec.onState(s, stateCall{verb: "reopen", pass: pass}, stateAnswer{effect: a.effect, none: a.none})
	for position := lo; position <= hi; position++ {
		c.rec.chunk(s, chunkID{pass, position*int64(c.rec.lanes) + int64(lane)}, chunkCall{verb: "reopen"}, a)
	}
}

// moveGuard writes the key that guards Complete, without faults.
func (k *traffic) moveGuard() {
	s := span{call: k.rec.tick()}
	r, err := k.guards.Txn(k.t.Context(), store.Txn{Then: []store.Op{store.Put(guardKey, []byte("v"), 0)}})
	require.NoError(k.t, err)
	s.ret = k.rec.tick()
	k.guard.Store(r.Revision)
	k.rec.many(s, ok, func(chunkID) (chunkCall, chunkAnswer, bool) {
		return chunkCall{verb: "guard", guard: r.Revision}, chunkAnswer{effect: ok}, true
	})
}

// run lets everybody loose, and reads at the end where every chunk is.
func (k *traffic) run() {
	k.guards, _ = k.open("guards")
	k.moveGuard()
	creator := k.caller()
	_, err := store.Read(k.t.Context(), k.guards, store.Get(stateKey))
	require.NoError(k.t, err)
	r, err := k.guards.Txn(k.t.Context(), store.Txn{Then: InitialOps(Manifest{Chunks: k.rec.chunks}, k.rec.lanes)})
	require.NoError(k.t, err)
	require.True(k.t, r.Succeeded)
	var group sync.WaitGroup
	for range 3 {
		group.Go(k.taker)
	}
	group.Go(k.steward)
	group.Go(k.steward)
	group.Go(k.owner)
	group.Wait()
	k.late.Wait()
	k.mu.Lock()
	k.calm = true
	k.mu.Unlock()
	for pass := range k.rec.passes {
		creator.read(pass)
	}
	creator.turn()
	creator.q.Close()
}
