package store_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(t *testing.T, s store.Store, key, value string) {
	t.Helper()
	_, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(key, []byte(value), 0)}})
	require.NoError(t, err)
}

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for prefix, end := range map[string]string{
		"a": "b", "a/": "a0", "a\xff": "b", "\xff\xff": "\x00", "": "\x00",
	} {
		require.Equal(t, end, store.PrefixEnd(prefix), "%q", prefix)
	}
	rapid.Check(t, func(t *rapid.T) {
		prefix := string(rapid.SliceOfN(rapid.ByteRange(0xfd, 0xff), 1, 3).Draw(t, "prefix"))
		key := string(rapid.SliceOfN(rapid.ByteRange(0xfd, 0xff), 1, 5).Draw(t, "key"))
		end := store.PrefixEnd(prefix)
		inside := key >= prefix && (key < end || end == "\x00")
		require.Equal(t, len(key) >= len(prefix) && key[:len(prefix)] == prefix, inside)
	})
}

func TestTheFirstOfAResult(t *testing.T) {
	t.Parallel()
	r := store.Result{KVs: [][]store.KV{nil, {{Key: "a", ModRev: 3}, {Key: "b"}}}}
	require.False(t, r.First(0).Exists())
	require.Equal(t, "a", r.First(1).Key)
	require.True(t, r.First(1).Exists())
	require.Equal(t, store.KV{}, r.First(2))
}

func TestAPrefixedWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		s := store.Prefixed(f, "/a/")
		ctx, cancel := context.WithCancel(t.Context())
		in := s.Watch(ctx, "k", "", 0)
		put(t, s, "k", "1")
		synctest.Wait() // the response is on its way and nobody takes it
		put(t, s, "k", "2")
		cancel()
		synctest.Wait()
		_, ok := <-in
		require.False(t, ok)
	})
}

// follow follows a range; the returned function is what the follower knows.
func follow(ctx context.Context, s store.Store) (known func() string, done <-chan error) {
	state := ""
	end := make(chan error, 1)
	go func() {
		end <- store.Follow(ctx, s, clock.System, "k", "l", func(snapshot store.Snapshot) {
			state = ""
			for _, key := range slices.Sorted(maps.Keys(snapshot.KVs)) {
				state += fmt.Sprintf("%s=%s ", key, snapshot.KVs[key].Value)
			}
			state += fmt.Sprint("@", snapshot.Revision)
		})
	}()
	return func() string { synctest.Wait(); return state }, end
}

func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		c := f.Client("a")
		put(t, f, "k1", "1")
		ctx, cancel := context.WithCancelCause(t.Context())
		known, done := follow(ctx, c)
		require.Equal(t, "k1=1 @2", known())
		put(t, f, "k2", "2")
		put(t, f, "other", "2")
		put(t, f, "k1", "3")
		require.Equal(t, "k1=3 k2=2 @5", known())
		_, err := f.Txn(t.Context(), store.Txn{Then: []store.Op{store.Delete("k1")}})
		require.NoError(t, err)
		require.Equal(t, "k2=2 @6", known())

		c.Partition(true)
		put(t, f, "k2", "4")
		put(t, f, "k3", "4")
		f.Compact(f.Revision())
		require.Equal(t, "k2=2 @6", known())
		c.Partition(false)
		require.Equal(t, "k2=4 k3=4 @8", known(), "its watch was compacted away")

		reason := errors.New("enough")
		cancel(reason)
		require.ErrorIs(t, <-done, reason)
	})
}

// Nothing falls between the list and the watch.
func TestFollowSeesWhatHappensWhileItStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		c := f.Client("a")
		c.Fail(func(op, _ string) error {
			if op == "watch" {
				put(t, f, "k", "1")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		known, _ := follow(ctx, c)
		require.Equal(t, "k=1 @2", known())
	})
}

func TestFollowTriesAgainUntilTheStoreAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		c := f.Client("a")
		tries := 0
		c.Fail(func(string, string) error { tries++; return errors.New("down") })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		known, done := follow(ctx, c)
		time.Sleep(time.Hour)
		require.Empty(t, known())
		require.InDelta(t, 1800, tries, 10, "every two seconds, in the long run")
		put(t, f, "k", "1")
		c.Fail(nil)
		time.Sleep(2 * time.Second)
		require.Equal(t, "k=1 @2", known())

		c.Fail(func(string, string) error { return store.ErrHistory })
		put(t, f, "k", "2")
		require.Equal(t, "k=2 @3", known(), "its watch goes on")
		time.Sleep(time.Minute)
		require.ErrorIs(t, <-done, store.ErrHistory, "nothing heals that")
	})
}
