package client_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/wire"
	"starfish/pserver/client"
	"starfish/pserver/client/clienttest"
)

func (b *bundle) requireWaiting(t *testing.T, reason string) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, _ := b.waiting.Load().(string)
		return r == reason || reason != "" && strings.Contains(r, reason)
	}, 10*time.Second, time.Millisecond, "waiting for %q", reason)
}

// Connect waits until every shard has an owner that serves, and says for what.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	var loaded atomic.Bool
	b := setup(t, 3, func(s *clienttest.Server) {
		s.Refuse = func(r *wire.ShardRequest) (wire.Code, int64, string) {
			if r.Shard == 1 && !loaded.Load() {
				return wire.Unloaded, 0, "reads its checkpoint"
			}
			return wire.OK, 0, ""
		}
	})
	type result struct {
		s   *client.Session
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := b.client.Connect(t.Context())
		done <- result{s, err}
	}()
	b.requireWaiting(t, "an owner of shards [0 1 2 3]")
	b.publish(t, 1)
	b.requireWaiting(t, "an owner of shards [3]")
	b.publish(t, 0)
	b.requireWaiting(t, "shard 1 on pserver-1: unloaded: reads its checkpoint")
	loaded.Store(true)
	r := <-done
	require.NoError(t, r.err)
	defer r.s.Close()
	b.requireWaiting(t, "")
	v, err := b.client.View(t.Context())
	require.NoError(t, err)
	require.Equal(t, v, r.s.View())
}

// A session ends when a shard changes hands, even if the old owner is silent;
// it goes on when only other things change in the record.
func TestSessionEndsWithItsView(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, func(s *clienttest.Server) {
		if s.Name == "pserver-1" {
			s.Hold = func(ctx context.Context) { <-ctx.Done() }
		}
	})
	b.publish(t, 0)
	v, err := b.client.View(t.Context())
	require.NoError(t, err)
	s, err := b.client.Open(t.Context(), v)
	require.NoError(t, err)
	defer s.Close()
	call, err := s.Exchange(t.Context(), b.client.NewBatch(), client.PushMeta{}, nil)
	require.NoError(t, err)
	b.view.Shards[0].Listed = true
	b.publish(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, call.Wait(ctx), context.DeadlineExceeded)
	require.NoError(t, s.Err())

	b.publish(t, 1) // shard 3 is given up
	var f *client.FaultError
	require.ErrorAs(t, call.Wait(t.Context()), &f)
	require.Equal(t, &client.FaultError{
		Shard: 3, Pserver: "pserver-1", Code: wire.WrongOwner, Reason: "the shard has changed hands",
	}, f)
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	stop := errors.New("stop")
	b := setup(t, 3, nil)
	b.publish(t, 0)
	b.net.Silence("pserver-1", true)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := b.client.Connect(ctx)
		failed <- err
	}()
	b.requireWaiting(t, "pserver-1")
	cancel(stop)
	require.ErrorIs(t, <-failed, stop)
	b.net.Silence("pserver-1", false)
}

// The store's troubles are waited out, but not a history that went backwards.
func TestViewAndTheStore(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	b.publish(t, 0)
	handle := b.store.Client("trainer")
	var fault atomic.Pointer[error]
	handle.Fail(func(string, string) error {
		if e := fault.Load(); e != nil {
			return *e
		}
		return nil
	})
	c, err := client.New(client.Config{
		Network: b.net.Host("trainer"), Store: handle, Parameters: parameters(3), Log: quiet(),
		Waiting: func(reason string) { b.waiting.Store(reason) },
	})
	require.NoError(t, err)
	refused := errors.New("connection refused")
	fault.Store(&refused)
	failed := make(chan error, 1)
	go func() {
		_, err := c.View(t.Context())
		failed <- err
	}()
	b.requireWaiting(t, "connection refused")
	fault.Store(nil)
	require.NoError(t, <-failed)
	fault.Store(&store.ErrHistory)
	_, err = c.View(t.Context())
	require.ErrorIs(t, err, store.ErrHistory)
}

func TestOpenNeedsOwners(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, nil)
	b.view.Shards = b.view.Shards[:3]
	_, err := b.client.Open(t.Context(), b.view)
	var f *client.FaultError
	require.ErrorAs(t, err, &f)
	require.Equal(t, 3, f.Shard)
	require.Equal(t, "shard 3: wrong owner: the shard has no owner", f.Error())
}
