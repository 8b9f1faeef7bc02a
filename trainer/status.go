package trainer

import (
	"errors"
	"sync"

	"starfish/etcdqueue"
)

// Status is the content of /status.
type Status struct {
	Job         string           `json:"job"`
	Name        string           `json:"name"`
	Incarnation string           `json:"incarnation,omitempty"`
	Steward     bool             `json:"steward"`
	Chunks      []etcdqueue.Task `json:"chunks"`
	// Waiting says what the work waits for; empty while it moves.
	Waiting string `json:"waiting,omitempty"`
	Records int64  `json:"records"`
	Batches int64  `json:"batches"`
	Voids   int64  `json:"void_batches"`
	// Unacknowledged were pushed, and not every shard has answered; in jobs whose
	// trainers keep step none is counted.
	Unacknowledged int64 `json:"unacknowledged_batches"`
	// Bad records were left out, within what the spec allows a chunk.
	Bad     int64 `json:"bad_records"`
	Repairs int64 `json:"repairs"`
	// Loss is the mean loss of the records so far by weight, each measured before
	// its update; null before the first.
	Loss *float64 `json:"loss"`
}

// atomicMean is a sum and the weight of its summands.
type atomicMean struct {
	mu          sync.Mutex
	sum, weight float64
}

func (s *atomicMean) add(x, weight float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += x
	s.weight += weight
}

func (s *atomicMean) mean() *float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weight == 0 {
		return nil
	}
	m := s.sum / s.weight
	return &m
}

// Status says what the trainer does and what it waits for.
func (t *Trainer) Status() Status {
	t.mu.Lock()
	w, incarnation, steward, starting := t.worker, t.incarnation, t.steward, t.starting
	t.mu.Unlock()
	s := Status{
		Job: t.cfg.Job, Name: t.cfg.Name, Incarnation: incarnation, Steward: steward, Waiting: starting,
		Records: t.metrics.records.Load(), Batches: t.metrics.batches.Load(),
		Voids: t.metrics.voids.Load(), Unacknowledged: t.metrics.unacknowledged.Load(), Bad: t.metrics.bad.Load(), Repairs: t.metrics.repairs.Load(), Loss: t.metrics.loss.mean(),
		Chunks: []etcdqueue.Task{},
	}
	if w != nil {
		s.Chunks = append(s.Chunks, w.hand.tasks()...)
		_, s.Waiting, _ = w.hand.progress()
	}
	return s
}

// Ready tells why the trainer does not train, nil if it does.
func (t *Trainer) Ready() error {
	if s := t.Status(); s.Waiting != "" {
		return errors.New("waits for " + s.Waiting)
	}
	return nil
}
