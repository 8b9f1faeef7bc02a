package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first signal cancels, the second calls again. This sends real signals to
// this process, and therefore runs alone.
func TestSignals(t *testing.T) {
	for first, name := range map[syscall.Signal]string{syscall.SIGTERM: "terminated", syscall.SIGINT: "interrupt", syscall.SIGHUP: "hangup"} {
		second := make(chan struct{})
		ctx, stop := Signals(context.Background(), func() { close(second) })
		require.NoError(t, syscall.Kill(os.Getpid(), first))
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), ErrSignal)
		require.ErrorContains(t, context.Cause(ctx), name)
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		<-second
		stop()
	}
}

// Under nohup the end of the terminal is no reason to stop.
func TestIgnoredHangup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	ctx, stop := Signals(context.Background(), func() {})
	defer stop()
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-ctx.Done()
	require.ErrorContains(t, context.Cause(ctx), "terminated")
}

// What is to be done at an abrupt end is done, the last first; a third signal
// does not wait for it.
func TestOnAbort(t *testing.T) {
	t.Parallel()
	ctx, abort := withAborts(t.Context())
	var did []string
	hang, hangs := make(chan struct{}), make(chan struct{})
	OnAbort(ctx, func() { did = append(did, "directory") })
	OnAbort(ctx, func() { did = append(did, "processes"); close(hangs); <-hang })
	exits := make(chan string, 2)
	abort(func() { exits <- "second" })
	<-hangs
	abort(func() { exits <- "third" })
	require.Equal(t, "third", <-exits)
	close(hang)
	require.Equal(t, "second", <-exits)
	require.Equal(t, []string{"processes", "directory"}, did)
	OnAbort(t.Context(), func() { did = nil }) // there is nobody to call it
}
