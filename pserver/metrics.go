package pserver

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"starfish/internal/wire"
)

// metrics are the process's counters, and a collector of what its shards tell.
// Every label has a bounded set of values: codes, occasions, shards.
type metrics struct {
	server *Server

	// answers counts the sections of answers by code.
	answers       [wire.Codes]prometheus.Counter
	messages      prometheus.Counter
	receivedBytes prometheus.Counter
	malformed     prometheus.Counter
	saves         *prometheus.CounterVec
	saveSeconds   prometheus.Histogram
	savesSkipped  prometheus.Counter
	restores      *prometheus.CounterVec
	restoreTime   prometheus.Histogram
	unloadable    prometheus.Counter
	reopened      prometheus.Counter
	leasesLost    prometheus.Counter
	handOvers     *prometheus.CounterVec
	handOverPause prometheus.Histogram
	barrierWait   prometheus.Histogram
}

const namespace = "starfish_pserver_"

// newMetrics makes the metrics and registers them, if there is a registerer.
func newMetrics(r prometheus.Registerer, s *Server) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help})
	}
	m := &metrics{
		server:        s,
		messages:      counter("messages_total", "Messages received from trainers."),
		receivedBytes: counter("received_bytes_total", "Bytes of the messages received from trainers."),
		malformed:     counter("malformed_messages_total", "Messages that could not be decoded."),
		savesSkipped:  counter("checkpoints_skipped_total", "Interval checkpoints left out because one took longer than the interval."),
		unloadable:    counter("checkpoints_unloadable_total", "Listed checkpoints that did not load."),
		reopened:      counter("chunks_reopened_total", "Chunks given back to the queue because a restore had lost them."),
		leasesLost:    counter("leases_lost_total", "Memberships that ended because the lease was gone."),
		saves: prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + "checkpoints_total",
			Help: "Checkpoints by occasion (interval, final, stop, request, handover) and result (ok, refused, failed)."}, []string{"occasion", "result"}),
		saveSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: namespace + "checkpoint_seconds",
			Help: "Time from the cut of a checkpoint to its listing.", Buckets: prometheus.ExponentialBuckets(0.005, 3, 10)}),
		restores: prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + "restores_total",
			Help: "Restores by source (initial, checkpoint, fallback, memory, reinit)."}, []string{"source"}),
		restoreTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: namespace + "restore_seconds",
			Help: "Time from the claim of a shard to its first answer.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
		handOvers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + "handovers_total",
			Help: "Hand-overs of shards by result (given, kept, received)."}, []string{"result"}),
		handOverPause: prometheus.NewHistogram(prometheus.HistogramOpts{Name: namespace + "handover_pause_seconds",
			Help: "Time for which a shard that was received was not served.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
	}
	m.barrierWait = prometheus.NewHistogram(prometheus.HistogramOpts{Name: namespace + "barrier_seconds",
		Help: "Time from the first batch that waits at a step to its close.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10)})
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + "answers_total",
		Help: "Sections answered, by code."}, []string{"code"})
	for c := range m.answers {
		m.answers[c] = answers.WithLabelValues(strings.ReplaceAll(wire.Code(c).String(), " ", "_"))
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m, answers, m.messages, m.receivedBytes, m.malformed, m.saves, m.saveSeconds, m.savesSkipped,
		m.restores, m.restoreTime, m.unloadable, m.reopened, m.leasesLost, m.handOvers, m.handOverPause, m.barrierWait,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) received(bytes int) {
	m.messages.Inc()
	m.receivedBytes.Add(float64(bytes))
}

func (m *metrics) saved(occasion string, err error, took time.Duration) {
	m.saves.WithLabelValues(occasion, result(err)).Inc()
	if err == nil {
		m.saveSeconds.Observe(took.Seconds())
	}
}

func (m *metrics) skipped(n int) { m.savesSkipped.Add(float64(n)) }

func (m *metrics) restored(source string, took time.Duration) {
	m.restores.WithLabelValues(source).Inc()
	m.restoreTime.Observe(took.Seconds())
}

func (m *metrics) taken(pause float64) {
	m.handOvers.WithLabelValues("received").Inc()
	m.handOverPause.Observe(pause)
}

// shardGauges are read from the shards at each scrape.
var shardGauges = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(ShardStatus) float64
}{
	{shardDesc("generation", "Generation of the ownership."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Generation) }},
	{shardDesc("serving", "Whether trainers are answered."), prometheus.GaugeValue, func(s ShardStatus) float64 { return truth(s.Serving) }},
	{shardDesc("batches", "Batches applied, by the ledger."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Batches) }},
	{shardDesc("skipped_batches", "Batches counted and not applied, because they were not finite."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Skipped) }},
	{shardDesc("duplicate_batches", "Pushes of batches that the shard had already."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Duplicates) }},
	{shardDesc("lost_batches", "Batches lost by restores."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Lost) }},
	{shardDesc("replayed_batches", "Batches applied again after restores."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Replayed) }},
	{shardDesc("records", "Records of the batches, by the ledger."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Records) }},
	{shardDesc("step", "The open step, where trainers keep step."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.barrier().Step) }},
	{shardDesc("waiting_batches", "Batches that wait for the open step to close."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.barrier().Batches) }},
	{shardDesc("waiting_bytes", "Bytes of the batches that wait."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.barrier().Bytes) }},
	{shardDesc("missing_trainers", "Live trainers that the open step waits for."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(len(s.barrier().Missing)) }},
	{shardDesc("rows", "Sparse rows held."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Rows) }},
	{shardDesc("bytes", "Memory of weights, optimizer state and indexes."), prometheus.GaugeValue, func(s ShardStatus) float64 { return float64(s.Bytes) }},
}

var ageDesc = shardDesc("checkpoint_age_seconds", "Age of the newest checkpoint of this ownership.")

var stagedDesc = prometheus.NewDesc(namespace+"staged_bytes", "Bytes held by pushes of which parts are missing.", nil, nil)

var (
	memoryDesc = prometheus.NewDesc(namespace+"memory_bytes", "Memory of tables and incomplete pushes, which counts against the limit.", nil, nil)
	limitDesc  = prometheus.NewDesc(namespace+"memory_limit_bytes", "Limit of the memory; 0: none.", nil, nil)
)

func shardDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"shard_"+name, help, []string{"shard"}, nil)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, g := range shardGauges {
		to <- g.desc
	}
	to <- ageDesc
	to <- stagedDesc
	to <- memoryDesc
	to <- limitDesc
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	st := m.server.Status()
	to <- prometheus.MustNewConstMetric(stagedDesc, prometheus.GaugeValue, float64(st.StagedBytes))
	to <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(st.MemoryBytes))
	to <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(st.MaxMemory))
	for _, s := range st.Shards {
		label := strconv.Itoa(s.Shard)
		for _, g := range shardGauges {
			to <- prometheus.MustNewConstMetric(g.desc, g.kind, g.get(s), label)
		}
		if s.CheckpointAge != nil {
			to <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, *s.CheckpointAge, label)
		}
	}
}
