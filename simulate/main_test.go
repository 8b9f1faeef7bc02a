package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSeeds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]uint64{"7": {7, 7}, "0-9999": {0, 9999}} {
		first, last, err := parseSeeds(text)
		require.NoError(t, err)
		require.Equal(t, want, [2]uint64{first, last})
	}
	for _, bad := range []string{"", "a", "5-4", "1-", "-1", "1-2-3"} {
		_, _, err := parseSeeds(bad)
		require.ErrorIs(t, err, errSeeds, bad)
	}
}

// TestMinimise: what is left is what the failure needs, in its order.
func TestMinimise(t *testing.T) {
	t.Parallel()
	plan := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, needed := range [][]int{{}, {3}, {0, 10}, {2, 3, 9}, plan} {
		calls := 0
		small, last := minimise(plan, func(faults []int) (result, bool) {
			calls++
			for _, f := range needed {
				if !slices.Contains(faults, f) {
					return result{}, false
				}
			}
			return result{output: list(faults)}, true
		})
		require.ElementsMatch(t, needed, small)
		require.Equal(t, list(small), last.output)
		require.Less(t, calls, 3*attempts*len(plan))
	}
	small, last := minimise(plan, func([]int) (result, bool) { return result{}, false })
	require.Nil(t, last, "it does not come again")
	require.Equal(t, plan, small)
}

func TestResultOfARun(t *testing.T) {
	t.Parallel()
	r := result{timeline: "seed 17: 2 passes\nfault 0: kill\nfault 1: cut\n  0.1 s fault 9\n"}
	_, failed := r.failed(10)
	require.False(t, failed)
	r.err = errors.New("exit status 1")
	seed, failed := r.failed(10)
	require.True(t, failed)
	require.EqualValues(t, 17, seed)
	require.Equal(t, []int{0, 1}, faultsOf(r.timeline))
	require.Equal(t, "none", list(nil))
	require.Len(t, shortened(string(make([]byte, 10_000))), 4005)
}
