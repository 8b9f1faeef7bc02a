package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
)

func grant(t *testing.T, s store.Store, ttl time.Duration) store.LeaseID {
	t.Helper()
	id, given, err := s.Grant(t.Context(), ttl)
	require.NoError(t, err)
	require.NotZero(t, id)
	require.GreaterOrEqual(t, given, ttl)
	return id
}

func leaseEnds(t *testing.T, s Subject) {
	id := grant(t, s, 1500*time.Millisecond)
	other := grant(t, s, time.Minute)
	require.NotEqual(t, id, other)
	rev := commit(t, s, store.Put("b", []byte("1"), id), store.Put("a", []byte("1"), id)).Revision
	put(t, s, "c", "1")
	require.Equal(t, id, get(t, s, "a").Lease)
	events := watch(t, s, "a", "z", rev)

	require.NoError(t, s.Revoke(t.Context(), id))
	require.Equal(t, "c", keysOf(commit(t, s, store.Range("a", "z", 0)).KVs[0]))
	require.Equal(t, []string{"b=1", "a=1", "c=1", "a gone", "b gone"}, events(5))
	require.Equal(t, rev+3, put(t, s, "d", "1"), "the keys go in one revision")

	require.NoError(t, s.Revoke(t.Context(), id), "revoking again is no error")
	_, err := s.KeepAlive(t.Context(), id)
	require.ErrorIs(t, err, store.ErrLeaseNotFound)
}

func leaseChanges(t *testing.T, s Subject) {
	old, successor := grant(t, s, time.Minute), grant(t, s, time.Minute)
	commit(t, s, store.Put("taken", nil, old), store.Put("freed", nil, old), store.Put("kept", nil, old))
	commit(t, s, store.Put("taken", nil, successor), store.Put("freed", nil, 0))
	require.NoError(t, s.Revoke(t.Context(), old))
	require.Equal(t, successor, get(t, s, "taken").Lease)
	require.True(t, get(t, s, "freed").Exists())
	require.False(t, get(t, s, "kept").Exists())

	commit(t, s, store.Delete("taken"))
	put(t, s, "taken", "without a lease")
	require.NoError(t, s.Revoke(t.Context(), successor))
	require.True(t, get(t, s, "taken").Exists())
}

func leaseUnknown(t *testing.T, s Subject) {
	rev := put(t, s, "k", "1")
	_, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", nil, 0), store.Put("l", nil, 77)}})
	require.ErrorIs(t, err, store.ErrLeaseNotFound)
	require.Equal(t, rev, get(t, s, "k").ModRev, "nothing of the transaction has happened")

	r, err := s.Txn(t.Context(), store.Txn{
		If:   []store.Cmp{store.Absent("k")},
		Then: []store.Op{store.Put("l", nil, 77)},
		Else: []store.Op{store.Put("k", nil, 0)},
	})
	require.NoError(t, err, "the side that is not taken does not need its lease")
	require.False(t, r.Succeeded)
	require.NoError(t, s.Revoke(t.Context(), 77))
}

func leaseExpires(t *testing.T, s Subject) {
	id := grant(t, s, time.Second)
	rev := commit(t, s, store.Put("k", []byte("1"), id)).Revision
	events := watch(t, s, "k", "", rev)
	require.Equal(t, []string{"k=1", "k gone"}, events(2), "a watch sees it without anybody's doing")
	require.False(t, get(t, s, "k").Exists())
	_, err := s.KeepAlive(t.Context(), id)
	require.ErrorIs(t, err, store.ErrLeaseNotFound)
}

func leaseKeptAlive(t *testing.T, s Subject) {
	kept, lost := grant(t, s, 3*time.Second), grant(t, s, 2*time.Second)
	rev := commit(t, s, store.Put("kept", []byte("1"), kept), store.Put("lost", []byte("1"), lost)).Revision
	events := watch(t, s, "a", "z", rev)
	require.Equal(t, []string{"kept=1", "lost=1"}, events(2))
	for deadline := time.Now().Add(patience); get(t, s, "lost").Exists(); { //nolint:forbidigo // a test of real time
		require.True(t, time.Now().Before(deadline)) //nolint:forbidigo // a test of real time
		given, err := s.KeepAlive(t.Context(), kept)
		require.NoError(t, err)
		require.GreaterOrEqual(t, given, 3*time.Second)
	}
	require.Equal(t, []string{"lost gone"}, events(1))
	require.True(t, get(t, s, "kept").Exists())
}
