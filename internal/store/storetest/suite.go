// Package storetest holds implementations of store.Store to what package
// store promises, and gives other packages' tests a real etcd.
//
// Run is the conformance suite. The package's own tests run it on the fake and
// on etcd, and then let both do the same random work and compare every answer.
package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

// patience is how long a test waits for what must happen soon.
const patience = 20 * time.Second

// Subject is a store under test. It must be empty and nobody else's.
type Subject struct {
	store.Store
	// Compact forgets the history before rev.
	Compact func(rev int64)
}

// Run runs the conformance suite; open makes a fresh store for each part.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	parts := map[string]func(t *testing.T, s Subject){
		"revisions of a key":             revisions,
		"what changes nothing":           changesNothing,
		"a trial writes nothing":         trial,
		"conditions":                     conditions,
		"a read sees the writes before":  readsOwnWrites,
		"ranges":                         ranges,
		"values are copies":              copies,
		"refusals":                       refusals,
		"the largest transaction":        largest,
		"a prefix hides the rest":        prefixed,
		"a lease ends with its keys":     leaseEnds,
		"a key changes its lease":        leaseChanges,
		"an unknown lease":               leaseUnknown,
		"a lease expires":                leaseExpires,
		"a lease is kept alive":          leaseKeptAlive,
		"watch from the past":            watchPast,
		"watch what comes":               watchFuture,
		"watch one key":                  watchOne,
		"watch sees a transaction whole": watchWhole,
		"watch ends with its context":    watchEnds,
		"watch from compacted history":   watchCompacted,
		"a context that has ended":       contextEnded,
	}
	for name, part := range parts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part(t, open(t))
		})
	}
}

func commit(t *testing.T, s store.Store, ops ...store.Op) store.Result {
	t.Helper()
	r, err := s.Txn(t.Context(), store.Txn{Then: ops})
	require.NoError(t, err)
	require.True(t, r.Succeeded)
	return r
}

func put(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	return commit(t, s, store.Put(key, []byte(value), 0)).Revision
}

func get(t *testing.T, s store.Store, key string) store.KV {
	t.Helper()
	kv, err := store.Lookup(t.Context(), s, key)
	require.NoError(t, err)
	return kv
}

func keysOf(kvs []store.KV) string {
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = kv.Key
	}
	return strings.Join(keys, " ")
}

func revisions(t *testing.T, s Subject) {
	require.Equal(t, store.KV{}, get(t, s, "k"))
	first := put(t, s, "k", "1")
	require.Equal(t, store.KV{Key: "k", Value: []byte("1"), CreateRev: first, ModRev: first, Version: 1}, get(t, s, "k"))
	second := put(t, s, "k", "2")
	require.Equal(t, first+1, second)
	require.Equal(t, store.KV{Key: "k", Value: []byte("2"), CreateRev: first, ModRev: second, Version: 2}, get(t, s, "k"))
	same := put(t, s, "k", "2")
	require.Equal(t, second+1, same, "writing the same value is a change")

	commit(t, s, store.Delete("k"))
	require.False(t, get(t, s, "k").Exists())
	again := put(t, s, "k", "3")
	require.Equal(t, store.KV{Key: "k", Value: []byte("3"), CreateRev: again, ModRev: again, Version: 1}, get(t, s, "k"))
}

func trial(t *testing.T, s Subject) {
	ask := func() store.Result {
		r, err := store.Read(t.Context(), s, store.Get("k"))
		require.NoError(t, err)
		return r
	}
	before := ask()
	require.NoError(t, store.TryWrite(t.Context(), s, "k"))
	require.Equal(t, before, ask())
}

func changesNothing(t *testing.T, s Subject) {
	rev := put(t, s, "k", "1")
	require.Equal(t, rev, commit(t, s, store.Delete("absent")).Revision)
	require.Equal(t, rev, commit(t, s, store.Get("k")).Revision)
	require.Equal(t, rev, commit(t, s).Revision)
	id, _, err := s.Grant(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, s.Revoke(t.Context(), id))
	require.Equal(t, rev+1, put(t, s, "k", "2"))
}

