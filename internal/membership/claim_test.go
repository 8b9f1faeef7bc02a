package membership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

func TestClaimTakesWhatIsFree(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a, b := w.pserver("a"), w.pserver("b")
		v := w.claim(a, 1, 3)
		require.Equal(t, w.view(), v)
		require.Equal(t, Owner{Name: "a", Incarnation: a.Incarnation(), Address: "a:1", Generation: 1}, v.Shards[3])
		require.Equal(t, []int{0, 2}, v.Free())
		require.Equal(t, int64(1), v.Generation(1, a.Incarnation()))
		require.Zero(t, v.Generation(1, b.Incarnation()))
		require.Zero(t, v.Generation(0, ""))
		require.Zero(t, v.Generation(9, a.Incarnation()))

		again := w.claim(a, 1, 3)
		require.Equal(t, v, again, "what is mine already is left alone")
		v = w.claim(b, 0, 1, 2, 3)
		require.Equal(t, []int{0, 2}, Mine(v, b.Incarnation()), "what others hold is left alone")
		require.Equal(t, []int{1, 3}, Mine(v, a.Incarnation()))
		require.Equal(t, v, w.claim(b))
	})
}

func TestClaimTakesFromTheDead(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a, b := w.pserver("a"), w.pserver("b")
		w.claim(a, 0, 1)
		listed := w.view()
		listed.Shards[0].Listed = true
		w.commit(listed.put())

		require.Empty(t, Mine(w.claim(b, 0, 1), b.Incarnation()), "it lives")
		require.NoError(t, a.Close(t.Context()))
		v := w.claim(b, 0)
		require.Equal(t, Owner{Name: "b", Incarnation: b.Incarnation(), Address: "b:1", Generation: 2, Listed: true}, v.Shards[0])
		require.Equal(t, int64(1), v.Generation(1, a.Incarnation()), "only what was asked for")

		again := w.pserver("a") // the same name is another process
		v = w.claim(b, 1)
		require.Equal(t, int64(2), v.Generation(1, b.Incarnation()))
		require.Empty(t, Mine(v, again.Incarnation()))
	})
}

func TestClaimWithoutARecord(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		w.commit(store.Delete(ownersKey))
		require.Equal(t, View{}, w.view())
		a := w.pserver("a")
		v := w.claim(a, 2)
		require.Equal(t, v, w.view())
		require.Equal(t, []int{0, 1}, v.Free())
	})
}

// owners may change, and its guards may fail, between a claim's read and its
// write: act runs there, once.
func interposed(t *testing.T, w *world, act func()) *Member {
	t.Helper()
	client := w.fake.Client("a")
	c := w.config("a")
	c.Store = client
	m := w.register(c)
	done := false
	client.Fail(func(op, key string) error {
		if op == "put" && key == ownersKey && !done {
			done = true
			act()
		}
		return nil
	})
	return m
}

func TestClaimIsGuarded(t *testing.T) {
	t.Run("against another claim", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			b := w.pserver("b")
			m := interposed(t, w, func() { w.claim(b, 1) })
			v, err := Claim(t.Context(), m.c.Store, m, w.spec, []int{0, 1})
			require.NoError(t, err)
			require.Equal(t, []int{0}, Mine(v, m.Incarnation()))
			require.Equal(t, []int{1}, Mine(v, b.Incarnation()))
		})
	})
	t.Run("against the return of the old owner", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			old := w.pserver("b")
			w.claim(old, 0)
			registration := old.Registered()
			kv, err := store.Lookup(t.Context(), w.st, registration.Key)
			require.NoError(t, err)
			require.NoError(t, old.Close(t.Context()))
			m := interposed(t, w, func() { w.commit(store.Put(kv.Key, kv.Value, 0)) })
			v, err := Claim(t.Context(), m.c.Store, m, w.spec, []int{0})
			require.NoError(t, err)
			require.Empty(t, Mine(v, m.Incarnation()))
			require.Equal(t, int64(1), v.Generation(0, old.Incarnation()))
		})
	})
	t.Run("against the loss of the own registration", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			m := interposed(t, w, w.fake.ExpireAll)
			_, err := Claim(t.Context(), m.c.Store, m, w.spec, []int{0})
			require.ErrorIs(t, err, ErrLost)
			require.Len(t, w.view().Free(), 4)
		})
	})
	t.Run("against a successor", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			m := interposed(t, w, func() { w.pserver("a") })
			_, err := Claim(t.Context(), m.c.Store, m, w.spec, []int{0})
			var superseded *SupersededError
			require.ErrorAs(t, err, &superseded)
			require.Len(t, w.view().Free(), 4)
		})
	})
	t.Run("against another job", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			m := interposed(t, w, w.resubmit)
			_, err := Claim(t.Context(), m.c.Store, m, w.spec, []int{0})
			require.ErrorIs(t, err, ErrJobChanged)
			require.Len(t, w.view().Free(), 4)
		})
	})
}

