package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/job"
)

// followed is a follower of a job in a fake store.
func followed(t *testing.T) (*follower, *fake.Client, *fake.Store) {
	t.Helper()
	st := fake.New(fake.Options{})
	client := st.Client("run")
	spec := &job.Spec{}
	spec.Queue.Lanes, spec.Train.Passes = 2, 5
	f, err := newFollower(client, spec, clock.System)
	require.NoError(t, err)
	t.Cleanup(f.close)
	return f, client, st
}

func write(t *testing.T, st store.Store, ops ...store.Op) {
	t.Helper()
	_, err := st.Txn(t.Context(), store.Txn{Then: ops})
	require.NoError(t, err)
}

// submit puts what the follower looks at of a job.
func submit(t *testing.T, st store.Store) {
	t.Helper()
	write(t, st, append(etcdqueue.InitialOps(etcdqueue.Manifest{Chunks: 4}, 2), store.Put(job.KeySpec, []byte("{}"), 0))...)
}

// The time of a job is that from its first take to its last report, whatever
// breaks in between, and not to the removal of its lanes.
func TestFollowerTimesTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, client, st := followed(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.follow(ctx) }()
		after := func(d time.Duration, do func()) {
			time.Sleep(d) //nolint:forbidigo // virtual time
			do()
			synctest.Wait()
		}
		lane := func() { write(t, st, store.Put("queue/000000/0000", []byte("{}"), 0)) }
		after(time.Second, func() { write(t, st, store.Put("owners", nil, 0)) })
		_, whole := f.seconds()
		require.False(t, whole, "nothing was taken yet")
		after(time.Second, lane)
		<-f.Opened()
		after(3*time.Second, lane)
		after(time.Second, func() { write(t, st, store.Delete("queue/000000/0000")) })
		seconds, whole := f.seconds()
		require.True(t, whole)
		require.InDelta(t, 3, seconds, 1e-9)

		client.Partition(true)
		after(time.Second, func() {
			lane()
			lane()
			st.Compact(st.Revision())
		})
		client.Partition(false)
		after(time.Second, func() {})
		seconds, whole = f.seconds()
		require.True(t, whole)
		require.InDelta(t, 5.5, seconds, 0.6, "what was missed is noticed")
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// A job that something was taken of before is not seen whole.
func TestFollowerOfAResumedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _, st := followed(t)
		write(t, st, store.Put("queue/000000/0000", []byte("{}"), 0))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.follow(ctx) }()
		synctest.Wait()
		write(t, st, store.Put("queue/000000/0000", []byte("{}"), 0))
		synctest.Wait()
		_, whole := f.seconds()
		require.False(t, whole)
		stop()
		<-ended
	})
}

// A job that is deleted, or replaced by another one, is gone; one that is still
// to be made is not.
func TestFollowerSeesThatAJobIsGone(t *testing.T) {
	t.Parallel()
	f, _, st := followed(t)
	both := func(want error) {
		t.Helper()
		_, err := f.state(t.Context())
		require.ErrorIs(t, err, want)
		_, _, err = f.look(t.Context())
		require.ErrorIs(t, err, want)
	}
	both(etcdqueue.ErrNoQueue)
	submit(t, st)
	s, _, err := f.look(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, s.chunks)
	require.Equal(t, "training", s.phase)
	write(t, st, store.DeleteRange("a", "z"))
	both(errJobGone)
	submit(t, st)
	both(errJobGone)
}
