package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/model"
)

// round is the work done under one set of owners: it begins with a view and
// with asking every shard how far it is with each chunk in hand, and ends with
// the first fault, or when the job is done.
type round struct {
	w           *worker
	view        membership.View
	session     *client.Session
	completedAt time.Time
	free        chan *item // items to be used again
}

// itemsAhead is how many batches are read ahead of the pipeline.
const itemsAhead = 4

func newRound(w *worker, s *client.Session) *round {
	return &round{w: w, view: s.View(), session: s, completedAt: w.clock.Now(), free: w.items}
}

// run works until the job is done (nil) or a fault.
func (r *round) run(ctx context.Context) error {
	r.w.hand.doubt()
	if err := r.confirm(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	working, done := context.WithCancel(ctx)
	g.Go(func() error { return r.awaitFault(working) })
	batches := make(chan *item, itemsAhead)
	g.Go(func() error {
		err := r.feed(ctx, batches)
		if err == nil {
			close(batches) // after a fault there is nothing to flush
		}
		return err
	})
	g.Go(func() error {
		defer done()
		p := &pipeline{r: r, window: r.w.window()}
		return p.run(ctx, batches)
	})
	return g.Wait()
}

// leaving is how long a fault is waited out where no work is at hand: at the end
// of the job pservers may leave before this process has seen the end.
const leaving = 500 * time.Millisecond

// awaitFault ends a round whose session is broken, also while there is nothing
// to send.
func (r *round) awaitFault(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.session.Done():
	}
	if clock.Sleep(ctx, r.w.clock, leaving) != nil {
		return nil //nolint:nilerr // the round has ended
	}
	return r.session.Err()
}

// confirm drops the chunks that were given to somebody else meanwhile.
func (r *round) confirm(ctx context.Context) error {
	tasks := r.w.hand.tasks()
	if len(tasks) == 0 {
		return nil
	}
	err := r.w.queue.Touch(ctx, tasks, cmp.Or(r.w.full.what, "repair"))
	var stale *etcdqueue.StaleError
	if errors.As(err, &stale) {
		r.w.log.WithField("chunks", len(stale.Tasks)).Warn("chunks were given to another trainer")
		r.w.dropTasks(stale.Tasks)
		return nil
	}
	return err
}

// feed sends the batches of the chunks in hand, then of those it takes.
func (r *round) feed(ctx context.Context, out chan<- *item) error {
	chunks := r.w.hand.all()
	for {
		if err := r.ask(ctx, chunks); err != nil {
			return err
		}
		for _, h := range chunks[:max(len(chunks)-1, 0)] {
			if err := r.read(ctx, h, out); err != nil {
				return err
			}
		}
		// The next take is under way while the last chunk is read.
		next := r.takeAhead(ctx)
		if len(chunks) > 0 {
			if err := r.read(ctx, chunks[len(chunks)-1], out); err != nil {
				if taken := <-next; taken.err == nil {
					r.w.hand.add(taken.tasks)
				}
				return err
			}
		}
		taken := <-next
		var empty *etcdqueue.EmptyError
		for errors.As(taken.err, &empty) {
			if err := r.put(ctx, out, &item{flush: true, pass: empty.Pass}); err != nil {
				return err
			}
			if err := r.w.queue.Changed(ctx); err != nil {
				return err
			}
			r.w.idled()
			taken.tasks, taken.err = r.w.take(ctx)
		}
		if errors.Is(taken.err, etcdqueue.ErrDone) {
			return nil
		}
		if taken.err != nil {
			return taken.err
		}
		chunks = r.w.hand.add(taken.tasks)
	}
}

type takeResult struct {
	tasks []etcdqueue.Task
	err   error
}

func (r *round) takeAhead(ctx context.Context) <-chan takeResult {
	next := make(chan takeResult, 1)
	go func() {
		tasks, err := r.w.take(ctx)
		next <- takeResult{tasks, err}
	}()
	return next
}

