package fake_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// A frozen client begins nothing and hears nothing, whatever its contexts say.
func TestFreeze(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		c := s.Client("a")
		began := time.Now()
		watch := c.Watch(t.Context(), "k", "", 1)
		c.Freeze(true)
		put(t, s, "k", 0)
		time.AfterFunc(time.Minute, func() { c.Freeze(false) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := store.Lookup(ctx, c, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
		require.Len(t, (<-watch).Events, 1)
		require.Equal(t, time.Minute, time.Since(began))

		c.Fail(func(string, string) error { // the process stops while its request is under way
			c.Fail(nil)
			c.Freeze(true)
			time.AfterFunc(time.Minute, func() { c.Freeze(false) })
			return nil
		})
		put(t, c, "j", 0)
		require.Equal(t, 2*time.Minute, time.Since(began), "the answer is not seen before")
	})
}

// A transaction arrives twice, or late; reads never do.
func TestStray(t *testing.T) {
	t.Parallel()
	s := fake.New(fake.Options{})
	c := s.Client("a")
	var copies []func()
	var told error
	c.Stray(func(arrive func()) error {
		copies = append(copies, arrive)
		return told
	})
	rev := put(t, c, "k", 0)
	require.False(t, exists(t, c, "j"))
	require.Len(t, copies, 1)
	copies[0]()
	require.Equal(t, rev+1, s.Revision())

	told = errors.New("late")
	_, err := c.Txn(t.Context(), store.Txn{If: []store.Cmp{store.Absent("k")}, Else: []store.Op{store.Put("j", nil, 0)}})
	require.ErrorIs(t, err, told)
	require.False(t, exists(t, s, "j"))
	copies[1]()
	require.True(t, exists(t, s, "j"))
}

// Watches break with an error, or fall silent for good; new ones are well.
func TestWatchesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		c, other := s.Client("a"), s.Client("b")
		ctx, cancel := context.WithCancel(t.Context())
		healthy := other.Watch(ctx, "k", "", 0)
		broken := c.Watch(ctx, "k", "", 0)
		synctest.Wait()
		c.BreakWatches()
		r := <-broken
		require.Error(t, r.Err)
		_, open := <-broken
		require.False(t, open)
		lost := c.Watch(ctx, "k", "", 0)
		synctest.Wait()
		c.LoseWatches()
		anew := c.Watch(ctx, "k", "", 0)
		put(t, s, "k", 0)
		require.Len(t, (<-healthy).Events, 1)
		require.Len(t, (<-anew).Events, 1)
		synctest.Wait()
		select {
		case <-lost:
			t.Fatal("it says something")
		default:
		}
		cancel()
		_, open = <-lost
		require.False(t, open)
	})
}

// An observer is told of every revision by itself, also of those of leases.
func TestObserve(t *testing.T) {
	t.Parallel()
	s := fake.New(fake.Options{})
	var seen []store.Event
	revisions := 0
	s.Observe(func(events []store.Event) {
		revisions++
		seen = append(seen, events...)
	})
	lease := grant(t, s, time.Minute)
	put(t, s, "a", lease)
	put(t, s, "b", lease)
	s.ExpireAll()
	require.Equal(t, 3, revisions)
	require.Len(t, seen, 4)
	require.True(t, seen[3].Deleted)
	s.Observe(nil)
	put(t, s, "a", 0)
	require.Equal(t, 3, revisions)
}
