package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A run that is asked to stop ends in order at whatever moment of its life that
// is, and so do its processes. Only before main begins the Go runtime ends it
// by the signal; then it has done nothing yet.
func TestSigtermAtAnyMoment(t *testing.T) {
	const longest = 1200 * time.Millisecond
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	program := starfishProgram(t)
	require.FileExists(t, program)
	t.Run("moments", func(t *testing.T) {
		turns := make(chan struct{}, 4) // as many at a time
		for i := range rounds {
			u := rand.New(rand.NewPCG(1, uint64(i))).Float64()    //nolint:gosec // a seed per round
			moment := time.Duration(u * u * u * float64(longest)) // most of them early
			t.Run(moment.String(), func(t *testing.T) {
				t.Parallel()
				turns <- struct{}{}
				defer func() { <-turns }()
				stopAfter(t, moment)
			})
		}
	})
}

func stopAfter(t *testing.T, moment time.Duration) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	c := newCall(t, "run", "-f", count, "--dir", dir, "--set", "train.passes=2").start()
	time.Sleep(moment) // the moment is what is tested
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	_ = c.cmd.Wait()
	c.leavesNothing()
	state := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if state.Signaled() {
		require.Equal(t, syscall.SIGTERM, state.Signal())
		_, err := os.Stat(dir)
		require.ErrorIs(t, err, os.ErrNotExist, "it had begun")
		require.Empty(t, c.stderr.String())
		return
	}
	require.Zero(t, state.ExitStatus(), c.stderr.String())
}
