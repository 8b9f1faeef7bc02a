package remind

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at runs a wait from one second to another, asked four times a second, and
// returns the seconds at which it was told.
func told(r *Reminder, from, to float64) (at []float64) {
	start := time.Unix(0, 0)
	for s := from; s < to; s += 0.25 {
		if r.Due(start.Add(time.Duration(s * float64(time.Second)))) {
			at = append(at, s)
		}
	}
	return at
}

func second(s float64) time.Time { return time.Unix(0, 0).Add(time.Duration(s * float64(time.Second))) }

// One wait is told at once and then more and more rarely.
func TestOneWait(t *testing.T) {
	t.Parallel()
	var r Reminder
	require.False(t, r.Over(second(1)))
	require.Equal(t, []float64{1, 6, 16, 46, 106, 166, 226}, told(&r, 1, 280))
	require.Equal(t, 279*time.Second, r.Waited(second(280)))
	require.Equal(t, 6*time.Second, r.Next(second(280)))
	require.True(t, r.Over(second(280)))
	require.Zero(t, r.Waited(second(281)))
}

// Waits that come again and again are one; after a calm minute the next is new.
func TestManyWaits(t *testing.T) {
	t.Parallel()
	var r Reminder
	var at []float64
	for s := 0.0; s < 50; s++ {
		at = append(at, told(&r, s, s+0.5)...)
		require.False(t, r.Over(second(s+0.5)), "too short to speak of its end")
	}
	require.Equal(t, []float64{0, 5, 15, 45}, at)
	require.Empty(t, told(&r, 100, 101))
	require.False(t, r.Over(second(101)))
	require.Equal(t, []float64{161, 166}, told(&r, 161, 170))
	require.True(t, r.Over(second(170)))
}
