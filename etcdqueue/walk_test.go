package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// TestWalk lets takers that crash, hang, fail and lose answers, stewards that
// do their duties at any time, and shards that reopen what they like loose on
// one queue. The history of the store must be legal, revision by revision, and
// the job must come to its end.
func TestWalk(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { newWalk(t, seed).run() })
		})
	}
}

type walk struct {
	t      *testing.T
	w      *world
	mu     sync.Mutex
	random *rand.Rand
	live   map[string]bool
	next   int
	faults bool
	chunks int64
}

func newWalk(t *testing.T, seed uint64) *walk {
	t.Helper()
	k := &walk{t: t, random: rand.New(rand.NewPCG(seed, 1)), live: make(map[string]bool), faults: true}
	k.chunks = int64(1 + k.random.IntN(40))
	k.w = setup(t, k.chunks, Config{
		Lanes: 1 + k.random.IntN(6), Shuffle: seed%2 == 0, Seed: seed, Passes: 3, MaxFailures: 3,
		StallTimeout: 300 * time.Millisecond, Speculate: 100 * time.Millisecond, Peers: func() int { return 4 },
	})
	return k
}

// chance is true once in n times.
func (k *walk) chance(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.random.IntN(n) == 0
}

func (k *walk) sleep(ctx context.Context, most time.Duration) {
	k.mu.Lock()
	d := time.Duration(k.random.Int64N(int64(most)))
	k.mu.Unlock()
	select {
	case <-time.After(d): //nolint:forbidigo // virtual time
	case <-ctx.Done():
	}
}

// open is a new incarnation whose requests go wrong now and then.
func (k *walk) open() *Queue {
	k.mu.Lock()
	k.next++
	name := fmt.Sprintf("i%d", k.next)
	k.live[name] = true
	k.mu.Unlock()
	q, client := k.w.client(name)
	fault := func(op, _ string) error {
		k.mu.Lock()
		faults := k.faults
		k.mu.Unlock()
		if faults && op != "watch" && k.chance(60) {
			return errLost
		}
		return nil
	}
	client.Fail(fault)
	client.FailAfter(fault)
	return q
}

func (k *walk) registered(context.Context) (map[string]bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	set := make(map[string]bool)
	for name, alive := range k.live {
		set[name] = alive
	}
	return set, nil
}

// allowed fails the test unless err is one that a caller must expect.
func (k *walk) allowed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	for _, expected := range []error{errLost, ErrStale, ErrEmpty, ErrNoPass, ErrPhase} {
		if errors.Is(err, expected) {
			return
		}
	}
	k.t.Errorf("unexpected: %v", err)
}

func (k *walk) taker(ctx context.Context) {
	q := k.open()
	for ctx.Err() == nil {
		tasks, err := q.Take(ctx, 4)
		k.allowed(ctx, err)
		if errors.Is(err, ErrEmpty) {
			wait, cancel := context.WithTimeout(ctx, time.Second)
			_ = q.Changed(wait)
			cancel()
		}
		k.sleep(ctx, 20*time.Millisecond)
		switch {
		case k.chance(10): // crash
			k.mu.Lock()
			k.live[q.c.Incarnation] = false
			k.mu.Unlock()
			q.Close()
			q = k.open()
		case k.chance(20): // hang, then go on
			k.sleep(ctx, time.Second)
		case k.chance(20):
			k.allowed(ctx, q.Release(ctx, tasks))
		}
		for _, task := range tasks {
			switch {
			case k.chance(30):
				k.allowed(ctx, q.Touch(ctx, tasks, "waits"))
			case k.chance(60) && k.chance(2):
				k.allowed(ctx, q.Fail(ctx, task, "bad", nil))
			default:
				err := q.Complete(ctx, finished(task))
				if errors.Is(err, errLost) {
					err = q.Complete(ctx, finished(task))
				}
				k.allowed(ctx, err)
			}
		}
	}
}

func (k *walk) steward(ctx context.Context) {
	q := k.open()
	for ctx.Err() == nil {
		k.sleep(ctx, 50*time.Millisecond)
		_, err := q.Requeue(ctx, k.registered)
		k.allowed(ctx, err)
		s, err := q.Turn(ctx, nil)
		k.allowed(ctx, err)
		if err == nil && k.chance(4) {
			k.allowed(ctx, q.RemovePasses(ctx, s.Pass-1))
		}
	}
}

func (k *walk) shard(ctx context.Context) {
	q := k.open()
	for ctx.Err() == nil {
		k.sleep(ctx, 400*time.Millisecond)
		k.mu.Lock()
		faults := k.faults
		lane, lo := k.random.IntN(k.w.config.Lanes), k.random.Int64N(k.chunks)
		k.mu.Unlock()
		s, err := q.State(ctx)
		k.allowed(ctx, err)
		if err != nil || !faults {
			continue
		}
		_, err = q.Reopen(ctx, max(s.Floor, s.Pass-lane%2), lane, ranges.Of(lo, lo+3), nil)
		k.allowed(ctx, err)
	}
}

