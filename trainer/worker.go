package trainer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/failpoint"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/data"
	"starfish/trainer/model"
)

// worker trains under one registration: round after round, until the job is
// done. Its hand survives the rounds.
type worker struct {
	st    store.Store // the job's
	clock clock.Clock
	log   logrus.FieldLogger
	job   job.Job
	plan  *reader.Plan
	model model.Model // for training
	// evaluator is another one of the same: while it predicts, a chunk may be
	// reopened and be trained.
	evaluator model.Model
	pushOnly  bool
	// skip is the policy for what a restore has lost: no chunk in hand goes back.
	skip    bool
	queue   *etcdqueue.Queue
	client  *client.Client
	metrics *metrics
	hand    hand
	items   chan *item
	// member guards what only a registered trainer may write.
	member *membership.Member
	// stalled: the registration may say that the work has come to a stand. telling
	// holds a token while that is written.
	stalled atomic.Bool
	telling chan struct{}
	watcher *watcher
	// fixedTake is how many chunks a take asks for; 0: about a second's work.
	fixedTake int
	// full is the wait for memory, fullTold when it was logged.
	full     fullness
	fullTold remind.Reminder
	// step is the one of the next batch, in jobs with steps, turnTold when it was
	// logged whom one waits for; the pipeline's.
	step     int64
	turnTold remind.Reminder

	mu   sync.Mutex
	pace pace
	took time.Time // the first take
	late bool      // chunks were complete before it
}

// firstTake is when this worker took its first chunk; zero before it, and if the
// job was under way by then: how long the job takes cannot be told from it.
func (w *worker) firstTake() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late {
		return time.Time{}
	}
	return w.took
}

// take asks the queue for about a second's work. It is not cut short when ctx
// ends: a take that has committed by then must be known, so that it can be
// handed back.
func (w *worker) take(ctx context.Context) ([]etcdqueue.Task, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	tasks, err := w.queue.Take(ctx, w.takeSize())
	if err == nil {
		failpoint.Hit(failpoint.AfterTake)
		w.noteTake(ctx)
	}
	return tasks, err
}

// noteTake notes the first take, and whether the job was under way.
func (w *worker) noteTake(ctx context.Context) {
	w.mu.Lock()
	first := w.took.IsZero()
	if first {
		w.took = w.clock.Now()
	}
	w.mu.Unlock()
	if !first {
		return
	}
	done, _, err := w.queue.Progress(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = err != nil || done.Complete > 0
}

// run trains until the job is done (nil), has failed, or ctx ends.
func (w *worker) run(ctx context.Context) error {
	touching, stop := context.WithCancel(ctx)
	var touch sync.WaitGroup
	touch.Go(func() { w.touch(touching) })
	defer touch.Wait()
	defer stop()

	var trouble remind.Reminder
	for attempt := 0; ; attempt++ {
		before, _, _ := w.hand.progress()
		err := w.round(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx) // whatever the round ended with
		}
		if err == nil || !retryable(err) {
			return err
		}
		if full := isFull(err); full != nil {
			if err := w.awaitRoom(ctx, full); err != nil {
				return err
			}
			continue
		}
		w.full = fullness{}
		if after, _, _ := w.hand.progress(); after != before {
			attempt = 0
			trouble.Over(w.clock.Now())
		}
		w.metrics.repaired()
		level := logrus.DebugLevel
		if trouble.Due(w.clock.Now()) {
			level = logrus.WarnLevel
		}
		w.log.WithError(err).WithField("attempt", attempt).Log(level, "round ended, repairing")
		w.hand.wait(err.Error())
		if err := clock.Sleep(ctx, w.clock, backOff(attempt)); err != nil {
			return err
		}
	}
}

// errComplete ends everything that works for a job that is complete.
var errComplete = errors.New("the job is complete")

// awaitEnd waits until the job has ended, whatever the worker waits for: a
// shard whose owner has seen the end and left would be waited for in vain.
func (w *worker) awaitEnd(ctx context.Context) error {
	for state := range w.queue.WatchState(ctx) {
		switch state.Phase {
		case etcdqueue.PhaseComplete:
			return errComplete
		case etcdqueue.PhaseFailed:
			return &etcdqueue.ErrFailed{Reason: state.Reason}
		}
	}
	return context.Cause(ctx)
}

