package pserver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
)

// until trains in the background until so many chunks are complete, then stops
// the trainer and gives back what it holds.
func (w *world) until(n int64) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	wait := w.train(ctx, fmt.Sprintf("early-%d", n))
	w.eventually("chunks are trained", func() bool { return w.completed.Load() >= n })
	cancel()
	wait()
	synctest.Wait() // a last push may have been under way
	w.requeue()
}

// requeue gives back whatever anybody holds.
func (w *world) requeue() {
	w.t.Helper()
	_, err := w.queue.Requeue(w.t.Context(), func(context.Context) (map[string]bool, error) { return nil, nil })
	require.NoError(w.t, err)
}

// A pserver is killed when some of what it has applied is in no checkpoint. Its
// successor of the same name comes at once and gets back what was lost.
func TestKilledPserverIsReplacedByName(t *testing.T) {
	t.Parallel()
	inWorld(t, options{passes: 2}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		lost := a.owns()
		w.until(2)
		time.Sleep(1100 * time.Millisecond) // the first checkpoints
		w.until(4)
		a.kill()
		again := w.start("pserver-0")
		w.serving(again, b)
		require.Equal(t, lost, again.owns(), "the successor by name takes over all of its shards")
		for _, s := range again.Status().Shards {
			require.EqualValues(t, 2, s.Generation)
		}
		w.eventually("what was lost is reopened", func() bool { return len(w.state().Reopened) > 0 })
		w.finish(again, b)
		sum, _, err := w.queue.Totals(t.Context())
		require.NoError(t, err)
		require.Positive(t, sum.Reopened)
		require.EqualValues(t, 2*chunks*batches, sum.Batches, "the lanes' sums count each batch once")
		for _, s := range again.Status().Shards {
			require.Positive(t, s.Replayed)
		}
	})
}

// Nothing was ever listed: the shard begins anew and everything is replayed.
func TestKilledBeforeTheFirstCheckpoint(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(2)
		require.Empty(t, w.metas(0), "the test must be quicker than the first checkpoint")
		a.kill()
		b.kill()
		a, b = w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.finish(a, b)
	})
}

// The shards of a process that does not come back are claimed by another one
// when its lease has ended.
func TestSurvivorClaims(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(2)
		a.kill()
		w.serving(b)
		w.finish(b)
	})
}

// A recovered shard goes on being saved, and survives further failures.
func TestThreeFailuresInARow(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		for i := range int64(3) {
			w.until(i + 1)
			before := w.metas(0)
			w.eventually("a new checkpoint", func() bool {
				now := w.metas(0)
				return len(now) > 0 && (len(before) == 0 || now[0].UUID != before[0].UUID)
			})
			require.Equal(t, i+1, w.metas(0)[0].Generation)
			p.kill()
			p = w.start("pserver-0")
			w.serving(p)
		}
		w.finish(p)
	})
}

// The last chunk is complete, the job drains, and a pserver dies before its
// last checkpoint: the job goes back to training and drains again.
func TestKilledWhileDraining(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(chunks)
		a.kill()
		st, err := w.queue.Turn(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, etcdqueue.PhaseDraining, st.Phase)
		again := w.start("pserver-0")
		w.eventually("training again", func() bool { return w.state().Phase == etcdqueue.PhaseTraining })
		w.finish(again, b)
	})
}

// After SIGTERM everything that was applied is in the last checkpoint: the next
// owner reopens and replays nothing.
func TestOrderlyStop(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(3)
		began := time.Now()
		require.NoError(t, p.stop())
		require.Less(t, time.Since(began), 2*time.Second)
		v := w.view()
		for shard := range shards {
			require.False(t, v.Shards[shard].Owned(), "the shards are given up")
			require.True(t, v.Shards[shard].Listed)
			require.EqualValues(t, 1, v.Shards[shard].Generation)
			require.GreaterOrEqual(t, w.load(shard).Stats().Total.Batches, int64(3*batches))
		}
		kv, err := store.Lookup(t.Context(), w.client("test"), "pservers/pserver-0")
		require.NoError(t, err)
		require.False(t, kv.Exists(), "the lease is revoked")

		next := w.start("pserver-9")
		w.serving(next)
		w.finish(next)
		sum, _, err := w.queue.Totals(t.Context())
		require.NoError(t, err)
		require.Zero(t, sum.Reopened)
		for _, s := range next.Status().Shards {
			require.Zero(t, s.Replayed)
		}
	})
}

