package pserver_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
)

// The newest checkpoint is broken: the one before loads, the broken one leaves
// the list, its file is kept, and the rest is replayed.
func TestFallBackToTheOneBefore(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 2}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(2)
		w.eventually("a checkpoint", func() bool { return len(w.metas(0)) == 1 })
		w.until(4)
		w.eventually("another", func() bool { return len(w.metas(0)) == 2 })
		bad := w.metas(0)[0]
		p.kill()
		w.disk.Corrupt(filepath.Join("/"+dir, bad.Path), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		p = w.start("pserver-0")
		w.serving(p)
		for _, m := range w.metas(0) {
			require.NotEqual(t, bad.UUID, m.UUID)
		}
		require.Contains(t, w.disk.Names(), filepath.Join("/"+dir, bad.Path)+".bad")
		w.finish(p)
	})
}

// loseCheckpoints leaves a job whose shard 0 has no checkpoint that loads.
func loseCheckpoints(w *world) {
	p := w.start("pserver-0")
	w.serving(p)
	w.until(3)
	require.NoError(w.t, p.stop())
	for _, m := range w.metas(0) {
		require.NoError(w.t, w.disk.Remove(filepath.Join("/"+dir, m.Path)))
	}
}

func TestNoCheckpointLoads(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		loseCheckpoints(w)
		p := w.start("pserver-0")
		require.Equal(t, int(job.ExitStateLost), p.exitCode())
		for _, m := range w.metas(0) {
			require.ErrorContains(t, p.err, m.Path, "it says what is missing")
		}
		require.NotEmpty(t, w.metas(0), "nothing is dropped")

		p = w.start("pserver-0", func(c *pserver.Config) { c.AllowReinit = true })
		w.serving(p)
		w.finish(p)
	})
}

// The shard is marked as listed, and the list is empty: somebody has lost it.
func TestNoCheckpointLoadsForNoneIsListed(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		loseCheckpoints(w)
		_, err := w.client("test").Txn(t.Context(), store.Txn{Then: []store.Op{
			store.DeleteRange("checkpoints/0000/", store.PrefixEnd("checkpoints/0000/"))}})
		require.NoError(t, err)
		p := w.start("pserver-0")
		require.Equal(t, int(job.ExitStateLost), p.exitCode())
		require.ErrorContains(t, p.err, "shard 0")
		p = w.start("pserver-0", func(c *pserver.Config) { c.AllowReinit = true })
		w.serving(p)
		w.finish(p)
	})
}

func TestDirectoryIsGone(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		loseCheckpoints(w)
		for _, name := range w.disk.Names() {
			require.NoError(t, w.disk.Remove(name))
		}
		p := w.start("pserver-0")
		require.Equal(t, int(job.ExitStateLost), p.exitCode())
		require.ErrorContains(t, p.err, "/"+dir)
		v := w.view()
		require.EqualValues(t, 1, v.Shards[0].Generation, "it has claimed nothing")
	})
}

// belowTheFloor is a job whose first lanes are removed, and whose checkpoints
// are gone.
func (w *world) belowTheFloor(t *testing.T) {
	t.Helper()
	p := w.start("pserver-0")
	w.serving(p)
	w.slow = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	wait, waitSteward := w.train(ctx, "trainer-a"), w.steward(ctx)
	w.eventually("lanes are removed", func() bool { return w.state().Floor > 0 })
	cancel()
	wait()
	waitSteward()
	require.NoError(t, p.stop())
	for _, m := range w.metas(1) {
		require.NoError(t, w.disk.Remove(filepath.Join("/"+dir, m.Path)))
	}
}

// ends lets the job be trained to its end.
func (w *world) ends(t *testing.T, p *process) {
	t.Helper()
	w.requeue()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait, waitSteward := w.train(ctx, "trainer-b"), w.steward(ctx)
	require.Zero(t, p.exitCode())
	wait()
	waitSteward()
	require.Equal(t, etcdqueue.PhaseComplete, w.state().Phase)
}

// lostBelowTheFloor checks the account of a job of which shard 1 has begun anew
// when the lanes of the passes below floor were gone: it lacks their batches,
// and no others, and says so.
func (w *world) lostBelowTheFloor(t *testing.T, floor int) {
	t.Helper()
	totals, _, err := w.openQueue("auditor").Totals(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, w.passes*chunks*batches, totals.Batches)
	for shard := range shards {
		lost := int64(0)
		if shard == 1 {
			lost = int64(floor * chunks * batches)
		}
		sum := w.load(shard).Stats().Total
		require.Equal(t, lost, sum.Lost, "shard %d", shard)
		require.Zero(t, sum.Skipped)
		require.Equal(t, totals.Batches, sum.Batches+sum.Skipped+sum.Lost, "shard %d", shard)
		require.Equal(t, records*sum.Batches, sum.Records, "shard %d", shard)
	}
}

func allowReinit(c *pserver.Config) { c.AllowReinit = true }

// Begun anew when the lanes of a pass are gone already: that pass stays lost on
// the shard, which counts its batches as lost, and the job still ends.
func TestReinitBelowTheFloor(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 3, interval: time.Second}, func(t *testing.T, w *world) {
		w.belowTheFloor(t)
		floor := w.state().Floor
		p := w.start("pserver-0", allowReinit)
		w.serving(p)
		w.ends(t, p)
		w.lostBelowTheFloor(t, floor)
	})
}

// The same, and before the shard could be compared with the queue the lease is
// lost, or the process is stopped: that it began anew is not forgotten.
func TestReinitIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, stopped := range map[string]bool{"lease lost": false, "stopped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, options{pservers: 1, passes: 3, interval: time.Second}, func(t *testing.T, w *world) {
				w.belowTheFloor(t)
				floor := w.state().Floor
				p := w.start("pserver-0", allowReinit)
				p.client.Fail(func(op, key string) error {
					if op == "range" && strings.Contains(key, "/queue/") {
						return errors.New("no answer")
					}
					return nil
				})
				w.serving(p)
				time.Sleep(3 * time.Second)
				if stopped {
					require.NoError(t, p.stop())
					require.Equal(t, int(job.ExitStateLost), w.start("pserver-0").exitCode(), "it is still without its state")
					p = w.start("pserver-0", allowReinit)
				} else {
					was := p.Status().Shards[0].Generation
					w.store.ExpireAll()
					w.eventually("it is back", func() bool { return p.Status().Shards[0].Generation > was && len(p.owns()) > 0 })
					p.client.Fail(nil)
				}
				w.serving(p)
				w.ends(t, p)
				w.lostBelowTheFloor(t, floor)
			})
		})
	}
}