func TestAClaimWhoseAnswerWasLostIsRepeated(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		m := w.pserver("a")
		client := w.fake.Client("a")
		client.FailAfter(func(op, _ string) error {
			if op == "put" {
				return errors.New("no answer")
			}
			return nil
		})
		_, err := Claim(t.Context(), client, m, w.spec, []int{0})
		require.ErrorContains(t, err, "no answer")
		v, err := Claim(t.Context(), client, m, w.spec, []int{0})
		require.NoError(t, err)
		require.Equal(t, int64(1), v.Generation(0, m.Incarnation()), "claimed once")
		_, err = HandOver(t.Context(), client, m, moves("", 0))
		require.ErrorContains(t, err, "no answer")
		v, err = HandOver(t.Context(), client, m, moves("", 0))
		require.NoError(t, err)
		require.Equal(t, w.view(), v)
		client.Fail(func(string, string) error { return errRefused })
		_, err = Claim(t.Context(), client, m, w.spec, []int{0})
		require.ErrorIs(t, err, errRefused)
		_, err = HandOver(t.Context(), client, m, moves("", 0))
		require.ErrorIs(t, err, errRefused)
	})
}

func TestGivingUpKeepsTheGeneration(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		b := w.pserver("b")
		m := interposed(t, w, func() {})
		w.claim(m, 0, 1)
		w.claim(b, 2)
		v := w.view()
		v.Shards[0].Listed = true
		w.commit(v.put())

		var err error
		m = interposed(t, w, func() { w.claim(b, 3) })
		w.claim(m, 0, 1)
		v, err = HandOver(t.Context(), m.c.Store, m, moves("", 0, 1, 2, 3))
		require.NoError(t, err)
		require.Equal(t, v, w.view())
		require.Equal(t, Owner{Generation: 2, Listed: true}, v.Shards[0])
		require.Equal(t, Owner{Generation: 2}, v.Shards[1])
		require.Equal(t, []int{2, 3}, Mine(v, b.Incarnation()))
		require.Equal(t, int64(3), w.claim(b, 0).Generation(0, b.Incarnation()), "an ownership never comes twice")
	})
}

func TestViewsAreWatched(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		m := w.pserver("a")
		client := w.fake.Client("watcher")
		views := WatchView(ctx, client, w.view())
		synctest.Wait()
		require.Empty(t, views, "nothing is newer")

		v := w.claim(m, 0)
		require.Equal(t, v, <-views)

		client.Partition(true)
		w.claim(m, 1)
		v = w.claim(m, 2)
		w.fake.Compact(w.fake.Revision())
		synctest.Wait()
		require.Empty(t, views)
		client.Partition(false)
		require.Equal(t, v, <-views, "it lists again after a compaction")

		w.claim(m, 3)
		synctest.Wait()
		v, err := HandOver(t.Context(), w.st, m, moves("", 0))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, v, <-views, "a slow reader gets the latest")

		w.commit(store.Put(ownersKey, []byte(`{"v":9}`), 0))
		synctest.Wait()
		require.Empty(t, views, "what cannot be read is passed over")
		_, err = ReadView(t.Context(), w.st)
		require.ErrorIs(t, err, ErrVersion)

		w.commit(store.Delete(ownersKey))
		require.Equal(t, View{}, <-views, "a record that is gone is a change")
		cancel()
		_, ok := <-views
		require.False(t, ok)
	})
}

// A watch that goes silent without an error is made up for once a minute.
func TestASilentWatchIsMadeUpFor(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		views := WatchView(ctx, deafStore{w.st}, View{})
		<-views
		v := w.claim(w.pserver("a"), 0)
		synctest.Wait()
		require.Empty(t, views)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, v, <-views)
		cancel()
		synctest.Wait()
	})
}

type deafStore struct{ store.Store }

func (deafStore) Watch(ctx context.Context, _, _ string, _ int64) <-chan store.WatchResponse {
	out := make(chan store.WatchResponse)
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func TestRecords(t *testing.T) {
	t.Parallel()
	v := View{Shards: []Owner{{}, {Name: "a", Incarnation: "i", Address: "a:1", Generation: 7, Listed: true}}}
	require.JSONEq(t, `{"v":1,"shards":[{"generation":0},`+
		`{"name":"a","incarnation":"i","address":"a:1","generation":7,"listed":true}]}`, string(v.Encode()))
	got, err := DecodeView(store.KV{Key: ownersKey, Value: v.Encode(), ModRev: 5})
	require.NoError(t, err)
	v.Revision = 5
	require.Equal(t, v, got)
	require.Equal(t, store.Unchanged(ownersKey, 5), got.Guard())
	require.Equal(t, store.Put(ownersKey, []byte(`{"v":1,"shards":[{"generation":0},{"generation":0}]}`), 0), InitialOwners(2))

	require.JSONEq(t, `{"v":1,"incarnation":"i","address":"a:1","version":"x"}`,
		string(Registration{Name: "a", Incarnation: "i", Address: "a:1", Version: "x", Lease: 3}.encode()))
	_, err = decodeRegistration(store.KV{Key: "pservers/a", Value: []byte("{"), ModRev: 1})
	require.ErrorContains(t, err, "pservers/a")
	_, err = DecodeView(store.KV{Key: ownersKey, Value: []byte("[]"), ModRev: 1})
	require.ErrorContains(t, err, ownersKey)
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"v":1,"shards":[{"name":"a","incarnation":"i","generation":7},{}]}`))
	f.Add([]byte(`{"v":1,"incarnation":"i","address":"a:1"}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		kv := store.KV{Key: "pservers/a", Value: value, ModRev: 1}
		if v, err := DecodeView(kv); err == nil {
			again, err := DecodeView(store.KV{Value: v.Encode(), ModRev: 1})
			require.NoError(t, err)
			require.Equal(t, v.Encode(), again.Encode())
		}
		if r, err := decodeRegistration(kv); err == nil {
			_, err = decodeRegistration(store.KV{Value: r.encode(), ModRev: 1})
			require.NoError(t, err)
		}
	})
}
