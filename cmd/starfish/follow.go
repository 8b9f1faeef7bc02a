package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/pb"
)

// follower watches a job from outside: when its first chunk was taken, when the
// last lane changed, how far it is. It is the Window of the chaos killer.
type follower struct {
	st     store.Store
	spec   *job.Spec
	queue  *etcdqueue.Queue
	clk    clock.Clock
	opened chan struct{} // closed at the first take

	mu    sync.Mutex
	took  time.Time // of the first take
	moved time.Time // of the last change of a lane
	begun bool      // it has looked at the lanes
	fresh bool      // nothing had been taken when it did so first
	// created is the create revision of the job's spec; 0 until it was seen.
	created int64
}

func newFollower(st store.Store, spec *job.Spec, clk clock.Clock) (*follower, error) {
	q, err := openQueue(st, spec, clk)
	if err != nil {
		return nil, err
	}
	return &follower{st: st, spec: spec, queue: q, clk: clk, opened: make(chan struct{})}, nil
}

// openQueue makes a handle of the job's queue.
func openQueue(st store.Store, spec *job.Spec, clk clock.Clock) (*etcdqueue.Queue, error) {
	return etcdqueue.New(etcdqueue.Config{Store: st, Clock: clk, Lanes: spec.Queue.Lanes, Shuffle: spec.Train.Shuffle,
		Seed: spec.Train.Seed, Passes: spec.Train.Passes, MaxFailures: spec.Queue.MaxFailures, StallTimeout: spec.Queue.StallTimeout})
}

func (f *follower) close() { f.queue.Close() }

// follow notes the times of changes of lanes until ctx ends. It keeps nothing of
// what it sees: there may be very many lanes.
func (f *follower) follow(ctx context.Context) error {
	next := int64(0)
	for {
		err := f.watchLanes(ctx, &next)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, store.ErrHistory):
			return err
		case errors.Is(err, store.ErrCompacted):
			f.note(false, true, false) // there is something that was not seen
			next = 0
		}
		if err := clock.Sleep(ctx, f.clk, followPause); err != nil {
			return err
		}
	}
}

const (
	// followPause lies between two watches, of which the first one is over.
	followPause = 200 * time.Millisecond
	// watchTime bounds a watch: one that is lost says nothing any more.
	watchTime = time.Minute
)

// watchLanes watches from revision *next on, which it moves; 0: from now on.
func (f *follower) watchLanes(ctx context.Context, next *int64) error {
	const lanes = "queue/"
	if *next == 0 {
		r, err := store.Read(ctx, f.st, store.Range(lanes, store.PrefixEnd(lanes), 1))
		if err != nil {
			return err
		}
		f.note(true, false, len(r.KVs[0]) == 0)
		*next = r.Revision + 1
	}
	watch, stop := context.WithTimeout(ctx, watchTime)
	defer stop()
	for r := range f.st.Watch(watch, lanes, store.PrefixEnd(lanes), *next) {
		if r.Err != nil {
			return r.Err
		}
		*next = max(*next, r.Revision+1)
		written := slices.ContainsFunc(r.Events, func(e store.Event) bool { return !e.Deleted })
		f.note(false, written, false)
	}
	return nil
}

// note notes a look at the lanes: whether it is the first one, whether a lane
// has changed since the one before, and whether there are no lanes yet.
func (f *follower) note(first, changed, none bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first {
		if !f.begun {
			f.fresh, f.begun = none, true
		}
		return
	}
	if !changed {
		return
	}
	f.moved = f.clk.Now()
	if f.took.IsZero() {
		f.took = f.moved
		close(f.opened)
	}
}

// took and moved as seen by this process; false if it did not see the job from
// its first take on.
func (f *follower) seconds() (float64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.took.IsZero() {
		return 0, false
	}
	return f.moved.Sub(f.took).Seconds(), f.fresh
}

// Opened is closed at the first take that the follower sees.
func (f *follower) Opened() <-chan struct{} { return f.opened }

// Open tells whether chunks are left to be trained: it is asked around each
// kill, and reads the records themselves.
func (f *follower) Open(ctx context.Context) bool {
	state, err := f.queue.State(ctx)
	if err != nil || state.Phase != etcdqueue.PhaseTraining {
		return false
	}
	if state.Pass+1 < f.spec.Train.Passes {
		return true
	}
	for _, pass := range state.Takeable() {
		lanes, _, _, err := f.queue.Lanes(ctx, pass)
		if err != nil {
			return false
		}
		for _, l := range lanes {
			if !l.Finished() {
				return true
			}
		}
	}
	return false
}

