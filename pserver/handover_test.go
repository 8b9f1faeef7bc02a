package pserver_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/pserver"
)

// training lets a trainer and the steward work until the end of the job.
func (w *world) training() (end func(ps ...*process)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Minute)
	waits := []func(){w.train(ctx, "trainer-0"), w.steward(ctx)}
	return func(ps ...*process) {
		w.t.Helper()
		defer cancel()
		for _, p := range ps {
			select {
			case <-p.done:
			case <-ctx.Done():
				require.FailNow(w.t, "the job does not end", "%+v\n%+v", p.Status(), w.state())
			}
			require.NoError(w.t, p.err, p.name)
		}
		for _, wait := range waits {
			wait()
		}
		require.Equal(w.t, etcdqueue.PhaseComplete, w.state().Phase)
		w.checkCounts()
	}
}

// nothingLost requires that no shard had to be trained again.
func (w *world) nothingLost(ps ...*process) {
	w.t.Helper()
	sum, _, err := w.queue.Totals(w.t.Context())
	require.NoError(w.t, err)
	require.Zero(w.t, sum.Reopened)
	for _, p := range ps {
		for _, s := range p.Status().Shards {
			require.Zero(w.t, s.Replayed, "shard %d", s.Shard)
		}
	}
}

// balanced waits until each pserver serves so many shards.
func (w *world) balanced(want int, ps ...*process) {
	w.t.Helper()
	w.eventually("the shards are balanced", func() bool {
		for _, p := range ps {
			if len(p.owns()) != want {
				return false
			}
		}
		return true
	})
}

// Pservers 1, 3, 1 in the middle of a job: each one that comes gets its share,
// each one that leaves hands it over, and nothing is trained again.
func TestPserversComeAndGo(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 8}, func(t *testing.T, w *world) {
		w.slow = 100 * time.Millisecond
		a := w.start("pserver-0")
		w.serving(a)
		end := w.training()
		time.Sleep(4500 * time.Millisecond) // far from an interval save
		b, c := w.start("pserver-1"), w.start("pserver-2")
		w.balanced(1, a, b, c)
		w.completed.Store(0)
		w.eventually("they work together", func() bool { return w.completed.Load() > 2 })
		for _, p := range []*process{b, c} {
			s := p.Status().Shards[0]
			require.EqualValues(t, 1, s.HandOvers)
			require.EqualValues(t, 2, s.Generation)
			require.Less(t, s.HandOverSeconds, 0.1)
		}

		require.NoError(t, b.stop())
		w.serving(a, c)
		require.NoError(t, a.stop())
		w.serving(c)
		w.nothingLost(c)
		require.Equal(t, etcdqueue.PhaseTraining, w.state().Phase)
		end(c)
		w.nothingLost(c)
		for shard, o := range w.view().Shards {
			require.Equal(t, o.Generation, o.HandOvers+1, "shard %d was never free", shard)
		}
	})
}

// A pserver leaves while the others go on: its shards have owners at once, not
// when somebody has noticed.
func TestLeavingHandsOver(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 2}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		w.until(3)
		given := a.owns()
		require.NotEmpty(t, given)
		require.NoError(t, a.stop())
		v := w.view()
		for _, shard := range given {
			require.Equal(t, "pserver-1", v.Shards[shard].Name)
			require.Equal(t, "pserver-0", v.Shards[shard].From)
			require.EqualValues(t, 2, v.Shards[shard].Generation)
		}
		w.serving(b)
		w.finish(b)
		w.nothingLost(b)
	})
}