func conditions(t *testing.T, s Subject) {
	created := put(t, s, "k", "1")
	changed := put(t, s, "k", "2")
	for _, c := range []struct {
		name  string
		cmp   store.Cmp
		holds bool
	}{
		{"absent, and it is", store.Absent("none"), true},
		{"absent, but it exists", store.Absent("k"), false},
		{"created then", store.Created("k", created), true},
		{"created at another time", store.Created("k", changed), false},
		{"unchanged since", store.Unchanged("k", changed), true},
		{"changed since", store.Unchanged("k", created), false},
		{"unchanged since it was absent", store.Unchanged("none", 0), true},
		{"absent, but created was expected", store.Created("none", created), false},
	} {
		for _, ops := range [][]store.Op{nil, {store.Get("k")}} {
			r, err := s.Txn(t.Context(), store.Txn{If: []store.Cmp{c.cmp}, Then: ops})
			require.NoError(t, err)
			require.Equal(t, c.holds, r.Succeeded, c.name)
		}
	}
	r, err := s.Txn(t.Context(), store.Txn{
		If:   []store.Cmp{store.Unchanged("k", changed), store.Absent("k")},
		Then: []store.Op{store.Put("k", []byte("3"), 0)},
		Else: []store.Op{store.Put("other", nil, 0), store.Get("k"), store.Get("other")},
	})
	require.NoError(t, err)
	require.False(t, r.Succeeded, "all conditions must hold")
	require.Len(t, r.KVs, 3)
	require.Nil(t, r.KVs[0])
	require.Equal(t, "2", string(r.First(1).Value))
	require.Equal(t, r.Revision, r.First(2).ModRev)
	require.Empty(t, r.First(2).Value)
}

func readsOwnWrites(t *testing.T, s Subject) {
	put(t, s, "a", "old")
	r := commit(t, s,
		store.Get("a"),
		store.Put("a", []byte("new"), 0),
		store.Get("a"),
		store.Delete("b"),
		store.Put("c", []byte("1"), 0),
		store.Range("a", "z", 0),
	)
	require.Equal(t, "old", string(r.First(0).Value))
	require.Equal(t, "new", string(r.First(2).Value))
	require.Equal(t, r.Revision, r.First(2).ModRev)
	require.Equal(t, "a c", keysOf(r.KVs[5]))
}

func ranges(t *testing.T, s Subject) {
	for _, key := range []string{"a/2", "b", "a/1", "a", "a0", "a/10"} {
		put(t, s, key, key)
	}
	for _, c := range []struct {
		name string
		op   store.Op
		keys string
	}{
		{"one key", store.Get("a"), "a"},
		{"an absent key", store.Get("x"), ""},
		{"a directory", store.Range("a/", store.PrefixEnd("a/"), 0), "a/1 a/10 a/2"},
		{"a prefix", store.Range("a", store.PrefixEnd("a"), 0), "a a/1 a/10 a/2 a0"},
		{"the end is outside", store.Range("a/1", "a/2", 0), "a/1 a/10"},
		{"to the end of all keys", store.Range("a/2", "\x00", 0), "a/2 a0 b"},
		{"limited", store.Range("a", "z", 2), "a a/1"},
		{"empty", store.Range("c", "d", 0), ""},
	} {
		r := commit(t, s, c.op)
		require.Equal(t, c.keys, keysOf(r.KVs[0]), c.name)
	}
	kvs, rev, err := store.List(t.Context(), s, "a/", "a0")
	require.NoError(t, err)
	require.Equal(t, "a/1 a/10 a/2", keysOf(kvs))
	require.Equal(t, rev, commit(t, s, store.Get("a")).Revision)

	commit(t, s, store.DeleteRange("a/", "a0"), store.Delete("b"))
	require.Equal(t, "a a0", keysOf(commit(t, s, store.Range("a", "\x00", 0)).KVs[0]))
}

func copies(t *testing.T, s Subject) {
	value := []byte("1")
	commit(t, s, store.Put("k", value, 0))
	value[0] = 'x'
	kv := get(t, s, "k")
	require.Equal(t, "1", string(kv.Value))
	kv.Value[0] = 'y'
	require.Equal(t, "1", string(get(t, s, "k").Value))
}

