// Package fake is an in-memory store that behaves like etcd, for tests.
//
// It has etcd's semantics as far as starfish can see them: one revision for
// each transaction that changes something, create and mod revisions and
// versions, leases in whole seconds that delete their keys when they expire,
// watches from any revision that is not compacted, and the same refusals.
// store/storetest holds it to that, side by side with a real etcd.
//
// Time is the Clock's only. The store has no goroutine of its own: every
// request and every watch first ends the leases that have run out, so it works
// in a testing/synctest bubble and needs no Close. A watch lives until its
// context ends.
//
// A *Store never fails. Faults belong to a Client, the handle that one
// simulated process holds: requests that fail before or after they have had
// their effect, and partitions.
//
// Lock order: Store.mu is held for one request; Client.mu is never held
// together with it.
package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// maxRequest is etcd's default limit of a request's size in bytes.
const maxRequest = 1536 << 10

// Options of a fake store.
type Options struct {
	// Clock by which leases run out; default clock.System.
	Clock clock.Clock
}

// Store is an in-memory store. It implements store.Store without any fault.
type Store struct {
	clock clock.Clock

	mu        sync.Mutex
	rev       int64
	compacted int64               // history before this revision is gone
	kvs       map[string]store.KV // live keys
	keys      []string            // of kvs, sorted
	history   []store.Event       // in revision order
	leases    map[store.LeaseID]*lease
	granted   store.LeaseID // the last one given
	changed   chan struct{} // closed and replaced when watchers must look again
	observer  func([]store.Event)
}

// New makes an empty store.
func New(o Options) *Store {
	if o.Clock == nil {
		o.Clock = clock.System
	}
	return &Store{
		clock:   o.Clock,
		rev:     1,
		kvs:     map[string]store.KV{},
		leases:  map[store.LeaseID]*lease{},
		granted: 1000,
		changed: make(chan struct{}),
	}
}

// Revision is the store's revision.
func (s *Store) Revision() int64 {
	s.lock()
	defer s.mu.Unlock()
	return s.rev
}

// Observe sets what is told of each revision, in their order, as it comes to be:
// under the lock, so it must not ask the store.
func (s *Store) Observe(f func([]store.Event)) {
	s.lock()
	defer s.mu.Unlock()
	s.observer = f
}

// Compact forgets the history before rev: a watch that still needs it ends
// with store.ErrCompacted.
func (s *Store) Compact(rev int64) {
	s.lock()
	defer s.mu.Unlock()
	rev = min(rev, s.rev)
	if rev <= s.compacted {
		return
	}
	s.compacted = rev
	i, _ := slices.BinarySearchFunc(s.history, rev, compareRevision)
	s.history = slices.Clone(s.history[i:])
	s.wake()
}

func compareRevision(e store.Event, rev int64) int { return int(e.KV.ModRev - rev) }

// lock takes the lock and ends the leases that have run out, so that whatever
// comes next sees the store as it is at this moment.
func (s *Store) lock() {
	s.mu.Lock()
	s.expire(s.clock.Now())
}

// wake makes every watcher look again.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Txn implements store.Store.
func (s *Store) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	if err := context.Cause(ctx); err != nil {
		return store.Result{}, err
	}
	if err := check(t); err != nil {
		return store.Result{}, err
	}
	s.lock()
	defer s.mu.Unlock()
	holds := s.holds(t.If)
	ops := t.Then
	if !holds {
		ops = t.Else
	}
	if err := s.checkLeases(ops); err != nil {
		return store.Result{}, err
	}
	return store.Result{Succeeded: holds, KVs: s.apply(ops), Revision: s.rev}, nil
}

func (s *Store) holds(conditions []store.Cmp) bool {
	for _, c := range conditions {
		rev := s.kvs[c.Key].ModRev
		if c.Target == store.CreateRevision {
			rev = s.kvs[c.Key].CreateRev
		}
		if rev != c.Rev {
			return false
		}
	}
	return true
}

func (s *Store) checkLeases(ops []store.Op) error {
	for _, o := range ops {
		if o.Kind != store.KindPut || o.Lease == 0 {
			continue
		}
		if s.leases[o.Lease] == nil {
			return fmt.Errorf("put %s: %w", o.Key, store.ErrLeaseNotFound)
		}
	}
	return nil
}

// apply runs the operations as one revision; the revision moves only if
// something changed.
func (s *Store) apply(ops []store.Op) [][]store.KV {
	next := s.rev + 1
	before := len(s.history)
	read := make([][]store.KV, len(ops))
	for i, o := range ops {
		switch o.Kind {
		case store.KindPut:
			s.put(o, next)
		case store.KindDelete:
			for _, key := range slices.Clone(s.span(o.Key, o.End)) {
				s.remove(key, next)
			}
		case store.KindRange:
			read[i] = s.read(o)
		}
	}
	if len(s.history) > before {
		s.rev = next
		if s.observer != nil {
			s.observer(s.history[before:len(s.history):len(s.history)])
		}
		s.wake()
	}
	return read
}

func (s *Store) put(o store.Op, rev int64) {
	kv, exists := s.kvs[o.Key]
	if !exists {
		kv = store.KV{Key: o.Key, CreateRev: rev}
		i, _ := slices.BinarySearch(s.keys, o.Key)
		s.keys = slices.Insert(s.keys, i, o.Key)
	}
	s.detach(kv)
	kv.Value, kv.ModRev, kv.Lease = slices.Clone(o.Value), rev, o.Lease
	kv.Version++
	s.attach(kv)
	s.kvs[o.Key] = kv
	s.history = append(s.history, store.Event{KV: kv})
}

func (s *Store) remove(key string, rev int64) {
	s.detach(s.kvs[key])
	delete(s.kvs, key)
	i, _ := slices.BinarySearch(s.keys, key)
	s.keys = slices.Delete(s.keys, i, i+1)
	s.history = append(s.history, store.Event{Deleted: true, KV: store.KV{Key: key, ModRev: rev}})
}

func (s *Store) read(o store.Op) []store.KV {
	keys := s.span(o.Key, o.End)
	if o.Limit > 0 && int64(len(keys)) > o.Limit {
		keys = keys[:o.Limit]
	}
	kvs := make([]store.KV, len(keys))
	for i, key := range keys {
		kvs[i] = s.kvs[key]
		kvs[i].Value = slices.Clone(kvs[i].Value)
	}
	return kvs
}

// span is the live keys of [start, end), or start alone if end is empty. It
// aliases s.keys.
func (s *Store) span(start, end string) []string {
	from, found := slices.BinarySearch(s.keys, start)
	switch {
	case end == "" && found:
		return s.keys[from : from+1]
	case end == "":
		return nil
	case end == "\x00":
		return s.keys[from:]
	}
	to, _ := slices.BinarySearch(s.keys, end)
	return s.keys[from:max(from, to)]
}

// Dump is all live keys with their values, for the messages of failed tests.
func (s *Store) Dump() map[string]string {
	s.lock()
	defer s.mu.Unlock()
	d := make(map[string]string, len(s.kvs))
	for key, kv := range maps.All(s.kvs) {
		d[key] = string(kv.Value)
	}
	return d
}

// Leases is the number of leases that have not ended.
func (s *Store) Leases() int {
	s.lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// within tells whether key lies in [start, end), by the rules of span.
func within(key, start, end string) bool {
	switch end {
	case "":
		return key == start
	case "\x00":
		return key >= start
	}
	return key >= start && key < end
}

// seconds is a time to live as etcd keeps it: whole seconds, at least one.
func seconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}
