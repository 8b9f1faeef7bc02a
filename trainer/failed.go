package trainer

import (
	"context"
	"encoding/json"

	"starfish/job"
	"starfish/pserver/client"
)

// failedDetail says where a chunk lies and how many of its batches each shard
// has. What came before the failure is acknowledged.
func (r *round) failedDetail(ctx context.Context, h *held) (json.RawMessage, error) {
	span, err := r.w.plan.Span(h.task.Chunk)
	if err != nil {
		return nil, err
	}
	d := job.FailedDetail{Rank: h.task.Rank, File: span.File, Start: span.Start, End: span.End}
	progress, err := r.session.Progress(ctx, []client.Chunk{{Pass: h.task.Pass, Rank: h.task.Rank}})
	if err != nil {
		return nil, err
	}
	d.Batches = batchesOf(progress[0])
	return d.Encode()
}

// batchesOf is how many batches shards have of a chunk that none can finish;
// nil for one that has forgotten the chunk (job.FailedDetail).
func batchesOf(shards []client.Progress) []*int64 {
	batches := make([]*int64, len(shards))
	for i, p := range shards {
		if !p.Finished {
			batches[i] = &p.Next
		}
	}
	return batches
}

// failedChunks lists the quarantined chunks for the result; nil if there are
// none. The shards are asked again how many batches they have of them: one that
// was restored since may have fewer than when the chunk failed, and nobody
// trains those again.
func (s *steward) failedChunks(ctx context.Context) (*job.FailedResult, error) {
	records, err := s.w.queue.FailedChunks(ctx)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	all := make([]job.FailedChunk, len(records))
	for i, r := range records {
		all[i] = job.FailedChunk{Chunk: r.Chunk, Pass: r.Pass, Reason: r.Reason, Failures: r.Failures, Trainer: r.Owner}
		if err := all[i].Describe(r.Detail); err != nil {
			return nil, err
		}
	}
	f := job.NewFailedResult(all, s.w.job.Spec.Shards)
	at := make([]client.Chunk, len(f.First))
	for i, c := range f.First {
		at[i] = client.Chunk{Pass: c.Pass, Rank: c.Rank}
	}
	session, err := s.w.client.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	progress, err := session.Progress(ctx, at)
	if err != nil {
		return nil, err
	}
	for i := range f.First {
		f.First[i].Batches = batchesOf(progress[i])
	}
	return f, nil
}
