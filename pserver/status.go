package pserver

import (
	"errors"
	"fmt"
	"io"

	"github.com/sirupsen/logrus"

	"starfish/etcdqueue"
)

// Status is the content of /status.
type Status struct {
	Name        string          `json:"name"`
	Job         string          `json:"job,omitempty"`
	UUID        string          `json:"uuid,omitempty"`
	Incarnation string          `json:"incarnation"`
	Address     string          `json:"address,omitempty"`
	Phase       etcdqueue.Phase `json:"phase,omitempty"`
	Pass        int             `json:"pass"`
	// Registered: the process is a member, and its lease has not ended yet.
	Registered bool `json:"registered"`
	// Waiting says what the process waits for; empty while it serves.
	Waiting     string `json:"waiting,omitempty"`
	StagedBytes int64  `json:"staged_bytes"`
	// MemoryBytes is what counts against MaxMemory, staged bytes included; 0: no
	// limit.
	MemoryBytes int64         `json:"memory_bytes"`
	MaxMemory   int64         `json:"max_memory"`
	Shards      []ShardStatus `json:"shards"`
}

// ShardStatus is one shard's part of Status.
type ShardStatus struct {
	Shard      int   `json:"shard"`
	Generation int64 `json:"generation"`
	// Serving: trainers are answered. Doing says what its keeper does.
	Serving    bool   `json:"serving"`
	Doing      string `json:"doing"`
	Batches    int64  `json:"batches"`
	Skipped    int64  `json:"skipped"`
	Duplicates int64  `json:"duplicates"`
	Lost       int64  `json:"lost"`
	Losses     int64  `json:"losses"` // restores after which batches were lost
	Replayed   int64  `json:"replayed"`
	Records    int64  `json:"records"`
	Rows       int64  `json:"rows"`
	Bytes      int64  `json:"bytes"`
	Passes     int    `json:"passes"` // covered from the first one on
	// InFlight is how many chunks have batches here and are not finished.
	InFlight  int     `json:"in_flight"`
	Recovered float64 `json:"recovered_seconds"`
	// HandOvers is how often the shard was handed over by a living owner,
	// HandOverSeconds for how long it was not served in all of them.
	HandOvers       int64   `json:"handovers"`
	HandOverSeconds float64 `json:"handover_seconds"`
	// Barrier is how it stands with the open step, where trainers keep step.
	Barrier *BarrierStatus `json:"barrier,omitempty"`
	// Checkpoint is the newest one of this ownership, CheckpointAge its age in
	// seconds; null while there is none.
	Checkpoint      *string  `json:"checkpoint"`
	CheckpointAge   *float64 `json:"checkpoint_age_seconds"`
	CheckpointError string   `json:"checkpoint_error,omitempty"`
}

// barrier is Barrier, and never nil.
func (s *ShardStatus) barrier() BarrierStatus {
	if s.Barrier == nil {
		return BarrierStatus{}
	}
	return *s.Barrier
}

// Status says what the pserver does and what it waits for.
func (s *Server) Status() Status {
	s.mu.Lock()
	st := Status{
		Name: s.cfg.Name, Incarnation: s.incarnation, Address: s.address,
		Phase: s.state.Phase, Pass: s.state.Pass, Waiting: s.waiting,
		Registered: s.member != nil && s.member.Alive(),
		Shards:     []ShardStatus{},
	}
	if s.job != nil {
		st.Job, st.UUID = s.job.Spec.Job, s.job.UUID.String()
	}
	s.mu.Unlock()
	st.StagedBytes, st.MemoryBytes, st.MaxMemory = s.stage.Held(), s.memory.Used(), s.memory.Limit()
	for _, h := range *s.table.Load() {
		if h != nil {
			st.Shards = append(st.Shards, s.shardStatus(h))
		}
	}
	return st
}

func (s *Server) shardStatus(h *held) ShardStatus {
	st := ShardStatus{Shard: h.shard, Generation: h.generation, Serving: h.serving.Load() && h.owns()}
	h.mu.Lock()
	st.Doing, st.Recovered = h.step, h.recovered.Seconds()
	st.HandOvers, st.HandOverSeconds = h.claim.HandOvers, h.pauses
	if h.saved.meta.Path != "" {
		path, age := h.saved.meta.Path, s.cfg.Clock.Now().Sub(h.saved.at).Seconds()
		st.Checkpoint, st.CheckpointAge = &path, &age
	}
	st.CheckpointError = errorText(h.saving)
	h.mu.Unlock()
	if !h.loaded.Load() {
		return st
	}
	if !h.owns() && !h.away.Load() {
		st.Doing = "paused: the lease may have ended"
	}
	c := h.core.Stats()
	st.Batches, st.Skipped, st.Lost, st.Records = c.Total.Batches, c.Total.Skipped, c.Total.Lost, c.Total.Records
	st.Losses = c.Summary.Losses
	st.Duplicates, st.Replayed, st.Passes = c.Summary.Duplicates, c.Summary.Replayed, c.Summary.Passes
	st.InFlight = c.Summary.InFlight
	st.Rows, st.Bytes, st.Barrier = c.Rows, c.Bytes, c.Barrier
	return st
}

// Has tells whether a shard that this process owns under an incarnation and a
// generation has finished a chunk; known is false if it owns none such, or has not
// loaded it yet. It is for who audits a job from inside the process, and asks
// nobody.
func (s *Server) Has(incarnation string, shard int, generation int64, pass int, rank int64) (finished, known bool) {
	table := *s.table.Load()
	if shard >= len(table) || table[shard] == nil {
		return false, false
	}
	h := table[shard]
	if h.generation != generation || h.member.Incarnation() != incarnation || !h.loaded.Load() {
		return false, false
	}
	finished, _ = h.core.Progress(pass, rank)
	return finished, true
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Ready tells why the pserver does not do what it should, nil if it does. A
// pserver without shards is ready: it stands by.
func (s *Server) Ready() error {
	s.mu.Lock()
	member, waiting := s.member, s.waiting
	s.mu.Unlock()
	switch {
	case s.stopping.Load():
		return errors.New("stopping")
	case member == nil:
		return errors.New(waiting)
	case !member.Alive():
		return errors.New("the lease may have ended")
	}
	for _, h := range *s.table.Load() {
		if h != nil && !h.serving.Load() {
			return fmt.Errorf("shard %d is being restored", h.shard)
		}
	}
	return nil
}

func discardLog() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
