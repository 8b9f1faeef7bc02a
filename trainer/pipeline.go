package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/failpoint"
	"starfish/internal/kernel"
	"starfish/internal/wire"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/model"
)

// item is one batch on its way: read, its keys laid out over the shards,
// pulled, computed, pushed, acknowledged. Items are reused.
type item struct {
	held  *held
	meta  wire.Meta
	data  reader.Batch
	batch *client.Batch
	step  model.Step
	keys  [][]uint64

	pull     *client.Call // carries the pull of this batch
	computed bool

	// Instead of a batch: the queue has nothing to give for now, in no pass up to
	// this one, or the chunk cannot be read.
	flush bool
	pass  int
	bad   error
}

// pipeline sends, computes and acknowledges. Message k carries pull(k) and
// push(k-1-window): with window 0 the values are fresh, with window 1 batch
// k-1 is computed while the pservers answer message k. The pipeline runs over
// the edges of chunks and takes, and is flushed only when feed says that the
// queue has nothing to give, so that with one trainer the messages do not
// depend on timing.
type pipeline struct {
	r      *round
	window int
	// open are the batches that are not pushed yet, oldest first.
	open []*item
	// pushed are the pushes that are not acknowledged yet, oldest first.
	pushed []pushedItem
	// turn is the push whose step is not over yet, in jobs with steps.
	turn *turn
}

type pushedItem struct {
	it   *item
	call *client.Call
}

// maxUnacknowledged bounds the pushes under way when nothing is pulled, and so
// nothing else makes the pipeline wait.
const maxUnacknowledged = 4

func (p *pipeline) run(ctx context.Context, in <-chan *item) error {
	defer p.r.w.metrics.unacknowledged.Store(0)
	err := p.work(ctx, in)
	if err != nil {
		p.goBack(err)
		err = p.r.w.broken(ctx, err, p.pushed)
	}
	return err
}

// goBack gives in to a shard that does not take the gap in a chunk: none of its
// batches were lost by a restore, so they are to be sent again.
func (p *pipeline) goBack(err error) {
	var f *client.FaultError
	if !errors.As(err, &f) || f.Code != wire.GoBack {
		return
	}
	for _, s := range p.pushed {
		if s.it.meta.Gap {
			p.r.w.hand.goBack(s.it.held)
		}
	}
}

func (p *pipeline) work(ctx context.Context, in <-chan *item) error {
	idle, pass := false, 0
	for {
		it, ok, err := p.next(ctx, in, idle, pass)
		if err != nil {
			return err
		}
		if !ok {
			return p.flush(ctx, true)
		}
		idle, pass = it.flush, it.pass
		if err := p.handle(ctx, it); err != nil {
			return err
		}
	}
}

func (p *pipeline) handle(ctx context.Context, it *item) error {
	switch {
	case it.flush:
		if err := p.flush(ctx, true); err != nil {
			return err
		}
		return p.idle(ctx, it.pass)
	case it.bad != nil:
		if err := p.flush(ctx, false); err != nil {
			return err
		}
		return p.r.failChunk(ctx, it.held, it.bad)
	}
	var push *item
	if len(p.open) > p.window {
		push = p.open[0]
		p.open = append(p.open[:0], p.open[1:]...)
	}
	if err := p.send(ctx, push, it); err != nil {
		return err
	}
	p.open = append(p.open, it)
	if n := len(p.open); n > p.window {
		if err := p.compute(ctx, p.open[n-1-p.window]); err != nil {
			return err
		}
	}
	return p.r.completeSome(ctx, false)
}

// send sends one message to every pserver; push and pull may be nil.
func (p *pipeline) send(ctx context.Context, push, pull *item) error {
	var pushed, pulled *client.Batch
	var meta wire.Meta
	if push != nil {
		pushed, meta = push.batch, push.meta
	}
	if pull != nil && !p.r.w.pushOnly {
		pulled = pull.batch
	}
	if pushed == nil && pulled == nil {
		return nil
	}
	if push != nil && p.r.w.stepped() {
		return p.take(ctx, push, pull, pulled)
	}
	call, err := p.r.session.Exchange(ctx, pushed, meta, pulled)
	if err != nil {
		return err
	}
	if push != nil {
		p.pushed = append(p.pushed, pushedItem{push, call})
		p.r.w.metrics.unacknowledged.Store(int64(len(p.pushed)))
	}
	if pulled != nil {
		pull.pull = call
	}
	if len(p.pushed) > maxUnacknowledged {
		return p.acknowledge(ctx, p.pushed[0].call)
	}
	return nil
}

// compute waits for the batch's values and computes its gradient.
func (p *pipeline) compute(ctx context.Context, it *item) error {
	if it.computed {
		return nil
	}
	it.computed = true
	if p.turn != nil && p.turn.pull == it {
		if err := p.endTurn(ctx); err != nil {
			return err
		}
	}
	if it.pull != nil {
		if err := it.pull.Wait(ctx); err != nil {
			return err
		}
		if err := p.acknowledge(ctx, it.pull); err != nil {
			return err
		}
		it.pull = nil
	}
	it.meta.Records = it.data.Records()
	loss := p.r.w.model.Gradient(&it.step)
	it.meta.Loss, it.meta.Weight = loss, it.data.WeightSum()
	if !finite(it) {
		p.r.w.voided(it)
		it.meta.Void, it.meta.Loss, it.meta.Weight = true, 0, 0
	}
	return p.r.w.watch(ctx, it, loss)
}

