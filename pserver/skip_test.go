package pserver_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// Under policy skip.

// trained lets the job be trained to its end by a new trainer.
func (w *world) trained(t *testing.T, ps ...*process) {
	t.Helper()
	w.requeue()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	waits := []func(){w.train(ctx, "trainer-z"), w.steward(ctx)}
	for _, p := range ps {
		require.Zero(t, p.exitCode(), p.name)
	}
	for _, wait := range waits {
		wait()
	}
}

// accounted checks the sums of each shard, and gives what each has lost.
func (w *world) accounted(t *testing.T) (lost []int64) {
	t.Helper()
	totals, _, err := w.openQueue("auditor").Totals(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, w.passes*chunks*batches, totals.Batches)
	require.Zero(t, totals.Reopened)
	for shard := range shards {
		st := w.load(shard).Stats()
		sum := st.Total
		require.Zero(t, sum.Skipped)
		require.Equal(t, totals.Batches, sum.Batches+sum.Lost, "shard %d", shard)
		require.Equal(t, records*sum.Batches, sum.Records, "shard %d", shard)
		require.Equal(t, sum.Lost > 0, st.Summary.Losses > 0, "shard %d", shard)
		lost = append(lost, sum.Lost)
	}
	return lost
}

// A pserver is killed again and again, when some of what it has applied is in no
// checkpoint. Its successor goes on without, says at once how much that is, and
// nothing is trained again.
func TestSkipGivesUpWhatWasNotSaved(t *testing.T) {
	t.Parallel()
	inWorld(t, options{passes: 3, policy: job.PolicySkip}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(2)
		time.Sleep(1100 * time.Millisecond) // the first checkpoints
		had := a.owns()
		for i := range int64(3) {
			w.until(3 + i)
			totals, _, err := w.queue.Totals(t.Context())
			require.NoError(t, err)
			require.Positive(t, totals.Todo, "the pass goes on")
			a.kill()
			a = w.start("pserver-0")
			w.serving(a, b)
			require.Equal(t, had, a.owns())
			w.eventually("the loss is counted", func() bool {
				for _, s := range a.Status().Shards {
					if s.Lost == 0 || s.Losses == 0 || s.Batches+s.Lost < totals.Batches {
						return false
					}
				}
				return true
			})
		}
		w.trained(t, a, b)
		for shard, lost := range w.accounted(t) {
			require.Equal(t, slices.Contains(had, shard), lost > 0, "shard %d has lost %d", shard, lost)
		}
	})
}

// Nothing was ever listed: the shard begins anew, and all is lost that was
// complete by then.
func TestSkipBeforeTheFirstCheckpoint(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, policy: job.PolicySkip}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(2)
		require.Empty(t, w.metas(0), "the test must be quicker than the first checkpoint")
		totals, _, err := w.queue.Totals(t.Context())
		require.NoError(t, err)
		p.kill()
		p = w.start("pserver-0")
		w.serving(p)
		w.trained(t, p)
		for shard, lost := range w.accounted(t) {
			require.Equal(t, totals.Batches, lost, "shard %d", shard)
		}
	})
}

// A shard that begins anew although there had been checkpoints has lost what was
// complete: the passes whose lanes are gone, and the others.
func TestSkipAndReinit(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 3, interval: time.Second, policy: job.PolicySkip}, func(t *testing.T, w *world) {
		w.belowTheFloor(t)
		require.Positive(t, w.state().Floor)
		totals, _, err := w.queue.Totals(t.Context())
		require.NoError(t, err)
		p := w.start("pserver-0", allowReinit)
		w.serving(p)
		w.ends(t, p)
		for shard, lost := range w.accounted(t) {
			if shard == 1 {
				require.Equal(t, totals.Batches, lost)
			} else {
				require.Zero(t, lost, "shard %d", shard)
			}
		}
	})
}

// What the ledger keeps for its reckoning does not grow with the pass: it is
// reckoned before each save.
func TestSkipReckonsBeforeItSaves(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, interval: time.Second, policy: job.PolicySkip}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(chunks - 1)
		had := p.Status().Shards
		w.eventually("a save", func() bool {
			ms := w.metas(shards - 1)
			return len(ms) > 0 && ms[0].Batches == had[shards-1].Batches
		})
		for shard := range shards {
			require.Zero(t, w.load(shard).Unreckoned(), "shard %d: every chunk that it has finished is complete", shard)
		}
		w.trained(t, p)
		w.accounted(t)
	})
}
