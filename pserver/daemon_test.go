package pserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/client"
)

func TestJobFromStartToEnd(t *testing.T) {
	t.Parallel()
	inWorld(t, options{passes: 2}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		require.NotEmpty(t, a.owns())
		require.NotEmpty(t, b.owns(), "the shards are shared out")
		w.finish(a, b)
		late := w.start("pserver-2")
		require.Zero(t, late.exitCode(), "a process that comes when all is over leaves at once")
	})
}

// Passes that every listed checkpoint covers lose their lanes, and the job ends
// all the same.
func TestLanesAreRemovedOnTheWay(t *testing.T) {
	t.Parallel()
	inWorld(t, options{passes: 4, interval: time.Second}, func(t *testing.T, w *world) {
		w.slow = 100 * time.Millisecond
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.finish(a, b)
		require.Positive(t, w.state().Floor)
	})
}

// A pserver waits for the others that are meant to come, but not for ever.
func TestStartWithoutTheOthers(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 5}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, p.owns())
		require.Contains(t, p.Status().Waiting, "1 of 5")
		w.serving(p)
	})
}

func TestWaitsForTheJob(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		p := w.start("pserver-0", func(c *pserver.Config) { c.Store = store.Prefixed(w.store, "/starfish/other/") })
		time.Sleep(time.Minute)
		require.Contains(t, p.Status().Waiting, "job")
		require.Error(t, p.Ready())
		require.NoError(t, p.stop(), "it can be stopped while it waits")
	})
}

func TestCreateIsAsked(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		differs := job.Exitf(job.ExitUsage, "another spec")
		p := w.start("pserver-0", func(c *pserver.Config) { c.Create = func(context.Context) error { return differs } })
		require.Equal(t, int(job.ExitUsage), p.exitCode())

		left := 3
		p = w.start("pserver-1", func(c *pserver.Config) {
			c.Create = func(context.Context) error {
				if left--; left > 0 {
					return fmt.Errorf("create: %w", job.ErrUnanswered)
				}
				return nil
			}
		})
		w.serving(p)
		require.Zero(t, left, "what the store has not answered is repeated")
	})
}

func TestJobHasFailedAlready(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		require.NoError(t, w.queue.Finish(t.Context(), etcdqueue.PhaseFailed, "because", nil))
		require.Equal(t, int(job.ExitFailure), p.exitCode())
		require.ErrorContains(t, p.err, "because")
		require.Equal(t, int(job.ExitFailure), w.start("pserver-0").exitCode())
	})
}

// A deleted job is not waited for, and nothing is written for it any more.
func TestJobIsDeleted(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		_, err := w.store.Txn(t.Context(), store.Txn{Then: []store.Op{store.DeleteRange(prefix, store.PrefixEnd(prefix))}})
		require.NoError(t, err)
		require.Equal(t, int(job.ExitFailure), p.exitCode())
		time.Sleep(time.Minute)
		kvs, _, err := store.List(t.Context(), w.store, prefix, store.PrefixEnd(prefix))
		require.NoError(t, err)
		require.Empty(t, kvs)
	})
}

func TestNameInUse(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		first := w.start("pserver-0")
		w.serving(first)
		second := w.start("pserver-0")
		require.Equal(t, int(job.ExitUsage), second.exitCode())
		require.Len(t, first.owns(), shards)
		third := w.start("pserver-0", func(c *pserver.Config) { c.Takeover = true })
		require.Equal(t, int(job.ExitSuperseded), first.exitCode())
		w.serving(third)
	})
}

func TestDirectoryOfAnotherJob(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		require.NoError(t, checkpoint.Mark(w.disk, "/"+dir, uuid.New()))
		p := w.start("pserver-0")
		require.Equal(t, int(job.ExitUsage), p.exitCode())
		require.ErrorContains(t, p.err, "another job")
		require.Zero(t, w.view().Shards[0].Generation, "it has claimed nothing")
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := pserver.New(pserver.Config{Recovery: "sometimes", Drain: -1})
	require.Equal(t, int(job.ExitUsage), job.ExitCode(err))
	for _, what := range []string{"Store", "name", "sometimes", "drain"} {
		require.ErrorContains(t, err, what)
	}
}

// An update that makes a weight infinite ends the job for everybody.
func TestDiverged(t *testing.T) {
	t.Parallel()
	inWorld(t, options{}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		h := w.take("trainer-0")
		s, err := h.client.Connect(t.Context())
		require.NoError(t, err)
		defer s.Close()
		for n := range int64(2) {
			h.batch.Prepare([][]uint64{nil})
			h.batch.DenseGrad[0][0] = -math.MaxFloat32
			c, err := s.Exchange(t.Context(), h.batch, client.PushMeta{Pass: 0, Rank: h.task.Rank, N: n, Token: 9, Records: 1}, nil)
			require.NoError(t, err)
			err = c.Wait(t.Context())
			var fault *client.FaultError
			if n == 1 {
				require.ErrorAs(t, err, &fault)
				require.Equal(t, wire.Failed, fault.Code)
			}
		}
		require.Equal(t, int(job.ExitFailure), a.exitCode())
		require.Equal(t, int(job.ExitFailure), b.exitCode())
		require.Equal(t, etcdqueue.PhaseFailed, w.state().Phase)
		require.Contains(t, w.state().Reason, `parameter "total"`)
	})
}

