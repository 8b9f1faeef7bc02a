package trainer

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the trainer's counters, for Prometheus and for Status.
type metrics struct {
	records, batches, voids, chunks, repairs, bad atomic.Int64
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
	return m
}

func (m *metrics) batch(it *item) {
	m.batches.Add(1)
	m.records.Add(int64(it.meta.Records))
	m.loss.add(it.meta.Loss, it.meta.Weight)
}

func (m *metrics) void()           { m.voids.Add(1) }
func (m *metrics) completed(n int) { m.chunks.Add(int64(n)) }
func (m *metrics) repaired()       { m.repairs.Add(1) }
