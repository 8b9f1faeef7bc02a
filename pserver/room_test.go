package pserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/pserver"
	"starfish/pserver/client"
)

// grow makes many rows on every shard: some 2 MiB each.
func (w *world) grow() {
	w.t.Helper()
	tr := w.newTrainer("grower")
	defer tr.queue.Close()
	s, err := tr.client.Connect(w.t.Context())
	require.NoError(w.t, err)
	defer s.Close()
	keys := make([]uint64, 200_000)
	for i := range keys {
		keys[i] = uint64(i) + 10_000
	}
	tr.batch.Prepare([][]uint64{keys})
	c, err := s.Exchange(w.t.Context(), tr.batch, client.PushMeta{Rank: 5, Token: 1, Records: 1}, nil)
	require.NoError(w.t, err)
	require.NoError(w.t, c.Wait(w.t.Context()))
}

// A pserver neither claims nor receives a shard that it is known not to hold: it
// says so, and others take it; each holds as much as it can.
func TestShardsThatDoNotFit(t *testing.T) {
	t.Parallel()
	limit := func(bytes int64) func(*pserver.Config) {
		return func(c *pserver.Config) { c.MaxMemory = bytes }
	}
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		w.grow()
		size := a.Status().Shards[0].Bytes
		require.Greater(t, size, int64(1<<20))

		// Too small for any: it is neither given one by balance, nor when the other leaves.
		tiny := w.start("pserver-1", limit(1<<20))
		time.Sleep(20 * time.Second)
		require.Len(t, a.owns(), 3)
		require.NoError(t, a.stop())
		time.Sleep(10 * time.Second)
		require.Empty(t, tiny.owns())
		require.True(t, strings.HasPrefix(tiny.Status().Waiting, "for memory: shard 0 takes "), tiny.Status().Waiting)
		for _, o := range w.view().Shards {
			require.False(t, o.Owned())
		}

		// Room for two of the three.
		two := w.start("pserver-2", limit(2*size+size/2))
		w.eventually("it holds two", func() bool { return len(two.owns()) == 2 })
		time.Sleep(10 * time.Second)
		require.Len(t, two.owns(), 2)
		require.LessOrEqual(t, two.Status().MemoryBytes, two.Status().MaxMemory)

		rest := w.start("pserver-3")
		w.eventually("somebody has the third", func() bool { return len(rest.owns())+len(two.owns()) == 3 })
		require.Empty(t, tiny.owns())
	})
}
