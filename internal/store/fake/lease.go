package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"starfish/internal/store"
)

// lease is one lease with the keys that end with it.
type lease struct {
	id   store.LeaseID
	ttl  time.Duration
	ends time.Time
	keys map[string]bool
}

// Grant implements store.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, 0, err
	}
	s.lock()
	defer s.mu.Unlock()
	s.granted++
	l := &lease{id: s.granted, ttl: seconds(ttl), keys: map[string]bool{}}
	l.ends = s.clock.Now().Add(l.ttl)
	s.leases[l.id] = l
	s.wake() // it may run out before the one that watchers wait for
	return l.id, l.ttl, nil
}

// KeepAlive implements store.Store.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	s.lock()
	defer s.mu.Unlock()
	l := s.leases[id]
	if l == nil {
		return 0, store.ErrLeaseNotFound
	}
	l.ends = s.clock.Now().Add(l.ttl)
	return l.ttl, nil
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.ExpireLease(id)
	return nil
}

// ExpireLease ends a lease now, as if its time had run out.
func (s *Store) ExpireLease(id store.LeaseID) {
	s.lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil {
		s.end(l)
	}
}

// ExpireAll ends all leases now.
func (s *Store) ExpireAll() {
	s.lock()
	defer s.mu.Unlock()
	for _, l := range s.byEnd() {
		s.end(l)
	}
}

// expire ends the leases that have run out, the earliest first.
func (s *Store) expire(now time.Time) {
	for _, l := range s.byEnd() {
		if l.ends.After(now) {
			return
		}
		s.end(l)
	}
}

func (s *Store) byEnd() []*lease {
	return slices.SortedFunc(maps.Values(s.leases), func(a, b *lease) int {
		return cmp.Or(a.ends.Compare(b.ends), cmp.Compare(a.id, b.id))
	})
}

// end deletes a lease and its keys, in one revision.
func (s *Store) end(l *lease) {
	delete(s.leases, l.id)
	keys := slices.Sorted(maps.Keys(l.keys))
	ops := make([]store.Op, len(keys))
	for i, key := range keys {
		ops[i] = store.Delete(key)
	}
	s.apply(ops)
}

// untilExpiry is the time to the next expiry; false if there is no lease.
func (s *Store) untilExpiry() (time.Duration, bool) {
	if len(s.leases) == 0 {
		return 0, false
	}
	return s.byEnd()[0].ends.Sub(s.clock.Now()), true
}

func (s *Store) attach(kv store.KV) {
	if l := s.leases[kv.Lease]; l != nil {
		l.keys[kv.Key] = true
	}
}

func (s *Store) detach(kv store.KV) {
	if l := s.leases[kv.Lease]; l != nil {
		delete(l.keys, kv.Key)
	}
}