// acknowledge waits for the answers to all pushes up to and including call.
// Pservers answer in order, so those before an answered call are answered.
func (p *pipeline) acknowledge(ctx context.Context, upTo *client.Call) error {
	n := 0
	for i, s := range p.pushed {
		if s.call == upTo {
			n = i + 1
		}
	}
	for ; n > 0; n-- {
		s := p.pushed[0]
		if err := s.call.Wait(ctx); err != nil {
			return err
		}
		p.pushed = append(p.pushed[:0], p.pushed[1:]...) // the item is used again
		p.r.w.metrics.unacknowledged.Store(int64(len(p.pushed)))
		p.r.acknowledged(s.it)
	}
	return nil
}

// flush computes and pushes all that is open, waits until it is acknowledged,
// and completes the chunks that are finished by it. end says that there is no
// more work for now.
func (p *pipeline) flush(ctx context.Context, end bool) error {
	for len(p.open) > 0 {
		it := p.open[0]
		p.open = append(p.open[:0], p.open[1:]...)
		if err := p.compute(ctx, it); err != nil {
			return err
		}
		if end && len(p.open) == 0 {
			if err := p.r.w.watchEnd(ctx, it); err != nil {
				return err
			}
		}
		if err := p.send(ctx, it, nil); err != nil {
			return err
		}
	}
	if err := p.endTurn(ctx); err != nil {
		return err
	}
	if n := len(p.pushed); n > 0 {
		if err := p.acknowledge(ctx, p.pushed[n-1].call); err != nil {
			return err
		}
	}
	return p.r.completeSome(ctx, true)
}

// finite tells whether loss and gradient are all finite.
func finite(it *item) bool {
	ok := !math.IsNaN(it.meta.Loss) && !math.IsInf(it.meta.Loss, 0)
	for _, g := range it.step.DenseGrad {
		ok = ok && allFinite(g)
	}
	for i := range it.step.Tables {
		ok = ok && allFinite(it.step.Tables[i].Grad)
	}
	return ok
}

// allFinite: a sum of products with zero is zero unless one of the factors is
// not finite.
func allFinite(v []float32) bool {
	n, ok := kernel.Finite(v)
	var s float32
	for _, x := range v[n:] {
		s += x * 0
	}
	return ok && s == 0
}

// completeInterval is how often chunks are completed while more work is at
// hand: about one queue transaction a second, take and complete together.
const completeInterval = 500 * time.Millisecond

// completeSome completes the finished chunks if it is time, or now.
func (r *round) completeSome(ctx context.Context, now bool) error {
	at := r.w.clock.Now()
	if !now && at.Sub(r.completedAt) < completeInterval {
		return nil
	}
	r.completedAt = at
	return r.complete(ctx)
}

// complete completes the finished chunks under the round's view. A view that
// differs in nothing but its revision (a shard had its first checkpoint
// listed, a shard of nobody's was touched) is adopted: the answers of its
// generations still count.
func (r *round) complete(ctx context.Context) error {
	for {
		done := r.w.hand.done()
		if len(done) == 0 {
			return nil
		}
		report := make([]etcdqueue.Done, len(done))
		for i, h := range done {
			report[i] = etcdqueue.Done{Task: h.task, Sums: h.sums}
		}
		failpoint.Hit(failpoint.BeforeComplete)
		err := r.w.queue.Complete(ctx, report, r.view.Guard())
		var stale *etcdqueue.StaleError
		switch {
		case err == nil:
			failpoint.Hit(failpoint.AfterComplete)
			r.w.dropTasks(tasksOf(done))
			r.w.metrics.completed(len(done))
			return nil
		case errors.As(err, &stale):
			r.w.log.WithField("chunks", len(stale.Tasks)).Warn("chunks were given to another trainer")
			r.w.dropTasks(stale.Tasks)
			// The others were completed, unless the report ended early: then they
			// are still ours.
			if err := r.confirm(ctx); err != nil {
				return err
			}
		case errors.Is(err, etcdqueue.ErrGuard):
			if err := r.adopt(ctx); err != nil {
				return err
			}
		default:
			return fmt.Errorf("complete: %w", err)
		}
	}
}

// pace measures how long a chunk takes, so that a take asks for about a
// second's work.
type pace struct {
	perChunk time.Duration
	since    time.Time
}

func (p *pace) chunk(c clock.Clock) {
	now := c.Now()
	if !p.since.IsZero() {
		d := now.Sub(p.since)
		if p.perChunk == 0 {
			p.perChunk = d
		}
		p.perChunk = (3*p.perChunk + d) / 4
	}
	p.since = now
}

// take is how many chunks to ask for.
func (p *pace) take() int {
	if p.perChunk <= 0 {
		return 1
	}
	return int(min(max(time.Second/p.perChunk, 1), 256))
}
