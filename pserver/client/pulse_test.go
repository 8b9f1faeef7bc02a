package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/pserver/client"
)

// A pserver that falls silent is known within two seconds and a half, whether
// or not something is asked of it, and does not end the session.
func TestSilentPserverIsNamed(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		b := setup(t, 3, nil)
		b.publish(t, 0)
		s, err := b.client.Connect(t.Context())
		require.NoError(t, err)
		t.Cleanup(s.Close)
		exchange(t, s, b.client.NewBatch(), client.PushMeta{}, nil)
		b.net.Silence("pserver-1", true)
		var call *client.Call
		if busy {
			call, err = s.Exchange(t.Context(), b.client.NewBatch(), client.PushMeta{N: 1}, nil)
			require.NoError(t, err)
		}
		b.requireWaiting(t, "an answer of pserver-1 for shards [1 3]")
		b.net.Silence("pserver-1", false)
		b.requireWaiting(t, "")
		require.NoError(t, s.Err())
		if busy {
			require.NoError(t, call.Wait(t.Context()))
		}
	}
}

// What is waited for is in the log at once and then more and more rarely, with
// the shards and the pservers that there are.
func TestMissingPserversAreNamedRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, entries := test.NewNullLogger()
		st := fake.New(fake.Options{Clock: clock.System})
		c, err := client.New(client.Config{
			Network: transport.NewMemory(clock.System).Host("trainer"), Store: st, Parameters: parameters(3), Log: log,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Second)
		defer cancel()
		v := membership.View{}.Sized(shards)
		v.Shards[1] = membership.Owner{Name: "pserver-1", Incarnation: "i", Address: "pserver-1:1", Generation: 1}
		_, err = st.Txn(ctx, store.Txn{Then: []store.Op{store.Put("owners", v.Encode(), 0)}})
		require.NoError(t, err)
		began := time.Now()
		_, err = c.Connect(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 200, time.Since(began).Seconds(), 1)
		var at []float64
		for _, e := range entries.AllEntries() {
			require.Equal(t, logrus.InfoLevel, e.Level)
			require.Equal(t, "an owner of shards [0 2 3]: no pserver is registered", e.Data["reason"])
			at = append(at, e.Data["seconds"].(float64))
		}
		require.Equal(t, []float64{0, 5, 15, 45, 105, 165}, at)
	})
}
