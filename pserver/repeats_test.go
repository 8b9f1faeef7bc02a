package pserver

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// As a map would say it, also where all numbers have the same lower bits.
func TestRepeats(t *testing.T) { //nolint:paralleltest // counts allocations
	var r repeats
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0, 100), rapid.Map(rapid.Uint32Range(0, 1000), func(x uint32) uint32 { return x << 20 }))
		list := rapid.SliceOfN(number, 0, 200).Draw(t, "list")
		known, twice := map[uint32]bool{}, false
		for _, x := range list {
			twice = twice || known[x]
			known[x] = true
		}
		require.Equal(t, twice, r.in(list))
	})
	list := make([]uint32, 10000)
	for i := range list {
		list[i] = uint32(i) * 429493
	}
	require.False(t, r.in(list))
	for _, at := range []int{1, 77, 9999} {
		was := list[at]
		list[at] = list[0]
		require.True(t, r.in(list))
		list[at] = was
	}
	require.False(t, r.in([]uint32{math.MaxUint32}))
	require.True(t, r.in([]uint32{math.MaxUint32, math.MaxUint32}))
	require.False(t, r.in(nil))
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() { r.in(list) }), 0.0)
	large := make([]uint32, manyRepeats+1)
	require.True(t, r.in(large))
	require.Nil(t, r.seen, "what one large push took")
	require.Nil(t, r.some)
}
