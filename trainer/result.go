package trainer

import (
	"context"
	"encoding/json"
	"fmt"

	"starfish/checkpoint"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/staleness"
)

// result adds up what the job and its last pass achieved, from the ledgers in
// the last checkpoints and from the lanes.
func (s *steward) result(
	ctx context.Context, metas [][]checkpoint.Meta, test *job.TestResult,
) (*job.Result, *job.PassResult, error) {
	spec := s.w.job.Spec
	totals, _, err := s.w.queue.Totals(ctx)
	if err != nil {
		return nil, nil, err
	}
	manifest, err := s.w.queue.Manifest(ctx, spec.Train.Passes-1)
	if err != nil {
		return nil, nil, err
	}
	last := &job.PassResult{Pass: spec.Train.Passes - 1, Seconds: s.since(s.ended), Test: test}
	r := &job.Result{
		Job: spec.Job, UUID: s.w.job.UUID.String(), Phase: "complete", Mode: spec.Train.Mode, Recovery: spec.Recovery.Policy, Passes: spec.Train.Passes,
		Test: test, BadRecords: totals.Bad,
		Queue: job.QueueResult{
			Chunks: manifest.Chunks, Complete: totals.Complete, Failed: totals.Failed,
			Takes: totals.Takes, Requeued: totals.Requeued, Speculated: totals.Speculated, Batches: totals.Batches, Records: totals.Records,
		},
	}
	if r.Failed, err = s.failedChunks(ctx); err != nil {
		return nil, nil, err
	}
	var ages staleness.Counts
	for i, ms := range metas {
		var sum ledger.Summary
		if err := json.Unmarshal(ms[0].Ledger, &sum); err != nil {
			return nil, nil, fmt.Errorf("the summary of shard %d's last checkpoint: %w", i, err)
		}
		addShard(r, i, ms[0], &sum)
		if sum.Staleness != nil {
			ages.Merge(sum.Staleness)
		}
		// The last pass is that of the shard that lost least of it.
		if n := len(sum.Sums); n > 0 && sum.Sums[n-1].Records > last.Records {
			last.Records = sum.Sums[n-1].Records
			if loss, ok := sum.Sums[n-1].MeanLoss(); ok {
				r.Train.Loss = &loss
			}
		}
	}
	if p50, ok := ages.Quantile(0.5); ok {
		p99, _ := ages.Quantile(0.99)
		r.Staleness = &job.Staleness{P50: p50, P99: p99}
	}
	s.agree(r)
	last.Train = r.Train
	r.Seconds = last.Seconds
	if r.Seconds != nil && *r.Seconds > 0 {
		rate := float64(r.Records) / *r.Seconds
		r.RecordsPerSecond = &rate
	}
	return r, last, nil
}

// addShard adds one shard's ledger.
func addShard(r *job.Result, shard int, m checkpoint.Meta, sum *ledger.Summary) {
	total := sum.Total()
	r.Shards = append(r.Shards, job.ShardState{
		Shard: shard, Generation: m.Generation, Batches: total.Batches, Skipped: total.Skipped, Lost: total.Lost,
		Losses: sum.Losses, Duplicates: sum.Duplicates, Replayed: sum.Replayed, Records: total.Records,
		RecoveredSeconds: sum.RecoveredSeconds, HandOvers: sum.HandOvers, HandOverSeconds: sum.HandOverSeconds,
	})
}

// agree fills in the number of records: what all shards have counted. If one of
// them has lost some they disagree, and the lanes know what was trained. Of
// chunks that failed shards may well have different parts.
func (s *steward) agree(r *job.Result) {
	r.Records = r.Shards[0].Records
	if s.tellLosses(r) {
		r.Records = r.Queue.Records
		return
	}
	for _, shard := range r.Shards[1:] {
		if shard.Records == r.Records {
			continue
		}
		log := s.log.WithFields(map[string]any{"shard": shard.Shard, "records": shard.Records, "trained": r.Queue.Records})
		if r.Failed != nil {
			log.Info("the shards have different parts of the chunks that failed")
		} else {
			log.Error("the shards disagree about the number of records")
		}
		r.Records = r.Queue.Records
		return
	}
}

// tellLosses says of each shard what it has lost; false if none has.
func (s *steward) tellLosses(r *job.Result) (some bool) {
	for _, shard := range r.Shards {
		if shard.Lost == 0 {
			continue
		}
		some = true
		s.log.WithFields(map[string]any{"shard": shard.Shard, "batches": shard.Lost, "losses": shard.Losses}).
			Warn("the shard lacks batches that it has lost")
	}
	return some
}
