package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"starfish/internal/store"
)

// errEnded: the client closed a watch without saying why.
var errEnded = errors.New("etcd: watch ended")

// Watch implements store.Store. It needs a member with a leader: one that is
// cut off from the others ends the watch with an error.
func (s *Store) Watch(ctx context.Context, start, end string, rev int64) <-chan store.WatchResponse {
	out := make(chan store.WatchResponse)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go func() {
			defer close(out)
			select {
			case out <- store.WatchResponse{Err: ErrClosed}:
			case <-ctx.Done():
			}
		}()
		return out
	}
	s.watches.Go(func() {
		defer close(out)
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		defer cancel()
		s.watch(ctx, s.client.Watch(ctx, start, watchOptions(end, rev)...), out)
	})
	return out
}

func watchOptions(end string, rev int64) []clientv3.OpOption {
	var options []clientv3.OpOption
	if end != "" {
		options = append(options, clientv3.WithRange(end))
	}
	if rev != 0 {
		options = append(options, clientv3.WithRev(rev))
	}
	return options
}

func (s *Store) watch(ctx context.Context, in clientv3.WatchChan, out chan<- store.WatchResponse) {
	for {
		r := s.receive(ctx, in)
		if ctx.Err() != nil {
			return
		}
		if len(r.Events) > 0 || r.Err != nil {
			select {
			case out <- r:
			case <-ctx.Done():
				return
			case <-s.stop:
				return
			}
		}
		if r.Err != nil {
			return
		}
	}
}

func (s *Store) receive(ctx context.Context, in clientv3.WatchChan) store.WatchResponse {
	r, ok := <-in // closed by the client when ctx ends
	if !ok {
		return store.WatchResponse{Err: errEnded}
	}
	if err := r.Err(); err != nil {
		return store.WatchResponse{Revision: r.Header.GetRevision(), Err: translate(ctx, err)}
	}
	if err := s.history.identified(r.Header); err != nil {
		return store.WatchResponse{Revision: r.Header.GetRevision(), Err: err}
	}
	out := store.WatchResponse{Revision: r.Header.GetRevision(), Events: make([]store.Event, len(r.Events))}
	for i, e := range r.Events {
		out.Events[i] = store.Event{Deleted: e.Type == mvccpb.Event_DELETE, KV: keyValue(e.Kv)}
	}
	return out
}