// put hands an item to the pipeline.
func (r *round) put(ctx context.Context, out chan<- *item, it *item) error {
	select {
	case out <- it:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask asks every shard how far it is with the chunks, and notes for each from
// which batch number to go on.
func (r *round) ask(ctx context.Context, chunks []*held) error {
	if len(chunks) == 0 {
		return nil
	}
	refs := make([]client.Chunk, len(chunks))
	for i, h := range chunks {
		refs[i] = client.Chunk{Pass: h.task.Pass, Rank: h.task.Rank}
	}
	progress, err := r.session.Progress(ctx, refs)
	if err != nil {
		return err
	}
	r.w.hand.update(func() {
		for i, h := range chunks {
			h.next, h.finished = smallest(progress[i])
			h.gap = r.w.skip && !h.finished && h.acknowledged > h.next
			if h.gap {
				h.next = h.acknowledged
			}
		}
	})
	return nil
}

// smallest is the smallest batch number that one of the shards lacks; finished
// if none lacks any.
func smallest(shards []client.Progress) (next int64, finished bool) {
	finished = true
	for _, p := range shards {
		if p.Finished {
			continue
		}
		if finished || p.Next < next {
			next = p.Next
		}
		finished = false
	}
	return next, finished
}

// read sends the batches of a chunk from the one that a shard lacks on. Of a
// chunk that every shard has it only counts batches and records.
func (r *round) read(ctx context.Context, h *held, out chan<- *item) error {
	// From the first item on the pipeline writes into h.
	finished, n, gap := h.finished, h.next, h.gap
	if finished && h.counted {
		return nil
	}
	rd, err := r.w.plan.Open(ctx, h.task.Chunk, r.w.readOptions(h.task))
	if err != nil {
		return r.readFailed(ctx, h, out, err)
	}
	defer rd.Close()
	if finished {
		n = 0
	}
	rd.SkipTo(n)
	records := n * int64(r.w.job.Spec.Train.Batch) // every batch but the last is full
	for {
		it, err := r.item(ctx)
		if err != nil {
			return err
		}
		if err := rd.Next(&it.data); err != nil {
			r.recycle(it)
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: chunk %d has no batch %d", reader.ErrData, h.task.Chunk, n)
			}
			return r.readFailed(ctx, h, out, err)
		}
		last := it.data.Last
		records += int64(it.data.Records())
		if finished {
			r.recycle(it)
		} else {
			r.prepare(it, h, n)
			it.meta.Gap, gap = gap, false
			if err := r.put(ctx, out, it); err != nil {
				return err
			}
		}
		n++
		if last {
			bad := r.passedOver(h, rd)
			r.w.hand.update(func() { h.counted, h.sums = true, etcdqueue.Sums{Batches: n, Records: records, Bad: bad} })
			return nil
		}
	}
}

// passedOver counts and names the bad records that the chunk was allowed.
func (r *round) passedOver(h *held, rd *reader.Reader) int64 {
	n := int64(rd.Bad())
	if n == 0 {
		return 0
	}
	r.w.metrics.bad.Add(n)
	log := r.w.log.WithFields(r.w.fields(h.task)).WithField("records", n)
	if named := rd.BadRecords(); len(named) > 0 {
		log = log.WithField("first", named[0].String())
	}
	log.Warn("bad records were left out")
	return n
}

// readFailed hands bad data to the pipeline, which reports it after what came
// before it is acknowledged; everything else ends the process.
func (r *round) readFailed(ctx context.Context, h *held, out chan<- *item, err error) error {
	var bad *reader.BadDataError
	if errors.As(err, &bad) {
		return r.put(ctx, out, &item{held: h, bad: err})
	}
	return err
}

// item returns an item to fill: a used one, or a new one while there are fewer
// than the pipeline can hold.
func (r *round) item(ctx context.Context) (*item, error) {
	select {
	case it := <-r.free:
		return it, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	default:
		return &item{batch: r.w.client.NewBatch()}, nil
	}
}

func (r *round) recycle(it *item) {
	it.pull, it.computed, it.held = nil, false, nil
	select {
	case r.free <- it:
	default:
	}
}

// prepare lays a batch out over the shards.
func (r *round) prepare(it *item, h *held, n int64) {
	it.held = h
	it.meta.Pass, it.meta.Rank, it.meta.N = h.task.Pass, h.task.Rank, n
	it.meta.Token, it.meta.Last, it.meta.Void = h.task.Token, it.data.Last, false
	it.keys = layOut(r.w.model, &it.data, it.batch, it.keys)
	it.fillStep()
}

// fillStep shows the model the batch as the client has laid it out.
func (it *item) fillStep() {
	it.step.Batch = &it.data
	it.step.Dense, it.step.DenseGrad = it.batch.Dense, it.batch.DenseGrad
	it.step.Tables = it.step.Tables[:0]
	for _, t := range it.batch.Tables {
		it.step.Tables = append(it.step.Tables, model.Table(t))
	}
}

// acknowledged notes that every shard has answered the push of a batch.
func (r *round) acknowledged(it *item) {
	h, last := it.held, it.meta.Last
	r.w.hand.update(func() {
		h.next = it.meta.N + 1
		h.finished = h.finished || last
		h.acknowledged = max(h.acknowledged, h.next)
		if last { // the chunk has no batch after it
			h.acknowledged = it.meta.N
		}
	})
	r.w.metrics.batch(it)
	if last {
		r.w.chunkDone()
	}
	r.recycle(it)
}

// failChunk reports that a chunk cannot be read.
func (r *round) failChunk(ctx context.Context, h *held, bad error) error {
	r.w.log.WithFields(r.w.fields(h.task)).WithError(bad).Error("chunk failed")
	detail, err := r.failedDetail(ctx, h)
	if err != nil {
		return fmt.Errorf("see what the shards have of a failed chunk: %w", err)
	}
	err = r.w.queue.Fail(ctx, h.task, bad.Error(), detail)
	if err != nil && !errors.Is(err, etcdqueue.ErrStale) {
		return fmt.Errorf("report a failed chunk: %w", err)
	}
	r.w.dropTasks([]etcdqueue.Task{h.task})
	return nil
}

// adopt takes a new view if no shard's owner differs from the round's view.
func (r *round) adopt(ctx context.Context) error {
	view, err := membership.ReadView(ctx, r.w.st)
	if err != nil {
		return err
	}
	same := slices.EqualFunc(view.Shards, r.view.Shards, func(a, b membership.Owner) bool {
		return a.Incarnation == b.Incarnation && a.Generation == b.Generation
	})
	if !same {
		return errOwnersChanged
	}
	r.view = view
	return nil
}

var errOwnersChanged = errors.New("shards have new owners")

func tasksOf(hs []*held) []etcdqueue.Task {
	tasks := make([]etcdqueue.Task, len(hs))
	for i, h := range hs {
		tasks[i] = h.task
	}
	return tasks
}
