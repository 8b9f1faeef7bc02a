package fake_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// The semantics of a store are tested in store/storetest, beside etcd; here
// are the faults and the time.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, s store.Store, key string, lease store.LeaseID) int64 {
	t.Helper()
	r, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(key, []byte("v"), lease)}})
	require.NoError(t, err)
	return r.Revision
}

func exists(t *testing.T, s store.Store, key string) bool {
	t.Helper()
	kv, err := store.Lookup(t.Context(), s, key)
	require.NoError(t, err)
	return kv.Exists()
}

func grant(t *testing.T, s store.Store, ttl time.Duration) store.LeaseID {
	t.Helper()
	id, _, err := s.Grant(t.Context(), ttl)
	require.NoError(t, err)
	return id
}

func TestLeasesRunOutToTheMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		short, long := grant(t, s, 1100*time.Millisecond), grant(t, s, 5*time.Second)
		put(t, s, "short", short)
		put(t, s, "long", long)
		start := time.Now()
		var gone []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in := s.Watch(ctx, "a", "z", s.Revision()+1)
		go func() {
			for range in {
				gone = append(gone, time.Since(start))
			}
		}()
		time.Sleep(4 * time.Second)
		require.False(t, exists(t, s, "short"))
		_, err := s.KeepAlive(t.Context(), long)
		require.NoError(t, err)
		time.Sleep(5*time.Second - time.Nanosecond)
		require.True(t, exists(t, s, "long"))
		time.Sleep(time.Nanosecond)
		require.False(t, exists(t, s, "long"))
		synctest.Wait()
		require.Equal(t, []time.Duration{2 * time.Second, 9 * time.Second}, gone)
		require.Zero(t, s.Leases())
	})
}

// leap is a clock that a test sets.
type leap struct {
	clock.Clock
	now time.Time
}

func (c *leap) Now() time.Time { return c.now }

func TestLeasesFollowTheClockOfTheStore(t *testing.T) {
	t.Parallel()
	c := &leap{Clock: clock.System}
	s := fake.New(fake.Options{Clock: c})
	put(t, s, "k", grant(t, s, time.Hour))
	c.now = c.now.Add(time.Hour - 1)
	require.True(t, exists(t, s, "k"))
	c.now = c.now.Add(1)
	require.False(t, exists(t, s, "k"))
}

func TestLeasesAreEndedByHand(t *testing.T) {
	t.Parallel()
	s := fake.New(fake.Options{})
	a, b := grant(t, s, time.Hour), grant(t, s, time.Hour)
	put(t, s, "a", a)
	rev := put(t, s, "b", b)
	s.ExpireLease(a)
	require.Equal(t, map[string]string{"b": "v"}, s.Dump())
	s.ExpireAll()
	require.Empty(t, s.Dump())
	require.Equal(t, rev+2, s.Revision())
	s.ExpireLease(a) // is no error
	require.Equal(t, rev+2, s.Revision())
}

func TestHooksFailRequests(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	requests := map[string]func(s store.Store) error{
		"put k": func(s store.Store) error {
			_, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Get("j"), store.Put("k", nil, 0)}})
			return err
		},
		"delete l": func(s store.Store) error {
			_, err := s.Txn(t.Context(), store.Txn{
				If: []store.Cmp{store.Created("k", 99)}, Else: []store.Op{store.Delete("l")},
			})
			return err
		},
		"range m": func(s store.Store) error { _, err := store.Lookup(t.Context(), s, "m"); return err },
		"grant ":  func(s store.Store) error { _, _, err := s.Grant(t.Context(), time.Hour); return err },
		"keepalive ": func(s store.Store) error {
			id, _, _ := s.Grant(t.Context(), time.Hour)
			_, err := s.KeepAlive(t.Context(), id)
			return err
		},
		"revoke ": func(s store.Store) error { return s.Revoke(t.Context(), 1) },
		"watch n": func(s store.Store) error {
			ctx, cancel := context.WithCancel(t.Context())
			context.AfterFunc(t.Context(), cancel)
			time.AfterFunc(time.Millisecond, cancel)
			return (<-s.Watch(ctx, "n", "", 0)).Err
		},
	}
	for name, request := range requests {
		s := fake.New(fake.Options{})
		c, other := s.Client("a"), s.Client("b")
		hook := func(op, key string) error {
			if op+" "+key == name {
				return fault
			}
			return nil
		}
		require.NoError(t, request(c), name)
		c.Fail(hook)
		before := s.Revision()
		require.ErrorIs(t, request(c), fault, name)
		require.Equal(t, before, s.Revision(), "%s: refused before it had an effect", name)
		require.NoError(t, request(other), "faults are a client's own")
		c.Fail(nil)
		if name == "watch n" {
			continue
		}
		c.FailAfter(hook)
		require.ErrorIs(t, request(c), fault, name)
		c.FailAfter(nil)
		require.NoError(t, request(c), name)
	}
}

func TestAHiddenSuccessHasItsEffect(t *testing.T) {
	t.Parallel()
	s := fake.New(fake.Options{})
	c := s.Client("a")
	c.FailAfter(func(string, string) error { return context.DeadlineExceeded })
	_, err := c.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", nil, 0)}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, exists(t, s, "k"))
}

// TestHeldWatches: watches fall silent and then go on from where they were, while
// requests are answered.
func TestHeldWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		c := s.Client("a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in := c.Watch(ctx, "k", "", 0)
		synctest.Wait()
		c.HoldWatches(true)
		c.HoldWatches(true) // is nothing else
		put(t, s, "k", 0)
		kv, err := store.Lookup(ctx, c, "k")
		require.NoError(t, err)
		require.True(t, kv.Exists())
		synctest.Wait()
		select {
		case <-in:
			require.Fail(t, "a watch was not held")
		default:
		}
		c.HoldWatches(false)
		require.Len(t, (<-in).Events, 1)
	})
}

func TestAPartitionHoldsUpRequestsAndWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		c := s.Client("a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in := c.Watch(ctx, "k", "", 0)
		synctest.Wait()
		c.Partition(true)
		c.Partition(true) // is no other partition

		start := time.Now()
		bounded, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		require.ErrorIs(t, c.Revoke(bounded, 1), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))

		put(t, s, "k", 0)
		put(t, s, "k", 0)
		done := make(chan error, 1)
		go func() {
			_, err := store.Lookup(ctx, c, "k")
			done <- err
		}()
		synctest.Wait()
		select {
		case <-done:
			require.Fail(t, "a request passed the partition")
		case <-in:
			require.Fail(t, "a watch passed the partition")
		default:
		}
		c.Partition(false)
		require.NoError(t, <-done)
		require.NotEmpty(t, (<-in).Events)

		// What it slept through may be compacted.
		synctest.Wait()
		c.Partition(true)
		put(t, s, "k", 0)
		s.Compact(put(t, s, "k", 0))
		c.Partition(false)
		for r := range in {
			if r.Err != nil {
				require.ErrorIs(t, r.Err, store.ErrCompacted)
			}
		}
	})
}
