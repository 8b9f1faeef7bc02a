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
	// Bad records were left out, within what the spec allows a chunk.
	Bad     int64 `json:"bad_records"`
	Repairs int64 `json:"repairs"`
	// Loss is the mean loss of the records so far, each measured before its
	// update; null before the first.
	Loss *float64 `json:"loss"`
}

// atomicSum is a sum and the number of its summands.
type atomicSum struct {
	mu  sync.Mutex
	sum float64
	n   int64
}

func (s *atomicSum) add(x float64, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += x
	s.n += n
}

func (s *atomicSum) mean() *float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 {
		return nil
	}
	m := s.sum / float64(s.n)
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
		Voids: t.metrics.voids.Load(), Bad: t.metrics.bad.Load(), Repairs: t.metrics.repairs.Load(), Loss: t.metrics.loss.mean(),
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
