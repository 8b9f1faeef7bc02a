package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/job"
)

// Bit by bit, with vectors and without.
func TestHashesIn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key, first := rapid.Uint64().Draw(t, "key"), rapid.Uint64().Draw(t, "first")
		last := rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(uint64(math.MaxUint64)), rapid.Uint64()).Draw(t, "last")
		if rapid.Bool().Draw(t, "at an end") {
			first = job.Mix(key + rapid.Uint64Range(0, 63).Draw(t, "which"))
			if rapid.Bool().Draw(t, "at the other") {
				first -= last
			}
		}
		got, plain := make([]uint32, rapid.IntRange(0, 3).Draw(t, "words")), make([]uint32, 3)
		HashesIn(got, key, first, last)
		hashesIn(plain[:len(got)], key, first, last)
		require.Equal(t, plain[:len(got)], got)
		for i := range uint64(32 * len(got)) {
			require.Equal(t, job.Mix(key+i)-first <= last, got[i/32]>>(i%32)&1 == 1, i)
		}
	})
}
