package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"starfish/internal/clock"
)

const (
	// reconcileInterval bounds how long a follower may miss a change because a
	// watch went silent.
	reconcileInterval = time.Minute
	minFollowPause    = 100 * time.Millisecond
	maxFollowPause    = 2 * time.Second
)

// Snapshot is the keys of a range at one revision.
type Snapshot struct {
	Revision int64
	KVs      map[string]KV
}

// Follow keeps a snapshot of the range [start, end) (end empty: one key) and
// calls changed with it, first with the range as it is and then after each
// change, one call after the other. The snapshot is valid during the call.
//
// It lists again after any break of its watch, and once a minute; so changed
// may be called without a change, and several changes may come in one call.
// It returns only when ctx ends, with its cause, or with ErrHistory.
func Follow(ctx context.Context, s Store, c clock.Clock, start, end string, changed func(Snapshot)) error {
	pause := minFollowPause
	for {
		err := follow(ctx, s, start, end, func(snapshot Snapshot) {
			pause = minFollowPause
			changed(snapshot)
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrHistory):
			return err
		case err == nil || errors.Is(err, ErrCompacted):
			continue // there is something to list
		}
		if err := clock.Sleep(ctx, c, pause); err != nil {
			return err
		}
		pause = min(2*pause, maxFollowPause)
	}
}

// follow lists once and then watches; nil when it is time to list again.
func follow(ctx context.Context, s Store, start, end string, changed func(Snapshot)) error {
	ctx, cancel := context.WithTimeout(ctx, reconcileInterval)
	defer cancel()
	kvs, rev, err := List(ctx, s, start, end)
	if err != nil {
		return fmt.Errorf("follow %s: %w", start, err)
	}
	snapshot := Snapshot{Revision: rev, KVs: make(map[string]KV, len(kvs))}
	for _, kv := range kvs {
		snapshot.KVs[kv.Key] = kv
	}
	changed(snapshot)
	for r := range s.Watch(ctx, start, end, rev+1) {
		if r.Err != nil {
			return fmt.Errorf("follow %s: %w", start, r.Err)
		}
		snapshot.apply(r)
		changed(snapshot)
	}
	return nil // the channel is closed without an error when ctx ends
}

func (s *Snapshot) apply(r WatchResponse) {
	s.Revision = max(s.Revision, r.Revision)
	for _, e := range r.Events {
		if e.Deleted {
			delete(s.KVs, e.KV.Key)
		} else {
			s.KVs[e.KV.Key] = e.KV
		}
	}
}
