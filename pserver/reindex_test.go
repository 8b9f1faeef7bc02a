package pserver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/pserver/optimizer"
)

// Every row of a restored table is found, and no key that it does not have: also
// with rows in several runs, and with a run that is not full.
func TestReindex(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 63, 64, 1000, reindexed + 100} {
		tab := testTable(t, 0, 1)
		for k := range uint64(n) {
			tab.rows.Add(k * 7)
		}
		require.NoError(t, tab.loaded())
		require.Len(t, tab.slots, slotsFor(n))
		keys, rows := make([]uint64, n), make([]uint32, n)
		for i := range keys {
			keys[i] = uint64(i) * 7
		}
		require.Equal(t, -1, tab.find(keys, rows))
		for i, row := range rows {
			if row != uint32(i) {
				require.Equal(t, uint32(i), row)
			}
		}
		rows = rows[:min(n, 1000)]
		for i := range rows {
			keys[i] = uint64(i)*7 + 1
		}
		require.Equal(t, -1, tab.find(keys[:len(rows)], rows))
		for _, row := range rows {
			require.Equal(t, uint32(optimizer.None), row)
		}
	}
}

// A key that comes twice is seen wherever the two rows lie.
func TestReindexRefusesAKeyThatComesTwice(t *testing.T) {
	t.Parallel()
	for _, at := range []uint64{0, reindexed - 1} {
		tab := testTable(t, 0, 1)
		for k := range uint64(reindexed + 10) {
			tab.rows.Add(k * 7)
		}
		tab.rows.Add(at * 7)
		require.ErrorIs(t, tab.loaded(), ErrCorrupt)
	}
	tab := testTable(t, 0, 1)
	tab.rows.Add(3)
	tab.rows.Add(3)
	require.ErrorContains(t, tab.loaded(), "key 3 of parameter")
}

func TestReindexRefusesAKeyOfAnotherShard(t *testing.T) {
	t.Parallel()
	tab := testTable(t, 0, 1)
	tab.of = 2
	for k := range uint64(64) { // half of them lie on the other shard
		tab.rows.Add(k)
	}
	require.ErrorIs(t, tab.loaded(), ErrCorrupt)
}
