package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/cli"
	"starfish/job"
)

// The kinds of events.
const (
	eventProgress = "progress"
	eventPass     = "pass"
	eventResult   = "result"
)

// progressEvent is how far a job is.
type progressEvent struct {
	Kind             string   `json:"kind"`
	Seconds          float64  `json:"seconds"` // of the run
	Phase            string   `json:"phase"`
	Pass             int      `json:"pass"` // from 0
	Records          int64    `json:"records"`
	Loss             *float64 `json:"loss"`
	RecordsPerSecond float64  `json:"records_per_second"`
}

type passEvent struct {
	Kind string `json:"kind"`
	job.PassResult
}

type resultEvent struct {
	Kind   string      `json:"kind"`
	Result *job.Result `json:"result"`
}

// events is the file of --metrics-out: one line of JSON for each event, written
// at once. A line that cannot be written does not harm the job: the first one
// is logged. A nil *events takes and writes nothing.
type events struct {
	log logrus.FieldLogger

	mu       sync.Mutex // held over writes to the file
	file     *os.File
	failed   bool
	progress time.Time // of the last progress
	next     int       // the pass whose record comes next
}

// openEvents appends to the file.
func openEvents(file string, log logrus.FieldLogger) (*events, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, cli.Usage("--metrics-out: %w", err)
	}
	return &events{log: log, file: f}, nil
}

func (e *events) close() {
	if e != nil {
		e.file.Close()
	}
}

// write writes one event. The caller holds mu.
func (e *events) write(event any) {
	line, err := json.Marshal(event)
	if err == nil {
		_, err = e.file.Write(append(line, '\n'))
	}
	if err != nil && !e.failed {
		e.failed = true
		e.log.WithError(err).Error("--metrics-out: a line could not be written")
	}
}

// see writes the progress, about once a second.
func (e *events) see(now, started time.Time, m *meter) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.progress) < hearEvery {
		return
	}
	e.progress = now
	s := m.last
	event := progressEvent{Kind: eventProgress, Seconds: now.Sub(started).Seconds(), Phase: s.phase, Pass: s.pass,
		Records: s.records, RecordsPerSecond: m.rate}
	if !math.IsNaN(s.loss) {
		event.Loss = &s.loss
	}
	e.write(event)
}

// skip passes over the passes that an earlier run has seen.
func (e *events) skip(ctx context.Context, r *runner) error {
	if e == nil {
		return nil
	}
	history, err := job.History(ctx, r.store, 0)
	if n := len(history); n > 0 {
		e.next = history[n-1].Pass + 1
	}
	return err
}

// passes writes the records of passes that are new.
func (e *events) passes(ctx context.Context, r *runner) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	history, err := job.History(ctx, r.store, e.next)
	if err != nil {
		e.log.WithError(err).Debug("the records of the passes could not be read")
		return
	}
	for _, p := range history {
		e.write(passEvent{eventPass, p})
		e.next = p.Pass + 1
	}
}

// result writes the passes that are left, and the result.
func (e *events) result(ctx context.Context, r *runner, res *job.Result) {
	if e == nil {
		return
	}
	e.passes(ctx, r)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.write(resultEvent{eventResult, res})
}
