package pserver_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/client"
)

func at(address string) func(*pserver.Config) {
	return func(c *pserver.Config) { c.Listen = address }
}

// A pserver is killed twenty times while it trains, and comes back at the same
// address: the trainer finds it each time, and nothing is lost. Who cannot have
// an address says so and publishes nothing.
func TestSameAddressAgainAndAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 3}, func(t *testing.T, w *world) {
		p := w.startOn("node", "pserver-0", at(":7000"))
		w.serving(p)
		ctx, cancel := context.WithCancel(t.Context())
		wait := w.train(ctx, "trainer-a")
		for i := range int64(20) {
			before := w.completed.Load()
			w.eventually("a chunk is trained", func() bool { return w.completed.Load() > before || w.completed.Load() >= 6 })
			p.kill()
			p = w.startOn("node", "pserver-0", at(":7000"))
			w.serving(p)
			require.Equal(t, "node:7000", p.Status().Address)
			require.Equal(t, i+2, p.Status().Shards[0].Generation)
		}
		cancel()
		wait()
		w.requeue()

		other := w.startOn("node", "pserver-1", at(":7000"))
		require.NotZero(t, other.exitCode())
		require.ErrorIs(t, other.err, syscall.EADDRINUSE)
		kv, err := store.Lookup(t.Context(), w.client("test"), "pservers/pserver-1")
		require.NoError(t, err)
		require.False(t, kv.Exists())
		w.finish(p)
	})
}

// A new pserver has the address of a dead one. Whoever has heard of the dead one
// only is refused, before the new one owns anything and after: identity is not
// an address.
func TestAddressOfTheDead(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		a := w.startOn("node", "pserver-0", at(":7000"))
		w.serving(a)
		task := w.take("trainer-z")
		s, err := task.client.Connect(t.Context())
		require.NoError(t, err)
		require.NoError(t, task.push(t.Context(), s, task.task, 0))
		old := s.View()
		s.Close()
		task.routes.Partition(true) // it hears of nothing any more
		a.kill()
		b := w.startOn("node", "pserver-9", at(":7000"))
		refused := func(reason string) {
			t.Helper()
			s, err := task.client.Open(t.Context(), old)
			require.NoError(t, err)
			defer s.Close()
			var f *client.FaultError
			require.ErrorAs(t, task.push(t.Context(), s, task.task, 1), &f)
			require.Equal(t, wire.WrongOwner, f.Code)
			require.Equal(t, reason, f.Reason)
			_, err = s.Progress(t.Context(), nil)
			require.ErrorAs(t, err, &f)
			require.Equal(t, wire.WrongOwner, f.Code)
		}
		w.eventually("it answers there", func() bool { return b.Status().Address == "node:7000" && b.Status().Registered })
		require.Empty(t, b.owns(), "the dead one's lease still lives")
		refused("the shard is not owned here")
		w.serving(b)
		refused("the shard has another generation")
		for _, shard := range b.Status().Shards {
			require.Zero(t, shard.Batches)
		}
		task.routes.Partition(false)
		w.requeue()
		w.finish(b)
	})
}

// Many trainers send and none reads what it is answered: the pserver stops
// reading, so its memory stays within what the streams may hold. Once they read
// each of them gets every answer: they were held up, nothing was dropped.
func TestTrainersThatDoNotRead(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		const trainers, messages, keys = 32, 2000, 10_000
		var of []uint64 // 40 KB of answer, 80 KB of question
		for k := uint64(0); len(of) < keys; k++ {
			if job.ShardOf(k, shards) == 0 {
				of = append(of, k)
			}
		}
		var stop atomic.Bool
		var streams []*wireClient
		sent := make([]atomic.Int64, trainers)
		for i := range trainers {
			c := w.dial(p)
			streams = append(streams, c)
			go func() {
				for n := 0; n < messages && !stop.Load(); n++ {
					var rw wire.RequestWriter
					b := c.pool.Get()
					rw.Start(b, w.job.UUID, uint64(n))
					rw.Section(0, 1)
					rw.PullKeys(1, of, 1)
					rw.Finish()
					if c.stream.Send(b) != nil {
						return
					}
					sent[i].Add(1)
				}
			}()
		}
		synctest.Wait() // nobody can go on
		stop.Store(true)
		for i, c := range streams {
			stuck := sent[i].Load()
			require.Less(t, stuck, int64(100), "messages under way on one stream")
			for n := range stuck + 1 { // and the one that was held up
				body, err := c.stream.Recv()
				require.NoError(t, err)
				var r wire.Response
				require.NoError(t, r.Decode(body))
				require.Equal(t, uint64(n), r.Seq)
				require.Equal(t, wire.OK, r.Shards[0].Code)
			}
			c.cancel()
		}
		w.finish(p)
	})
}