// All of them stop at once, or one after the other within the time that a stop
// takes: none is given what it cannot keep, and whoever comes next finds all.
func TestAllLeaveAtOnce(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 3}, func(t *testing.T, w *world) {
		ps := []*process{w.start("pserver-0"), w.start("pserver-1"), w.start("pserver-2")}
		w.serving(ps...)
		w.until(3)
		w.disk.SetHook(func(op, _ string) error {
			if op == "sync" {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		for _, p := range ps {
			p.cancel()
			time.Sleep(30 * time.Millisecond)
		}
		for _, p := range ps {
			require.Zero(t, p.exitCode())
		}
		w.disk.SetHook(nil)
		for shard, o := range w.view().Shards {
			require.False(t, o.Owned(), "shard %d", shard)
			require.EqualValues(t, 1, o.Generation, "it was given to nobody")
		}
		next := w.start("pserver-9")
		w.serving(next)
		w.finish(next)
		w.nothingLost(next)
	})
}

// A pserver that is silent, though its lease has not ended, gets nothing from
// one that leaves, nor from one that is richer, and costs no pause.
func TestNothingIsHandedToTheSilent(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 2, passes: 3}, func(t *testing.T, w *world) {
		a, b := w.start("pserver-0"), w.start("pserver-1")
		w.serving(a, b)
		c := w.start("pserver-2")
		w.net.Silence(c.host, true)
		w.until(3)
		time.Sleep(5 * time.Second)
		for _, p := range []*process{a, b} {
			for _, s := range p.Status().Shards {
				require.True(t, s.Serving)
				require.EqualValues(t, 1, s.Generation)
			}
		}
		require.NoError(t, a.stop())
		for _, o := range w.view().Shards {
			require.Equal(t, "pserver-1", o.Name)
		}
		w.net.Silence(c.host, false)
		w.finish(b, c)
	})
}

// A hand-over that came to nothing, because its receiver is silent, holds up
// nobody who comes later.
func TestTheSilentHoldUpNobody(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 3}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		silent := w.start("pserver-9")
		w.net.Silence(silent.host, true)
		time.Sleep(calm + time.Second) // it was asked by now
		b := w.start("pserver-1")
		synctest.Wait()
		came := time.Now()
		w.balanced(1, b)
		require.Less(t, time.Since(came), 2*calm)
		w.net.Silence(silent.host, false)
		w.finish(a, b, silent)
	})
}

// calm is how long no pserver must have come or gone before a shard moves.
const calm = time.Second

// strikes are what may happen at each step of a hand-over from a to b. At is
// asked with every step, of which the names are those of requests and of
// operations on files; it returns the step's error.
type strike struct {
	name string
	// at is the step, done whether it has been done by then.
	at   string
	done bool
	act  func(w *world, a, b *process) error
}

func strikes() []strike {
	killGiver := func(_ *world, a, _ *process) error { a.kill(); return errDead }
	killReceiver := func(_ *world, _, b *process) error { b.kill(); return nil }
	leaves := func(_ *world, _, b *process) error { b.cancel(); return nil }
	lost := func(*world, *process, *process) error { return errors.New("no answer") }
	isolated := func(w *world, a, _ *process) error {
		a.client.Partition(true)
		time.AfterFunc(4*time.Second, func() { a.client.Partition(false) })
		return errors.New("no answer")
	}
	var all []strike
	for _, s := range []strike{
		{at: "create"}, {at: "rename"}, {at: "checkpoints"}, {at: "checkpoints", done: true}, {at: "owners"}, {at: "owners", done: true},
	} {
		for name, act := range map[string]func(*world, *process, *process) error{
			"the giver dies": killGiver, "the receiver dies": killReceiver, "the receiver leaves": leaves,
			"no answer": lost, "the giver loses its lease": isolated,
		} {
			when := map[bool]string{false: " before ", true: " after "}[s.done]
			all = append(all, strike{name: name + when + s.at, at: s.at, done: s.done, act: act})
		}
	}
	return all
}

