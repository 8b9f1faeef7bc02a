package trainer

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"starfish/etcdqueue"
)

// metrics are the trainer's counters, for Prometheus and for Status.
type metrics struct {
	records, batches, voids, chunks, repairs, bad atomic.Int64
	todo, pending                                 atomic.Int64 // chunks, as the steward sees them
	unacknowledged                                atomic.Int64
	loss                                          atomicMean
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{}
	if reg == nil {
		return m
	}
	counter := func(name, help string, value *atomic.Int64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "starfish", Subsystem: "trainer", Name: name, Help: help,
		}, func() float64 { return float64(value.Load()) }))
	}
	counter("records_total", "Records of batches that every shard has acknowledged, in records.", &m.records)
	counter("batches_total", "Batches that every shard has acknowledged.", &m.batches)
	counter("void_batches_total", "Batches with a non-finite loss or gradient.", &m.voids)
	counter("chunks_total", "Chunks that this trainer has completed.", &m.chunks)
	counter("bad_records_total", "Bad records that were left out, within data.max_bad_records a chunk.", &m.bad)
	counter("repairs_total", "Rounds that ended with a fault.", &m.repairs)
	gauge := func(name, help string, value *atomic.Int64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "starfish", Subsystem: "trainer", Name: name, Help: help,
		}, func() float64 { return float64(value.Load()) }))
	}
	gauge("unacknowledged_batches", "Batches that were pushed and that not every shard has acknowledged.", &m.unacknowledged)
	gauge("queue_todo_chunks", "Chunks that wait for a trainer, as the steward sees them; 0 on all other trainers.", &m.todo)
	gauge("queue_pending_chunks", "Chunks in the hands of trainers, as the steward sees them; 0 on all other trainers.", &m.pending)
	return m
}

// queue notes what the steward has seen of the queue.
func (m *metrics) queue(sums etcdqueue.Totals) {
	m.todo.Store(sums.Todo)
	m.pending.Store(sums.Pending)
}

func (m *metrics) batch(it *item) {
	m.batches.Add(1)
	m.records.Add(int64(it.meta.Records))
	m.loss.add(it.meta.Loss, it.meta.Weight)
}

func (m *metrics) void()           { m.voids.Add(1) }
func (m *metrics) completed(n int) { m.chunks.Add(int64(n)) }
func (m *metrics) repaired()       { m.repairs.Add(1) }
