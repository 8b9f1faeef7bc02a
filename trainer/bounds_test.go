package trainer_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"starfish/etcdqueue"
	"starfish/internal/store"
	"starfish/pserver"
)

// What the watchdog of a simulated job sees besides: that it gets on, and that what
// its processes remember stays within its bounds.

const (
	// standstill is how long nothing may happen once the last fault is over.
	standstill = time.Minute
	// largestBatch bounds what one batch of these jobs takes that waits for its step:
	// eight records of four keys, each a key and a value, and some dense blocks.
	largestBatch = 8*4*12 + 256
	// mostUnacknowledged is how many pushes a trainer has under way: four, and the
	// one that it waits for.
	mostUnacknowledged = 5
)

// notice takes note of progress, and of who trains.
func (w *watchdog) notice(e store.Event) {
	switch {
	case strings.HasPrefix(e.KV.Key, "queue/"):
		was := w.lanes[e.KV.Key]
		var now etcdqueue.Lane
		if json.Unmarshal(e.KV.Value, &now) == nil && was.Complete.Equal(now.Complete) && was.Todo.Equal(now.Todo) {
			return // touched
		}
	case strings.HasPrefix(e.KV.Key, "trainers/"):
		var r struct{ Incarnation string }
		if !e.Deleted && json.Unmarshal(e.KV.Value, &r) == nil {
			w.trained[r.Incarnation] = true
		}
		return
	case e.KV.Key != "state" && e.KV.Key != "owners":
		return
	}
	w.moved = time.Now()
}

// idles tells that the job has stood still. A chunk that its taker does not know of,
// since the answer to its take was lost, comes back after the stall timeout.
func (w *watchdog) idles() error {
	if w.state().Phase.Ended() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	since := w.moved
	if w.over.After(since) {
		since = w.over
	}
	if still := time.Since(since); still > standstill+w.spec.Queue.StallTimeout {
		return fmt.Errorf("nothing has happened for %v", still)
	}
	return nil
}

// bounds tells which process remembers more than it may; at the end of the job that
// is nothing of what was under way.
func (w *watchdog) bounds(end bool) error {
	w.mu.Lock()
	servers, trainers := w.servers, len(w.trained)
	chunks := 0
	if w.history != nil {
		chunks = w.history.Chunks()
	}
	w.mu.Unlock()
	for _, s := range servers {
		st := s.Status()
		if st.StagedBytes != 0 {
			return fmt.Errorf("%s has staged %d bytes, and no push has parts", st.Name, st.StagedBytes)
		}
		for _, shard := range st.Shards {
			if err := bounded(shard, trainers, chunks, end); err != nil {
				return fmt.Errorf("shard %d of %s: %w", shard.Shard, st.Name, err)
			}
		}
	}
	for proc := range w.alive {
		if proc.trainer == nil {
			continue
		}
		if n := proc.trainer.Status().Unacknowledged; n > mostUnacknowledged {
			return fmt.Errorf("%s has %d pushes under way", proc.host, n)
		}
	}
	return nil
}

// bounded tells what is too large of a shard: batches that wait, one for each trainer
// that there has been, and chunks in flight.
func bounded(s pserver.ShardStatus, trainers, chunks int, end bool) error {
	if b := s.Barrier; b != nil {
		if end {
			trainers = 0
		}
		if b.Batches > trainers && b.Bytes > 0 || b.Bytes > int64(trainers)*largestBatch {
			return fmt.Errorf("%d batches of %d bytes wait, of %d trainers", b.Batches, b.Bytes, trainers)
		}
	}
	if s.InFlight > chunks {
		return fmt.Errorf("%d of %d chunks are in flight", s.InFlight, chunks)
	}
	return nil
}
