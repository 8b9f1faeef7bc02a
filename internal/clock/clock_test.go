package clock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSystem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := clock.System.Now()
		timer := clock.System.Timer(time.Hour)
		require.Equal(t, time.Hour, (<-timer.C()).Sub(start))
		require.Equal(t, time.Hour, clock.System.Now().Sub(start))
		require.False(t, timer.Stop(), "it has fired")

		timer = clock.System.Timer(time.Hour)
		require.True(t, timer.Stop())
		time.Sleep(2 * time.Hour)
		select {
		case <-timer.C():
			require.Fail(t, "a stopped timer fired")
		default:
		}
	})
}

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, clock.Sleep(t.Context(), clock.System, time.Minute))
		require.Equal(t, time.Minute, time.Since(start))

		reason := errors.New("reason")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(reason) })
		require.ErrorIs(t, clock.Sleep(ctx, clock.System, time.Minute), reason)
		require.Equal(t, time.Minute+time.Second, time.Since(start))
		require.ErrorIs(t, clock.Sleep(ctx, clock.System, 0), reason, "an ended context is noticed first")
	})
}
