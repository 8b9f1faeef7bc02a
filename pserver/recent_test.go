package pserver

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/pserver/optimizer"
)

// from is n keys from one on.
func from(first uint64, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = first + uint64(i)
	}
	return keys
}

func TestRecent(t *testing.T) {
	t.Parallel()
	var r recent
	a, b := from(100, 50), from(200, 50)
	rows := make([]uint32, maxPulled)
	for i, keys := range [][]uint64{a, b, a} {
		rows[0] = uint32(i)
		r.keep(keys, rows[:len(keys)])
	}
	take := func(keys []uint64, want uint32) {
		t.Helper()
		require.True(t, r.take(keys, rows))
		require.Equal(t, want, rows[0])
	}
	take(a, 0) // the oldest first
	take(a, 2)
	require.False(t, r.take(a, rows), "each is taken once")
	require.False(t, r.take(b[:49], rows))
	require.False(t, r.take(nil, rows))
	other := slices.Clone(b)
	other[20]++
	require.False(t, r.take(other, rows), "one key is another")
	take(b, 1)
	require.Empty(t, r.open)

	r.keep(from(0, leastKeys-1), rows[:leastKeys-1]) // too small
	r.keep(from(0, maxPulled), rows)                 // too large
	r.keep(nil, nil)
	require.Empty(t, r.open)
}

// Pulls that no push follows are forgotten in the end.
func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	var r recent
	rows := make([]uint32, maxPulled)
	for i := range 10 * maxPulls {
		r.keep(from(uint64(i)*1000, leastKeys+i%10), rows[:leastKeys+i%10])
	}
	require.Len(t, r.open, maxPulls)
	require.False(t, r.take(from(0, leastKeys), rows))
	for range 5 {
		for _, n := range []int{maxPulled / 2, maxPulled / 4, 100, maxPulled / 3} {
			keys := from(7, n)
			r.keep(keys, rows[:n])
			size := 0
			for _, p := range append(r.open, r.spare...) {
				require.Equal(t, cap(p.keys), cap(p.rows))
				size += cap(p.keys)
			}
			require.Equal(t, size, r.size)
			require.LessOrEqual(t, size, maxPulled)
			require.True(t, r.take(keys, rows))
		}
	}
}

// A push that follows its pull finds what the pull has found, and what was made
// between the two.
func TestPushFollowsPull(t *testing.T) {
	t.Parallel()
	s, b := theShard(t), &batches{}
	tab := s.content.tables[pWeights]
	keys, ones := from(0, 100), make([]float32, 100)
	for i := range ones {
		ones[i] = 1
	}
	mustPush(t, s, b.next(nil, rows(pWeights, keys[:40], ones[:40]...)))
	pullRows(t, s, pWeights, keys...)
	require.Len(t, tab.recent.open, 1)
	require.Equal(t, uint32(39), tab.recent.open[0].rows[39])
	require.Equal(t, uint32(optimizer.None), tab.recent.open[0].rows[40])
	mustPush(t, s, b.next(nil, rows(pWeights, keys[30:60], ones[:30]...)))
	require.Len(t, tab.recent.open, 1)
	mustPush(t, s, b.next(nil, wire.SparseRows{Param: pWeights, Keys: keys, Values: ones}))
	require.Empty(t, tab.recent.open)
	require.Equal(t, 100, tab.rows.N)
	for i, k := range keys {
		require.Equal(t, k, tab.rows.Key(uint32(i)))
	}
}
