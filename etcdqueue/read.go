package etcdqueue

import (
	"context"
	"fmt"
	"time"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// State reads `state`.
func (q *Queue) State(ctx context.Context) (State, error) {
	kv, err := store.Lookup(ctx, q.c.Store, stateKey)
	if err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	return q.decodeState(kv)
}

// Lanes reads all lanes of a pass, and `state`, at one revision, which it
// returns. The read is linearizable: everything that was written before the
// call is in it. A lane of which nothing was taken is all Todo. ErrNoPass below
// the floor and beyond the current pass.
func (q *Queue) Lanes(ctx context.Context, pass int) ([]Lane, State, int64, error) {
	s, p, rev, err := q.readPass(ctx, pass, nil)
	if err != nil {
		return nil, s, rev, fmt.Errorf("read lanes: %w", err)
	}
	return p.all(), s, rev, nil
}

func (p *passView) all() []Lane {
	lanes := make([]Lane, len(p.lanes))
	for i, s := range p.lanes {
		lanes[i] = s.lane
	}
	return lanes
}

// Manifest reads a pass's manifest; ErrNoPass if there is none (any more).
func (q *Queue) Manifest(ctx context.Context, pass int) (Manifest, error) {
	kv, err := store.Lookup(ctx, q.c.Store, passKey(pass))
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifest: %w", err)
	}
	if !kv.Exists() {
		return Manifest{}, fmt.Errorf("%w: no manifest of pass %d", ErrNoPass, pass)
	}
	return decodeManifest(kv)
}

// FailedChunks lists the quarantined chunks.
func (q *Queue) FailedChunks(ctx context.Context) ([]FailedChunk, error) {
	kvs, _, err := store.List(ctx, q.c.Store, failedPrefix, store.PrefixEnd(failedPrefix))
	if err != nil {
		return nil, fmt.Errorf("read quarantined chunks: %w", err)
	}
	chunks := make([]FailedChunk, len(kvs))
	for i, kv := range kvs {
		if err := decode(kv, failedVersion, &chunks[i], &chunks[i].V); err != nil {
			return nil, err
		}
	}
	return chunks, nil
}

// WatchState delivers `state` now and after each change until ctx ends; a slow
// receiver gets the latest only. A State without phase means that there is no
// queue, or no more. The channel is closed when ctx ends, and when the record
// can never be read any more, which is logged.
func (q *Queue) WatchState(ctx context.Context) <-chan State {
	out := make(chan State, 1)
	go func() {
		defer close(out)
		last := State{Revision: -1}
		for attempt := 0; ctx.Err() == nil; attempt++ {
			err := q.watchState(ctx, func(s State) {
				if s.Revision > last.Revision {
					last, attempt = s, 0
					deliver(out, s)
				}
			})
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				attempt = 0
				continue
			}
			if fatal(err) {
				q.c.Log.WithError(err).Error("the job's state cannot be followed any more")
				return
			}
			q.c.Log.WithError(err).Warn("the job's state is read again")
			if clock.Sleep(ctx, q.c.Clock, min(10*time.Millisecond<<min(attempt, 10), time.Second)) != nil {
				return
			}
		}
	}()
	return out
}

// stateSilence is how long a watch of `state` is trusted that says nothing.
const stateSilence = time.Minute

// deliver replaces what the receiver has not taken yet.
func deliver(out chan State, s State) {
	select {
	case <-out:
	default:
	}
	out <- s // has room: this is the only sender
}

// watchState reads and watches; nil when it is time to read again, since a watch
// may fall silent.
func (q *Queue) watchState(ctx context.Context, found func(State)) error {
	ctx, stop := context.WithTimeout(ctx, stateSilence)
	defer stop()
	r, err := store.Read(ctx, q.c.Store, store.Get(stateKey))
	if err != nil {
		return err
	}
	s, err := q.stateFrom(r.First(0), r.Revision)
	if err != nil {
		return err
	}
	found(s)
	for w := range q.c.Store.Watch(ctx, stateKey, "", r.Revision+1) {
		if w.Err != nil {
			return w.Err
		}
		for _, e := range w.Events {
			if s, err = q.stateFrom(live(e), e.KV.ModRev); err != nil {
				return err
			}
			found(s)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return errWatchEnded
}