// arm makes a strike happen once, in a's first hand-over.
func (w *world) arm(s strike, a *process, receiver func() *process) (happened func() bool) {
	var mu sync.Mutex
	struck := false
	step := func(name string, done bool) error {
		giving := false
		for _, shard := range a.Status().Shards {
			giving = giving || strings.HasPrefix(shard.Doing, "handing")
		}
		mu.Lock()
		now := giving && !struck && name == s.at && done == s.done
		struck = struck || now
		mu.Unlock()
		if !now {
			return nil
		}
		return s.act(w, a, receiver())
	}
	request := func(done bool) func(op, key string) error {
		return func(op, key string) error {
			name, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
			if op != "put" {
				return nil
			}
			return step(name, done)
		}
	}
	a.client.Fail(request(false))
	a.client.FailAfter(request(true))
	w.disk.SetHook(func(op, name string) error {
		if !strings.HasPrefix(filepath.Base(name), "JOB") {
			return step(op, false)
		}
		return nil
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return struck
	}
}

// Somebody dies, leaves, or hears nothing at each step of a hand-over: the job
// goes on, and each batch has changed each shard once.
func TestStrikesAtAHandOver(t *testing.T) {
	t.Parallel()
	for _, s := range strikes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, options{pservers: 1, passes: 4}, func(t *testing.T, w *world) {
				w.slow = 100 * time.Millisecond
				a := w.start("pserver-0")
				w.serving(a)
				end := w.training()
				w.eventually("every shard is listed", func() bool {
					for shard := range shards {
						if len(w.metas(shard)) == 0 {
							return false
						}
					}
					return true
				})
				var b *process
				happened := w.arm(s, a, func() *process { return b })
				b = w.start("pserver-1")
				w.eventually("it strikes", happened)
				a.client.FailAfter(nil)
				// One of them may be gone: a third one makes the job end anyhow, and
				// each ends as its fate is.
				c := w.start("pserver-2")
				w.eventually("every shard is served", func() bool {
					var n int
					for _, p := range []*process{a, b, c} {
						n += len(p.owns())
					}
					return n == shards
				})
				end(c)
			})
		})
	}
}

// From the cut of a hand-over's save on the giver acknowledges nothing, also if
// it does not hear that the shard is somebody else's.
func TestTheGiverIsSilentFromTheCutOn(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		task := w.take("trainer-z")
		session, err := task.client.Connect(t.Context())
		require.NoError(t, err)
		defer session.Close()
		require.NoError(t, task.push(t.Context(), session, task.task, 0))
		task.routes.Partition(true)
		happened := w.arm(strike{at: "owners", done: true, act: func(_ *world, a, _ *process) error {
			a.client.Partition(true)
			return errors.New("no answer")
		}}, a, func() *process { return nil })
		time.Sleep(5 * time.Second) // the first checkpoints
		b := w.start("pserver-1")
		w.eventually("handed over", happened)
		w.balanced(1, b)
		moved := b.owns()[0]
		require.Less(t, len(a.owns()), shards)
		require.NotContains(t, a.owns(), moved)
		was := b.Status().Shards[0].Batches
		require.EqualValues(t, 1, was, "what was acknowledged is there")
		require.Error(t, task.push(t.Context(), session, task.task, 1), "the giver refuses")
		for _, s := range a.Status().Shards {
			if s.Shard == moved {
				require.EqualValues(t, 1, s.Batches, "and has not applied it")
			}
		}
		session.Close()
		a.client.FailAfter(nil)
		a.client.Partition(false)
		task.routes.Partition(false)
		w.requeue()
		w.finish(a, b)
	})
}

// The disk is full when a shard is to be handed over: it is served on, and
// handed over later.
func TestAHandOverThatCannotBeSaved(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 5}, func(t *testing.T, w *world) {
		w.slow = 200 * time.Millisecond
		a := w.start("pserver-0")
		w.serving(a)
		end := w.training()
		time.Sleep(1100 * time.Millisecond)
		failed := w.arm(strike{at: "create", act: func(*world, *process, *process) error { return errors.New("disk full") }},
			a, func() *process { return nil })
		b := w.start("pserver-1")
		w.eventually("it fails", failed)
		synctest.Wait()
		require.Len(t, a.owns(), shards)
		w.balanced(1, b)
		end(a, b)
		w.nothingLost(a, b)
	})
}

// While pservers come and go nothing is handed over for balance, and nothing
// when the job drains.
func TestNoHandOverInAHurry(t *testing.T) {
	t.Parallel()
	inWorld(t, options{pservers: 1, passes: 3}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		b := w.start("pserver-1")
		for range 8 {
			time.Sleep(900 * time.Millisecond)
			require.Len(t, a.owns(), shards)
			require.NoError(t, b.stop())
			b = w.start("pserver-1")
		}
		w.balanced(1, b)
	})
	inWorld(t, options{pservers: 1}, func(t *testing.T, w *world) {
		a := w.start("pserver-0")
		w.serving(a)
		w.until(chunks)
		_, err := w.queue.Turn(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, etcdqueue.PhaseDraining, w.state().Phase)
		b := w.start("pserver-1", func(*pserver.Config) {})
		time.Sleep(5 * time.Second)
		require.Len(t, a.owns(), shards)
		w.finish(a, b)
	})
}