func (w *worker) round(ctx context.Context) error {
	session, err := w.client.Connect(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	w.hand.wait("")
	return newRound(w, session).run(ctx)
}

// retryable tells faults that a new round can repair from those that it cannot.
func retryable(err error) bool {
	var failed *etcdqueue.ErrFailed
	var exit *job.ExitError
	for _, fatal := range []error{
		reader.ErrData, store.ErrHistory, store.ErrInvalid, membership.ErrVersion,
		etcdqueue.ErrNoQueue, etcdqueue.ErrFormat, etcdqueue.ErrMismatch,
	} {
		if errors.Is(err, fatal) {
			return false
		}
	}
	return !errors.As(err, &failed) && !errors.As(err, &exit)
}

// backOff is 20 ms, doubled with every attempt up to 2 s, less up to half.
func backOff(attempt int) time.Duration {
	d := min(20*time.Millisecond<<min(attempt, 10), 2*time.Second)
	return d - rand.N(d/2) //nolint:gosec // jitter
}

// looksPerStall is how often in queue.stall_timeout the work is looked at.
const looksPerStall = 4

// touch proves progress of the work to the queue: it renews the chunks in hand
// when batches have moved since the last time, or while a named shard is waited
// for.
func (w *worker) touch(ctx context.Context) {
	var last int64
	still, told := 0, false // looks at which nothing had moved, one after the other
	for {
		if clock.Sleep(ctx, w.clock, w.job.Spec.Queue.StallTimeout/looksPerStall) != nil {
			return
		}
		moved, waiting, n := w.hand.progress()
		if n == 0 || moved == last && waiting == "" {
			if still++; n > 0 && still >= looksPerStall && w.stepped() && !told {
				told = w.tellStall(ctx)
			}
			continue
		}
		last, still, told = moved, 0, false
		reason := "progress"
		if waiting != "" {
			reason = waiting
		}
		var stale *etcdqueue.StaleError
		if err := w.queue.Touch(ctx, w.hand.tasks(), reason); err != nil && !errors.As(err, &stale) && ctx.Err() == nil {
			w.log.WithError(err).Warn("chunks in hand could not be touched")
		}
	}
}

// leave completes what is finished and hands the other chunks back: their
// finished batches are in the ledgers, the next taker resumes behind them.
func (w *worker) leave(ctx context.Context) error {
	if tasks := w.hand.tasks(); len(tasks) > 0 {
		if err := w.queue.Release(ctx, tasks); err != nil {
			return fmt.Errorf("hand chunks back: %w", err)
		}
		w.dropTasks(tasks)
	}
	return nil
}

func (w *worker) dropTasks(tasks []etcdqueue.Task) {
	gone := make(map[etcdqueue.Task]bool, len(tasks))
	for _, t := range tasks {
		gone[t] = true
	}
	w.hand.drop(func(t etcdqueue.Task) bool { return gone[t] })
}

func (w *worker) chunkDone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pace.chunk(w.clock)
}

// chunkTime is how long a chunk takes here; 0: not known yet.
func (w *worker) chunkTime() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pace.perChunk
}

// idled leaves the time without work out of the pace.
func (w *worker) idled() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pace.since = w.clock.Now()
}

func (w *worker) takeSize() int {
	if w.fixedTake > 0 {
		return w.fixedTake
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pace.take()
}

func (w *worker) readOptions(t etcdqueue.Task) reader.Options {
	spec := w.job.Spec
	o := data.Options(spec, w.model.Labels())
	o.Batch, o.MaxBad = spec.Train.Batch, spec.Data.MaxBadRecords
	o.Shuffle, o.Seed, o.Pass = spec.Train.Shuffle, spec.Train.Seed, t.Pass
	return o
}

// layOut finds the distinct keys of a batch and where they lie.
func layOut(m model.Model, data *reader.Batch, b *client.Batch, keys [][]uint64) [][]uint64 {
	keys = keys[:0]
	for i := range b.Tables {
		keys = append(keys, m.Keys(data, i))
	}
	b.Prepare(keys)
	return keys
}

// voided notes a batch whose loss or gradient is not finite.
func (w *worker) voided(it *item) {
	w.metrics.void()
	w.log.WithFields(w.fields(it.held.task)).WithField("batch", it.meta.N).
		Warn("loss or gradient is not finite: the batch is skipped and counted")
}

func (w *worker) fields(t etcdqueue.Task) logrus.Fields {
	f := logrus.Fields{"pass": t.Pass, "rank": t.Rank, "chunk": t.Chunk, "token": t.Token}
	if span, err := w.plan.Span(t.Chunk); err == nil {
		f["file"], f["offset"] = span.File, span.Start
	}
	return f
}
