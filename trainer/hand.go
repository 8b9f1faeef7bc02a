package trainer

import (
	"slices"
	"sync"

	"starfish/etcdqueue"
)

// held is a chunk that this trainer has taken and not yet completed.
type held struct {
	task etcdqueue.Task
	// next is the batch number to go on from: the smallest one that a shard still
	// lacks, or, under policy skip, that some shard has never acknowledged.
	next int64
	// acknowledged is the batch number to go on from by what every shard has
	// acknowledged to this trainer, under whatever view; never beyond the last
	// batch. gap tells that next is that, and that a shard lacks earlier ones.
	acknowledged int64
	gap          bool
	// finished tells that every shard of the round's view has the whole chunk;
	// counted, that sums says how much that is.
	finished bool
	counted  bool
	sums     etcdqueue.Sums
}

// hand is the set of chunks a trainer holds, in the order in which it took
// them. Its mutex is never held over I/O.
type hand struct {
	mu      sync.Mutex
	chunks  []*held
	moved   int64  // batches acknowledged, chunks taken: the proof of progress
	waiting string // the shard or step it waits for; "" when it does not
}

func (h *hand) add(tasks []etcdqueue.Task) []*held {
	h.mu.Lock()
	defer h.mu.Unlock()
	added := make([]*held, len(tasks))
	for i, t := range tasks {
		added[i] = &held{task: t}
	}
	h.chunks = append(h.chunks, added...)
	h.moved++
	return added
}

func (h *hand) all() []*held {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.chunks)
}

func (h *hand) tasks() []etcdqueue.Task {
	h.mu.Lock()
	defer h.mu.Unlock()
	tasks := make([]etcdqueue.Task, len(h.chunks))
	for i, c := range h.chunks {
		tasks[i] = c.task
	}
	return tasks
}

// done lists the chunks that can be completed.
func (h *hand) done() []*held {
	h.mu.Lock()
	defer h.mu.Unlock()
	var done []*held
	for _, c := range h.chunks {
		if c.finished && c.counted {
			done = append(done, c)
		}
	}
	return done
}

// doubt forgets which chunks every shard has: what owners of an earlier view
// have answered does not count.
func (h *hand) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.chunks {
		c.finished = false
	}
}

func (h *hand) drop(gone func(etcdqueue.Task) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.chunks = slices.DeleteFunc(h.chunks, func(c *held) bool { return gone(c.task) })
}

// goBack makes the trainer go on with a chunk from where its shards are: one of
// them does not take a gap.
func (h *hand) goBack(c *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.acknowledged = 0
}

// update changes a held chunk under the hand's lock and notes progress.
func (h *hand) update(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.moved++
}

func (h *hand) wait(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = reason
}

// progress tells how far the work has come and what it waits for.
func (h *hand) progress() (moved int64, waiting string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moved, h.waiting, len(h.chunks)
}