// errJobGone: the job that the follower follows is not there any more.
var errJobGone = errors.New("it was deleted from etcd while it ran, or another job was submitted under its name")

// look sees about how far the job is, at a cost that does not grow with its
// passes.
func (f *follower) look(ctx context.Context) (sight, etcdqueue.State, error) {
	s := sight{passes: f.spec.Train.Passes, loss: math.NaN()}
	r, err := store.Read(ctx, f.st, store.Get(job.KeySpec), prefixRange(membership.PServers), prefixRange(membership.Trainers))
	if err != nil {
		return s, etcdqueue.State{}, err
	}
	if f.gone(r.First(0)) {
		return s, etcdqueue.State{}, errJobGone
	}
	s.pservers, s.trainers = len(r.KVs[1]), len(r.KVs[2])
	totals, state, err := f.queue.Progress(ctx)
	if err != nil {
		return s, state, err
	}
	s.phase, s.pass = string(state.Phase), state.Pass
	s.complete, s.records = totals.Complete+totals.Failed, totals.Records
	if m, err := f.queue.Manifest(ctx, state.Pass); err == nil {
		s.chunks = m.Chunks
	}
	return s, state, nil
}

const stateKey = "state" // of the queue

// state reads `state`; errJobGone if it is not that of the job which is followed.
func (f *follower) state(ctx context.Context) (etcdqueue.State, error) {
	r, err := store.Read(ctx, f.st, store.Get(job.KeySpec), store.Get(stateKey))
	if err != nil {
		return etcdqueue.State{}, err
	}
	if f.gone(r.First(0)) {
		return etcdqueue.State{}, errJobGone
	}
	return etcdqueue.DecodeState(r.First(1))
}

// gone tells whether the job that was there is there no more. A job's identity
// is the create revision of its spec.
func (f *follower) gone(spec store.KV) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.created == 0 {
		f.created = spec.CreateRev // 0: a trainer has yet to make the job
	}
	return spec.CreateRev != f.created
}

func prefixRange(role string) store.Op {
	prefix := strings.TrimSuffix(role, "/") + "/"
	return store.Range(prefix, store.PrefixEnd(prefix), 0)
}

// heard is what the owners of a job's shards say.
type heard struct {
	loss  float64 // mean of a pass so far; NaN if nobody tells
	saves saves
}

// hear asks every pserver.
func (f *follower) hear(ctx context.Context, pass int) heard {
	h := heard{loss: math.NaN()}
	view, err := membership.ReadView(ctx, f.st)
	if err != nil {
		return h
	}
	var addresses []string
	for _, o := range view.Shards {
		if o.Owned() {
			addresses = append(addresses, o.Address)
		}
	}
	stats, _ := statsOf(ctx, transport.TCP, addresses)
	for i, o := range view.Shards {
		st := stats[i]
		if st == nil || st.Generation != o.Generation {
			continue
		}
		h.saves.note(i, o.Name, st)
		for _, p := range st.Passes {
			if math.IsNaN(h.loss) && int(p.Pass) == pass && p.Weight > 0 {
				h.loss = p.Loss / p.Weight
			}
		}
	}
	return h
}

// statsOf asks the pservers at addresses for the sums of their shards, each
// once: by shard, and of two that claim a shard the later one. answered tells
// which addresses have answered.
func statsOf(ctx context.Context, n transport.Network, addresses []string) (stats map[int]*pb.ShardStats, answered map[string]bool) {
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	var mu sync.Mutex
	stats, answered = make(map[int]*pb.ShardStats), make(map[string]bool)
	addresses = slices.Clone(addresses)
	slices.Sort(addresses)
	for _, address := range slices.Compact(addresses) {
		g.Go(func() error {
			shards, err := shardStats(ctx, n, address)
			mu.Lock()
			defer mu.Unlock()
			answered[address] = err == nil
			for _, st := range shards {
				if other := stats[int(st.Shard)]; other == nil || other.Generation < st.Generation {
					stats[int(st.Shard)] = st
				}
			}
			return nil
		})
	}
	_ = g.Wait() // what did not answer is noted
	return stats, answered
}

// shardStats asks a pserver for the sums of its shards.
func shardStats(ctx context.Context, n transport.Network, address string) ([]*pb.ShardStats, error) {
	cc, err := transport.NewClient(n, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	r, err := pb.NewPServerClient(cc).Stats(ctx, &pb.StatsRequest{})
	if err != nil {
		return nil, err
	}
	return r.Shards, nil
}

// statsTimeout bounds a question that only a display depends on.
const statsTimeout = time.Second
