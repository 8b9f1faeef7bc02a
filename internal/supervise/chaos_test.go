package supervise

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// window is a Window in a test's hands.
type window struct {
	opened chan struct{}
	open   atomic.Bool
}

func newWindow() *window { return &window{opened: make(chan struct{})} }

func (w *window) Opened() <-chan struct{}   { return w.opened }
func (w *window) Open(context.Context) bool { return w.open.Load() }
func (w *window) begin()                    { w.open.Store(true); close(w.opened) }

func TestKillerStrikesOnlyInTheWindowAndTheDeadRise(t *testing.T) {
	t.Parallel()
	ps := []Process{helper(t, "pserver", "p0", "wait"), helper(t, "trainer", "t0", "wait"), helper(t, "trainer", "t1", "wait")}
	s := newRun(t, Config{Processes: ps})
	ctx, cancel := context.WithCancel(t.Context())
	result := running(ctx, s)
	require.Eventually(t, func() bool { return logHas(ps[1], "waiting")() && logHas(ps[2], "waiting")() }, patient, 10*time.Millisecond)

	w := newWindow()
	k := NewKiller(s, Chaos{"trainer": 20 * time.Millisecond}, 7, w)
	hunted := make(chan error, 1)
	go func() { hunted <- k.Run(ctx) }()
	require.Equal(t, map[string]int{"trainer": 0}, k.Kills())
	w.begin()
	require.Eventually(t, func() bool { return k.Kills()["trainer"] >= 5 }, patient, 5*time.Millisecond)
	w.open.Store(false)
	require.NoError(t, <-hunted)
	kills := k.Kills()
	require.Eventually(t, func() bool { return s.Stats().Alive["trainer"] == 2 }, patient, 5*time.Millisecond)
	require.GreaterOrEqual(t, s.Stats().Restarts["trainer"], kills["trainer"])
	require.Zero(t, s.Stats().Restarts["pserver"], "only trainers were to be killed")
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestKillerThatNeverOpensEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newRun(t, Config{Processes: []Process{{Kind: "trainer"}}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, NewKiller(s, Chaos{"trainer": time.Millisecond}, 1, newWindow()).Run(ctx))
}

func TestStrikeWithoutPrey(t *testing.T) {
	t.Parallel()
	s := newRun(t, Config{Processes: []Process{{Kind: "trainer"}}})
	require.Nil(t, s.strike("trainer", 0.5))
}

func TestSeedDecidesTheHunt(t *testing.T) {
	t.Parallel()
	seq := func(seed uint64) (waits []time.Duration) {
		rng := rand.New(rand.NewPCG(seed, 1))
		for range 50 {
			wait, pick := draw(rng, time.Second)
			require.GreaterOrEqual(t, wait, time.Second/2)
			require.Less(t, wait, time.Second*3/2)
			require.GreaterOrEqual(t, pick, 0.0)
			require.Less(t, pick, 1.0)
			waits = append(waits, wait)
		}
		return waits
	}
	first := seq(1)
	require.Equal(t, first, seq(1))
	require.NotEqual(t, first, seq(2))
}
