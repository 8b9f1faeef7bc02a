package pserver

import (
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
	for i, keys := range [][]uint64{a, b, a} {
		r.room(keys)[0] = uint32(i)
	}
	require.Equal(t, uint32(0), r.take(a)[0], "the oldest first")
	require.Equal(t, uint32(2), r.take(a)[0])
	require.Nil(t, r.take(a), "each is taken once")
	require.Nil(t, r.take(b[:49]))
	require.Nil(t, r.take(nil))
	require.Equal(t, uint32(1), r.take(b)[0])
	require.Empty(t, r.open)

	require.Nil(t, r.room(from(0, ahead-1)), "too small")
	require.Nil(t, r.room(from(0, maxPulled)), "too large")
	require.Nil(t, r.room(nil))
}

// Pulls that no push follows are forgotten in the end.
func TestRecentIsBounded(t *testing.T) {
	t.Parallel()
	var r recent
	for i := range 10 * maxPulls {
		require.NotNil(t, r.room(from(uint64(i)*1000, ahead+i%10)))
	}
	require.Len(t, r.open, maxPulls)
	require.Nil(t, r.take(from(0, ahead)))
	for range 5 {
		for _, n := range []int{maxPulled / 2, maxPulled / 4, 100, maxPulled / 3} {
			keys := from(7, n)
			require.Len(t, r.room(keys), n)
			size := 0
			for _, p := range append(r.open, r.spare...) {
				size += cap(p.rows)
			}
			require.Equal(t, size, r.size)
			require.LessOrEqual(t, size, maxPulled)
			require.Len(t, r.take(keys), n)
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
