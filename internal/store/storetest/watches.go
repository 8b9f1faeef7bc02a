package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

// watch watches a range and returns a function that waits for the next n
// events, as "key=value" and "key gone".
func watch(t *testing.T, s store.Store, start, end string, rev int64) func(n int) []string {
	t.Helper()
	in := s.Watch(t.Context(), start, end, rev)
	var got []string
	return func(n int) []string {
		t.Helper()
		for len(got) < n {
			r := next(t, in)
			require.NoError(t, r.Err)
			for _, e := range r.Events {
				got = append(got, describe(e))
			}
		}
		events := got
		got = nil
		return events
	}
}

// next is the next response of a watch.
func next(t testing.TB, in <-chan store.WatchResponse) store.WatchResponse {
	t.Helper()
	select {
	case r, ok := <-in:
		require.True(t, ok, "the watch has ended")
		return r
	case <-time.After(patience): //nolint:forbidigo // a test of real time
		require.Fail(t, "nothing comes from the watch")
	}
	return store.WatchResponse{}
}

func describe(e store.Event) string {
	if e.Deleted {
		return e.KV.Key + " gone"
	}
	return fmt.Sprintf("%s=%s", e.KV.Key, e.KV.Value)
}

func watchPast(t *testing.T, s Subject) {
	put(t, s, "k", "0")
	from := put(t, s, "k", "1")
	put(t, s, "other", "1")
	put(t, s, "k", "2")
	commit(t, s, store.Delete("k"))
	put(t, s, "k", "3")
	events := watch(t, s, "k", "l", from)
	require.Equal(t, []string{"k=1", "k=2", "k gone", "k=3"}, events(4))
	put(t, s, "k", "4")
	require.Equal(t, []string{"k=4"}, events(1), "and it goes on")
}

func watchFuture(t *testing.T, s Subject) {
	rev := put(t, s, "k", "1")
	in := s.Watch(t.Context(), "k", "l", rev+1)
	created := put(t, s, "k2", "1")
	r := next(t, in)
	require.NoError(t, r.Err)
	require.Equal(t, []store.Event{{KV: store.KV{
		Key: "k2", Value: []byte("1"), CreateRev: created, ModRev: created, Version: 1,
	}}}, r.Events)
	require.GreaterOrEqual(t, r.Revision, created)

	deleted := commit(t, s, store.Delete("k2")).Revision
	r = next(t, in)
	require.Equal(t, []store.Event{{Deleted: true, KV: store.KV{Key: "k2", ModRev: deleted}}}, r.Events)

	far := s.Watch(t.Context(), "k", "", deleted+3)
	for i := range 4 {
		put(t, s, "k", fmt.Sprint(i))
	}
	r = next(t, far)
	require.Equal(t, deleted+3, r.Events[0].KV.ModRev, "a revision that does not exist yet is waited for")
}

func watchOne(t *testing.T, s Subject) {
	rev := put(t, s, "k", "1")
	events := watch(t, s, "k", "", rev)
	commit(t, s, store.Put("k/", nil, 0), store.Put("j", nil, 0))
	put(t, s, "k", "2")
	require.Equal(t, []string{"k=1", "k=2"}, events(2))
}

func watchWhole(t *testing.T, s Subject) {
	rev := put(t, s, "z", "1")
	in := s.Watch(t.Context(), "a", "\x00", rev+1)
	var ops []store.Op
	for i := range store.MaxOps {
		ops = append(ops, store.Put(fmt.Sprintf("k%03d", i), nil, 0))
	}
	commit(t, s, ops...)
	r := next(t, in)
	require.NoError(t, r.Err)
	require.Len(t, r.Events, store.MaxOps)
}

func watchEnds(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	idle := s.Watch(ctx, "k", "", 0)
	rev := put(t, s, "k", "1")
	unread := s.Watch(ctx, "k", "", rev) // has something to deliver that nobody takes
	cancel()
	for _, in := range []<-chan store.WatchResponse{idle, unread} {
		require.Eventually(t, func() bool {
			select {
			case _, ok := <-in:
				return !ok
			default:
				return false
			}
		}, patience, time.Millisecond)
	}
}

func watchCompacted(t *testing.T, s Subject) {
	first := put(t, s, "k", "1")
	open := watch(t, s, "k", "", first)
	require.Equal(t, []string{"k=1"}, open(1))
	put(t, s, "k", "2")
	require.Equal(t, []string{"k=2"}, open(1))
	last := put(t, s, "k", "3")
	require.Equal(t, []string{"k=3"}, open(1))
	s.Compact(last)

	in := s.Watch(t.Context(), "k", "", first)
	require.ErrorIs(t, next(t, in).Err, store.ErrCompacted)
	_, ok := <-in
	require.False(t, ok, "an error is the last response")

	require.Equal(t, []string{"k=3"}, watch(t, s, "k", "", last)(1), "what was compacted is before that revision")
	put(t, s, "k", "4")
	require.Equal(t, []string{"k=4"}, open(1), "a watch that is up to date goes on")
	require.Equal(t, "4", string(get(t, s, "k").Value))
}