// A lease is lost while nobody else is there: the memory is kept under the next
// generation, and nothing is trained again.
func TestLostLeaseKeepsTheMemory(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(2)
		was := p.Status()
		p.client.Partition(true)
		time.Sleep(4 * time.Second) // above the lease's time to live
		synctest.Wait()
		require.Empty(t, p.owns(), "it serves nothing while its lease may have ended")
		require.Error(t, p.Ready())
		require.False(t, p.Status().Registered)
		p.client.Partition(false)
		w.serving(p)
		now := p.Status()
		require.NotEqual(t, was.Incarnation, now.Incarnation)
		for i, s := range now.Shards {
			require.EqualValues(t, 2, s.Generation)
			require.Equal(t, was.Shards[i].Batches, s.Batches)
		}
		w.finish(p)
		sum, _, err := w.queue.Totals(t.Context())
		require.NoError(t, err)
		require.Zero(t, sum.Reopened, "nothing was lost")
	})
}

// A lease is lost and somebody else has owned the shards: the memory is of no
// use any more.
func TestLostLeaseToAnother(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(2)
		a.client.Partition(true)
		w.serving(b)
		require.Empty(t, a.owns())
		a.client.Partition(false)
		w.eventually("registered again", func() bool { return a.Status().Registered })
		require.Empty(t, a.Status().Shards)
		w.finish(a, b)
	})
}

// Somebody else has owned the shards and has given them up again: what is in
// memory is older than what is on disk.
func TestLostLeaseAndBackAgain(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		w.until(2)
		a.client.Partition(true)
		b := w.start("pserver-1")
		w.serving(b)
		w.until(6) // two of them are those that b had to have again
		require.NoError(t, b.stop())
		a.client.Partition(false)
		w.serving(a)
		for _, s := range a.Status().Shards {
			require.EqualValues(t, 3, s.Generation)
			require.GreaterOrEqual(t, s.Batches, int64(4*batches), "loaded, not kept")
		}
		w.finish(a)
	})
}

// While etcd does not answer for less than the time to live nothing stops.
func TestShortOutage(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		p.client.Partition(true)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		require.Len(t, p.owns(), shards)
		p.client.Partition(false)
		w.finish(p)
		for _, s := range p.Status().Shards {
			require.EqualValues(t, 1, s.Generation)
		}
	})
}

// A predecessor that does not know yet that it was replaced goes on
// acknowledging: no chunk becomes complete by it, its checkpoints are refused,
// and it ends with the code that says so.
func TestZombie(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 2}, func(t *testing.T, w *world) {
		zombie := w.start("pserver-0")
		w.serving(zombie)
		w.until(1)
		task := w.take("trainer-z")
		session, err := task.client.Connect(t.Context())
		require.NoError(t, err)
		defer session.Close()

		task.routes.Partition(true) // the trainer does not hear of it either
		zombie.client.Partition(true)
		successor := w.start("pserver-0", func(c *pserver.Config) { c.Takeover = true })
		w.serving(successor)
		require.Len(t, zombie.owns(), shards, "the test must be quicker than the zombie's clock")
		for n := range int64(batches) {
			require.NoError(t, task.push(t.Context(), session, task.task, n), "the zombie acknowledges")
		}
		err = task.complete(session)
		require.ErrorIs(t, err, etcdqueue.ErrGuard, "but the chunk is not complete")
		applied := zombie.Status().Shards[0].Batches

		time.Sleep(2 * time.Second)
		session.Close()
		zombie.client.Partition(false)
		require.Equal(t, int(job.ExitSuperseded), zombie.exitCode())
		require.ErrorContains(t, zombie.err, successor.Status().Incarnation, "it says by whom")
		require.Greater(t, applied, successor.Status().Shards[0].Batches)
		for shard := range shards {
			for _, m := range w.metas(shard) {
				require.True(t, m.Generation != 1 || m.Batches < applied, "no checkpoint of the zombie is listed")
			}
		}
		w.requeue()
		w.finish(successor)
	})
}