func (k *walk) run() {
	ctx, stop := context.WithCancel(k.t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() { k.taker(ctx) })
	}
	for range 2 {
		group.Go(func() { k.steward(ctx) })
	}
	group.Go(func() { k.shard(ctx) })
	time.Sleep(20 * time.Second) //nolint:forbidigo // virtual time
	k.mu.Lock()
	k.faults = false
	k.mu.Unlock()
	reader := k.w.open("reader")
	for s := range reader.WatchState(ctx) {
		if s.Phase == PhaseDraining || s.Phase == PhaseFailed {
			time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time: the last reopen may still come
			if again := k.w.state(); again.Phase.Ended() || again.Phase == PhaseDraining {
				break
			}
		}
	}
	stop()
	group.Wait()
	sum := k.w.totals()
	require.Zero(k.t, sum.Todo+sum.Pending)
	if k.w.state().Phase == PhaseDraining {
		require.Equal(k.t, 3*k.chunks, sum.Chunks)
	}
	require.GreaterOrEqual(k.t, sum.Takes, sum.Complete)
	require.Positive(k.t, sum.Requeued, "takers have died")
	require.Positive(k.t, sum.Reopened, "shards have lost chunks")
	require.GreaterOrEqual(k.t, sum.Batches, 10*sum.Complete)
	require.LessOrEqual(k.t, sum.Batches, 10*sum.Chunks, "each chunk is counted once")
	requireLegalHistory(k.t, k.w)
}

// requireLegalHistory reads all that ever happened in the store: at each
// revision every chunk is in one place, tokens only grow, floors and passes
// only rise, and no chunk leaves Complete but by a reopen that is listed.
func requireLegalHistory(t *testing.T, w *world) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	h := history{t: t, lanes: make(map[laneID]Lane), tokens: make(map[laneID]int64), chunks: make(map[int]int64), l: w.config.Lanes}
	last := w.store.Revision()
	byRevision := make(map[int64][]store.Event)
	for seen := int64(0); seen < last; {
		r := <-w.job().Watch(ctx, "", "\x00", seen+1)
		require.NoError(t, r.Err)
		for _, e := range r.Events {
			byRevision[e.KV.ModRev] = append(byRevision[e.KV.ModRev], e)
			seen = e.KV.ModRev
		}
	}
	for rev := range last + 1 {
		h.revision(byRevision[rev])
	}
}

type history struct {
	t      *testing.T
	l      int
	state  State
	chunks map[int]int64 // by pass
	lanes  map[laneID]Lane
	tokens map[laneID]int64
}

func (h *history) revision(events []store.Event) {
	for _, e := range events {
		if e.KV.Key == stateKey {
			s, err := decodeState(e.KV)
			require.NoError(h.t, err)
			require.GreaterOrEqual(h.t, s.Floor, h.state.Floor)
			require.Contains(h.t, []int{h.state.Pass, h.state.Pass + 1}, s.Pass)
			h.state = s
		}
		var pass int
		if _, err := fmt.Sscanf(e.KV.Key, passesPrefix+"%d", &pass); err == nil && !e.Deleted {
			m, err := decodeManifest(e.KV)
			require.NoError(h.t, err)
			h.chunks[pass] = m.Chunks
		}
	}
	for _, e := range events {
		if id, ok := parseLaneKey(e.KV.Key); ok && e.Deleted {
			require.True(h.t, h.lanes[id].Finished())
			require.Less(h.t, id.pass, h.state.Floor, "the floor is moved with it")
		} else if ok {
			h.lane(id, e.KV)
		}
	}
}

func (h *history) lane(id laneID, kv store.KV) {
	l, err := decodeLane(kv, LaneSize(h.chunks[id.pass], h.l, id.lane))
	require.NoError(h.t, err)
	require.GreaterOrEqual(h.t, id.pass, h.state.Floor, "a removed lane is back")
	old := h.lanes[id]
	if lost := old.Complete.Minus(l.Complete); !lost.IsEmpty() {
		require.True(h.t, l.Todo.Covers(lost))
		require.Equal(h.t, kv.ModRev, h.state.Revision, "a reopen writes the state too")
		require.Contains(h.t, h.state.Reopened, id.pass)
	}
	for _, entry := range l.Pending {
		at := entry.At
		for _, before := range old.Pending {
			if before.Incarnation == entry.Incarnation && before.Token == entry.Token {
				at = at.Minus(before.At)
			}
		}
		if !at.IsEmpty() {
			require.Greater(h.t, entry.Token, h.tokens[id], "what is taken now has a larger token than all before")
			h.tokens[id] = entry.Token
		}
	}
	h.lanes[id] = l
}