// A shard is saved 4, 8, 16 … seconds after the save before, up to the
// interval, as long as it changes.
func TestRhythmOfSaves(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 100, interval: 10 * time.Second}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		began := time.Now()
		var at []float64
		w.disk.SetHook(func(op, name string) error {
			if op == "rename" && strings.Contains(name, "/0000-") {
				at = append(at, math.Round(time.Since(began).Seconds()*10)/10)
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		waits := []func(){w.train(ctx, "trainer-0"), w.steward(ctx)}
		time.Sleep(36 * time.Second)
		cancel()
		for _, wait := range waits {
			wait()
		}
		w.disk.SetHook(nil)
		require.Equal(t, []float64{4, 12, 22, 32}, at)
		require.Len(t, w.metas(0), 2, "as many as are to be kept")
		time.Sleep(11 * time.Second)
		newest := w.metas(0)[0].UUID
		time.Sleep(time.Minute)
		require.Equal(t, newest, w.metas(0)[0].UUID, "what does not change is not saved again")
	})
}

// On a disk that is slower than the rhythm saves are left out, never stacked.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 100, interval: 2 * time.Second}, func(t *testing.T, w *world) {
		registry := prometheus.NewRegistry()
		p := w.start("pserver-0", func(c *pserver.Config) { c.Registerer = registry })
		w.serving(p)
		saving := map[string]int{}
		w.disk.SetHook(func(op, name string) error {
			if !strings.HasSuffix(name, ".tmp") {
				return nil
			}
			shard := name[:len("/checkpoints/0000")]
			switch op {
			case "create":
				saving[shard]++
				if saving[shard] > 1 {
					return errors.New("two saves of one shard at once")
				}
			case "sync":
				time.Sleep(7 * time.Second)
			case "close":
				saving[shard]--
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		waits := []func(){w.train(ctx, "trainer-0"), w.steward(ctx)}
		time.Sleep(30 * time.Second)
		cancel()
		for _, wait := range waits {
			wait()
		}
		for _, s := range p.Status().Shards {
			require.Empty(t, s.CheckpointError)
			require.NotNil(t, s.Checkpoint)
		}
		require.Positive(t, value(t, registry, "starfish_pserver_checkpoints_skipped_total"))
		w.disk.SetHook(nil)
	})
}

// A full disk costs checkpoints and nothing else; when there is room again the
// next one is written, and nothing was left behind.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, interval: time.Second}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.disk.SetHook(func(op, name string) error {
			if op == "write" {
				return errors.New("no space left on device")
			}
			return nil
		})
		w.until(2)
		time.Sleep(5 * time.Second)
		require.Contains(t, p.Status().Shards[0].CheckpointError, "no space left")
		require.Empty(t, w.metas(0))
		w.disk.SetHook(nil)
		w.eventually("a checkpoint", func() bool { return len(w.metas(0)) > 0 })
		require.Empty(t, p.Status().Shards[0].CheckpointError)
		for _, name := range w.disk.Names() {
			require.NotContains(t, name, ".tmp")
		}
		w.finish(p)
	})
}

// Nor does it hold up an orderly stop: the successor replays.
func TestStopOnAFullDisk(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		p := w.start("pserver-0")
		w.serving(p)
		w.until(2)
		w.disk.SetHook(func(op, _ string) error {
			if op == "write" {
				return errors.New("no space left on device")
			}
			return nil
		})
		began := time.Now()
		require.NoError(t, p.stop())
		require.Less(t, time.Since(began), 3*time.Second)
		w.disk.SetHook(nil)
		next := w.start("pserver-0")
		w.serving(next)
		w.finish(next)
	})
}

func TestStatusAndMetrics(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		registry := prometheus.NewRegistry()
		p := w.start("pserver-0", func(c *pserver.Config) { c.Registerer = registry })
		w.serving(p)
		require.NoError(t, p.Ready())
		w.until(2)
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		text, err := json.Marshal(p.Status())
		require.NoError(t, err)
		for _, field := range []string{"generation", "batches", "skipped", "duplicates", "lost", "replayed", "checkpoint_age_seconds", "waiting", "doing"} {
			if field != "waiting" { // nothing to wait for
				require.Contains(t, string(text), `"`+field+`"`)
			}
		}
		st := p.Status()
		require.Len(t, st.Shards, shards)
		require.Equal(t, "test", st.Job)
		require.Equal(t, etcdqueue.PhaseTraining, st.Phase)
		require.NotNil(t, st.Shards[0].CheckpointAge)
		require.InDelta(t, st.Shards[0].Batches, value(t, registry, "starfish_pserver_shard_batches"), 0)
		require.Positive(t, value(t, registry, "starfish_pserver_answers_total"))
		require.NoError(t, p.stop())
		require.Error(t, p.Ready())
	})
}

// value is the first sample of a metric.
func value(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		var sum float64
		for _, m := range f.GetMetric() {
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if m.GetCounter() == nil {
				return v
			}
			sum += v
		}
		return sum
	}
	require.Fail(t, fmt.Sprintf("no metric %s", name))
	return 0
}
