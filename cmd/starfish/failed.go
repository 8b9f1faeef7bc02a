package main

import (
	"context"

	"starfish/etcdqueue"
	"starfish/internal/cli"
)

// readFailed lists the quarantined chunks.
func readFailed(ctx context.Context, f *found, data jobData) ([]failedChunk, error) {
	records, err := f.queue.FailedChunks(ctx)
	if err != nil {
		return nil, err
	}
	chunks := []failedChunk{}
	for _, r := range records {
		chunks = append(chunks, failedOf(r, data))
	}
	return chunks, nil
}

// failedChunk is a quarantined chunk.
type failedChunk struct {
	Chunk int64 `json:"chunk"`
	Pass  int   `json:"pass"` // in which it was quarantined
	Rank  int64 `json:"rank"` // of that pass
	// File, Start and End say where it lies; absent where the list of files is
	// not stored.
	File     string `json:"file,omitempty"`
	Start    int64  `json:"start"`
	End      int64  `json:"end"`
	Reason   string `json:"reason"`
	Failures int    `json:"failures"`
	Trainer  string `json:"trainer"` // that reported the last failure
	// Batches of it that were applied or skipped before, by shard; null for a
	// shard whose owner does not answer. Only `queue failed` asks.
	Batches []*int64 `json:"batches,omitempty"`
}

// failedOf describes the record of a quarantined chunk.
func failedOf(r etcdqueue.FailedChunk, data jobData) failedChunk {
	c := failedChunk{Chunk: r.Chunk, Pass: r.Pass, Reason: cli.Plain(r.Reason), Failures: r.Failures, Trainer: r.Owner}
	if data.plan != nil {
		if span, err := data.plan.Span(r.Chunk); err == nil {
			c.File, c.Start, c.End = span.File, span.Start, span.End
		}
	}
	return c
}