// The same while the zombie reaches etcd, but between its claim's end and the
// moment at which it hears of it: its save is refused, whatever it holds.
func TestCheckpointOfASupersededOwnerIsRefused(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		old := w.start("pserver-0")
		w.serving(old)
		w.until(1)
		var successor *process
		took := make(chan struct{})
		w.disk.SetHook(func(op, name string) error {
			if op == "rename" && successor == nil { // the old owner is about to list its first save
				w.disk.SetHook(nil)
				old.client.Partition(true)
				successor = w.start("pserver-0", func(c *pserver.Config) { c.Takeover = true })
				w.serving(successor)
				old.client.Partition(false)
				close(took)
			}
			return nil
		})
		<-took
		require.Equal(t, int(job.ExitSuperseded), old.exitCode())
		for shard := range shards {
			for _, m := range w.metas(shard) {
				require.NotEqualValues(t, 1, m.Generation)
			}
		}
		w.finish(successor)
		for _, name := range w.disk.Names() {
			require.NotContains(t, name, "-0000000001-", "what the old owner left is collected")
		}
	})
}

// TestChaos kills, partitions and stops pservers at random moments, many times
// over, and corrupts a newest checkpoint now and then. Whatever happens, at the
// end every batch has changed every shard exactly once.
func TestChaos(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inWorld(t, options{passes: 3, interval: 2 * time.Second}, func(_ *testing.T, w *world) { chaos(w, seed) })
		})
	}
}

func chaos(w *world, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	w.slow = 100 * time.Millisecond
	ps := []*process{w.start("pserver-0"), w.start("pserver-1")}
	w.serving(ps...)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Minute)
	defer cancel()
	waits := []func(){w.train(ctx, "trainer-0"), w.train(ctx, "trainer-1"), w.steward(ctx)}
	for range 10 {
		time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		if w.state().Phase != etcdqueue.PhaseTraining {
			break
		}
		i := r.IntN(len(ps))
		p := ps[i]
		switch r.IntN(5) {
		case 0:
			_ = p.stop()
		case 1:
			p.client.Partition(true)
			time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
			p.client.Partition(false)
			continue
		case 2: // a zombie: the successor comes while it lives
			p.client.Partition(true)
			ps[i] = w.start(p.name, func(c *pserver.Config) { c.Takeover = true })
			time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
			p.client.Partition(false)
			<-p.done
			continue
		case 3: // and what it wrote last is broken
			own := p.owns()
			p.kill()
			for _, shard := range own {
				if metas := w.metas(shard); len(metas) == 2 {
					w.disk.Corrupt(filepath.Join("/"+dir, metas[0].Path), func(b []byte) []byte { return b[:len(b)-1] })
				}
			}
		default:
			p.kill()
		}
		ps[i] = w.start(p.name)
	}
	for _, p := range ps {
		select {
		case <-p.done:
		case <-ctx.Done():
			require.FailNow(w.t, "the job does not end", "%+v\n%+v", p.Status(), w.state())
		}
		require.NoError(w.t, p.err)
	}
	for _, wait := range waits {
		wait()
	}
	require.Equal(w.t, etcdqueue.PhaseComplete, w.state().Phase)
	w.checkCounts()
}

// Whatever flags a pserver is started with, the state of one that was killed
// comes back: no flag is a way around it.
func TestRecoveryWithEveryFlag(t *testing.T) {
	t.Parallel()
	for _, mode := range []pserver.Recovery{"", pserver.RecoveryAuto, pserver.RecoveryAlways, pserver.RecoveryNever} {
		for flags := range 4 {
			takeover, reinit := flags&1 > 0, flags&2 > 0
			t.Run(fmt.Sprintf("recovery %q, takeover %v, allow-reinit %v", mode, takeover, reinit), func(t *testing.T) {
				t.Parallel()
				inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
					flags := func(c *pserver.Config) { c.Recovery, c.Takeover, c.AllowReinit = mode, takeover, reinit }
					p := w.start("pserver-0", flags)
					w.serving(p)
					w.until(3)
					w.eventually("a checkpoint", func() bool {
						return len(w.metas(0)) > 0 && w.metas(0)[0].Batches >= 3*batches
					})
					p.kill()
					p = w.start("pserver-0", flags)
					w.serving(p)
					require.GreaterOrEqual(t, p.Status().Shards[0].Batches, int64(3*batches), "loaded")
					w.finish(p)
				})
			})
		}
	}
}