func refusals(t *testing.T, s Subject) {
	rev := put(t, s, "k", "1")
	var many []store.Op
	var conditions []store.Cmp
	for i := range store.MaxOps + 1 {
		many = append(many, store.Put(fmt.Sprint("k", i), nil, 0))
		conditions = append(conditions, store.Absent(fmt.Sprint("k", i)))
	}
	twice := []store.Op{store.Put("a", nil, 0), store.Put("a", nil, 0)}
	for name, txn := range map[string]store.Txn{
		"too many operations":             {Then: many},
		"too many on the other side":      {Else: many},
		"too many conditions":             {If: conditions},
		"one key written twice":           {Then: twice},
		"twice on the side not taken":     {Then: []store.Op{store.Get("a")}, Else: twice},
		"written and deleted":             {Then: []store.Op{store.Delete("a"), store.Put("a", nil, 0)}},
		"written and deleted by a range":  {Then: []store.Op{store.Put("a", nil, 0), store.DeleteRange("a", "b")}},
		"no key":                          {Then: []store.Op{store.Put("", nil, 0)}},
		"no key in a read":                {Then: []store.Op{store.Get("")}},
		"no key in a condition":           {If: []store.Cmp{store.Absent("")}, Then: []store.Op{store.Get("a")}},
		"larger than etcd takes":          {Then: []store.Op{store.Put("a", make([]byte, 1600<<10), 0)}},
		"larger than the client sends it": {Then: []store.Op{store.Put("a", make([]byte, 4<<20), 0)}},
	} {
		_, err := s.Txn(t.Context(), txn)
		require.ErrorIs(t, err, store.ErrInvalid, name)
	}
	require.Equal(t, rev, commit(t, s, store.Get("k")).Revision, "a refused transaction changes nothing")
}

func largest(t *testing.T, s Subject) {
	var txn store.Txn
	for i := range store.MaxOps {
		txn.If = append(txn.If, store.Absent(fmt.Sprint("k", i)))
		txn.Then = append(txn.Then, store.Put(fmt.Sprint("k", i), nil, 0))
		txn.Else = append(txn.Else, store.Get(fmt.Sprint("k", i)))
	}
	r, err := s.Txn(t.Context(), txn)
	require.NoError(t, err)
	require.True(t, r.Succeeded)
	r, err = s.Txn(t.Context(), txn)
	require.NoError(t, err)
	require.False(t, r.Succeeded)
	require.Len(t, r.KVs, store.MaxOps)
	require.Equal(t, "k9", r.First(9).Key)
}

func prefixed(t *testing.T, s Subject) {
	put(t, s, "/jobs/b/k", "other")
	mine := store.Prefixed(s, "/jobs/a/")
	events := watch(t, mine, "", "\x00", put(t, s, "/jobs/a/k", "1"))
	put(t, s, "/jobs/b/k", "other")
	put(t, mine, "l", "2")
	require.Equal(t, []string{"k=1", "l=2"}, events(2))
	require.Equal(t, "2", string(get(t, s, "/jobs/a/l").Value))

	r := commit(t, mine, store.Range("", "\x00", 0), store.Get("k"), store.Range("k", "l", 0))
	require.Equal(t, "k l", keysOf(r.KVs[0]))
	require.Equal(t, "k", r.First(1).Key)
	require.Equal(t, "k", keysOf(r.KVs[2]))
	r, err := mine.Txn(t.Context(), store.Txn{
		If:   []store.Cmp{store.Unchanged("k", r.First(1).ModRev)},
		Then: []store.Op{store.DeleteRange("", "\x00")},
	})
	require.NoError(t, err)
	require.True(t, r.Succeeded)
	require.Equal(t, "/jobs/b/k", keysOf(commit(t, s, store.Range("/", "0", 0)).KVs[0]))
}

func contextEnded(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Lookup(ctx, s, "k")
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = s.Grant(ctx, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.KeepAlive(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, s.Revoke(ctx, 1), context.Canceled)
}
