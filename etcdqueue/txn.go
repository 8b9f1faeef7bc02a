package etcdqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// outcome is what became of a transaction that was answered.
type outcome int

const (
	written outcome = iota
	conflict
	guarded
)

// answer is a transaction's outcome. After a conflict kvs has the present
// records of conds, in their order.
type answer struct {
	outcome  outcome
	revision int64
	kvs      []store.KV
}

// commit writes if all of conds, which belong to the queue, and guards, which
// belong to the caller, hold. One request, whatever comes of it: where it does
// not write, it reads what it collided with.
func (q *Queue) commit(ctx context.Context, conds, guards []store.Cmp, puts []store.Op) (answer, error) {
	t := store.Txn{Then: puts}
	for _, c := range conds {
		t.If = append(t.If, c)
		t.Else = append(t.Else, store.Get(c.Key))
	}
	for _, c := range guards {
		t.If = append(t.If, c)
		t.Else = append(t.Else, store.Get(c.Key))
	}
	r, err := q.c.Store.Txn(ctx, t)
	if err != nil {
		return answer{}, err
	}
	if r.Succeeded {
		return answer{outcome: written, revision: r.Revision}, nil
	}
	a := answer{outcome: conflict, revision: r.Revision}
	for i := range conds {
		a.kvs = append(a.kvs, r.First(i))
	}
	for i, c := range guards {
		if !holds(c, r.First(len(conds)+i)) {
			a.outcome = guarded
		}
	}
	return a, nil
}

// holds evaluates a condition on what was read.
func holds(c store.Cmp, kv store.KV) bool {
	if c.Target == store.CreateRevision {
		return kv.CreateRev == c.Rev
	}
	return kv.ModRev == c.Rev
}

// pause waits a little before another attempt after a conflict, longer each
// time and never the same for two takers. The first attempt is repeated at
// once: the conflict brought the present records with it.
func (q *Queue) pause(ctx context.Context, attempt int) error {
	if attempt < 2 {
		return context.Cause(ctx)
	}
	limit := min(time.Millisecond<<min(attempt, 6), 50*time.Millisecond)
	return clock.Sleep(ctx, q.c.Clock, rand.N(limit)+1)
}

// lock makes this handle's writers take turns, so that they do not collide
// with each other. It is taken before mu.
func (q *Queue) lock(ctx context.Context) error {
	select {
	case q.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (q *Queue) unlock() { <-q.turn }

// readPass reads `state`, and a pass's manifest and lanes, at one revision.
// lanes nil reads all of them.
func (q *Queue) readPass(ctx context.Context, pass int, lanes []int) (State, *passView, int64, error) {
	ops := []store.Op{store.Get(stateKey), store.Get(passKey(pass))}
	if lanes == nil {
		ops = append(ops, store.Range(lanesPrefix(pass), store.PrefixEnd(lanesPrefix(pass)), 0))
	}
	for _, l := range lanes {
		ops = append(ops, store.Get(laneKey(pass, l)))
	}
	r, err := store.Read(ctx, q.c.Store, ops...)
	if err != nil {
		return State{}, nil, 0, err
	}
	s, err := q.decodeState(r.First(0))
	if err != nil {
		return State{}, nil, 0, err
	}
	if pass < s.Floor || pass > s.Pass {
		return s, nil, r.Revision, fmt.Errorf("%w: pass %d is not in %d … %d", ErrNoPass, pass, s.Floor, s.Pass)
	}
	var kvs []store.KV
	for _, part := range r.KVs[2:] {
		kvs = append(kvs, part...)
	}
	p, err := q.decodePass(s, pass, r.First(1), kvs, r.Revision)
	return s, p, r.Revision, err
}

// decodeState also refuses a queue with another number of lanes.
func (q *Queue) decodeState(kv store.KV) (State, error) {
	s, err := decodeState(kv)
	if err != nil {
		return State{}, err
	}
	if q.c.Lanes != 0 && q.c.Lanes != s.Lanes {
		return State{}, fmt.Errorf("%w: it has %d lanes, not %d", ErrMismatch, s.Lanes, q.c.Lanes)
	}
	return s, nil
}

func (q *Queue) decodePass(s State, pass int, manifest store.KV, lanes []store.KV, at int64) (*passView, error) {
	if !manifest.Exists() {
		return nil, fmt.Errorf("%w: %s is absent", ErrFormat, passKey(pass))
	}
	m, err := decodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	p := newPassView(&q.c, pass, m, manifest.CreateRev, at, s.Lanes)
	for _, kv := range lanes {
		id, ok := parseLaneKey(kv.Key)
		if !ok || id.pass != pass || id.lane >= len(p.lanes) {
			return nil, fmt.Errorf("%w: unexpected key %s", ErrFormat, kv.Key)
		}
		next, err := p.decode(id.lane, kv, at)
		if err != nil {
			return nil, err
		}
		p.set(id.lane, next)
	}
	return p, nil
}
