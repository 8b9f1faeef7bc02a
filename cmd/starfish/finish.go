package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/job"
)

// finish reports how the job ended: summary, result, export.
func (r *runner) finish(ctx context.Context) error {
	state, err := r.follow.state(ctx)
	switch {
	case errors.Is(err, errJobGone), errors.Is(err, etcdqueue.ErrNoQueue):
		return job.Exitf(job.ExitFailure, "job %s: %w", r.spec.Job, errJobGone)
	case err != nil:
		return err
	case state.Phase == etcdqueue.PhaseFailed:
		return r.fail(ctx, state)
	}
	res, err := readResult(ctx, r.store)
	if err != nil {
		return err
	}
	r.complete(res)
	r.events.result(ctx, r, res)
	if r.opts.export != "" {
		if err := r.export(ctx); err != nil {
			return err
		}
	}
	summary := r.out.out
	if r.opts.result == "-" {
		summary = r.out.err
	}
	if err := r.summarise(summary, res); err != nil {
		return err
	}
	if err := r.writeResult(res); err != nil {
		return err
	}
	if res.Queue.Failed > 0 && !r.opts.failedOK {
		return job.Exitf(job.ExitFailedChunks, "%s not trained (--allow-failed-chunks accepts that)%s", quarantinedText(res), firstFailed(res.Failed))
	}
	return nil
}

// fail reports a job that has failed: with a result too, if one is wanted.
func (r *runner) fail(ctx context.Context, state etcdqueue.State) error {
	reason := cli.Plain(state.Reason)
	if r.opts.result != "" || r.events != nil {
		res, err := r.failedResult(ctx, state, reason)
		if err == nil {
			r.complete(res)
			r.events.result(ctx, r, res)
			err = r.writeResult(res)
		}
		if err != nil {
			r.log.WithError(err).Error("the result of the failed job was not written")
		}
	}
	hint := ""
	if r.failedBefore {
		hint = fmt.Sprintf(". It had failed before, and a job that has failed does not go on: begin a new one with another --dir, or remove %s first", r.dir.path)
		if len(r.opts.Endpoints) > 0 {
			hint = ". It had failed before, and a job that has failed does not go on: begin a new one with another name and another --dir"
		}
	}
	return job.Exitf(job.ExitFailure, "job %s has failed: %s%s", r.spec.Job, reason, hint)
}

// failedResult is what is known of a job that has failed. What the ledgers of
// its shards would say is not.
func (r *runner) failedResult(ctx context.Context, state etcdqueue.State, reason string) (*job.Result, error) {
	j, err := job.Load(ctx, r.store)
	if err != nil {
		return nil, err
	}
	totals, _, err := r.follow.queue.Totals(ctx)
	if err != nil {
		return nil, err
	}
	manifest, err := r.follow.queue.Manifest(ctx, state.Pass)
	if err != nil {
		return nil, err
	}
	history, err := job.History(ctx, r.store, 0)
	if err != nil {
		return nil, err
	}
	failed, err := readFailed(ctx, r.follow.queue)
	if err != nil {
		return nil, err
	}
	return &job.Result{
		Failed: job.NewFailedResult(failed, r.spec.Shards),
		Job:    r.spec.Job, UUID: j.UUID.String(), Phase: string(state.Phase), Reason: reason, Mode: r.spec.Train.Mode,
		Recovery: r.spec.Recovery.Policy, Passes: r.spec.Train.Passes, Records: totals.Records, BadRecords: totals.Bad, History: history,
		Queue: job.QueueResult{
			Chunks: manifest.Chunks, Complete: totals.Complete, Failed: totals.Failed, Takes: totals.Takes,
			Requeued: totals.Requeued, Speculated: totals.Speculated, Batches: totals.Batches, Records: totals.Records,
		},
	}, nil
}

func quarantinedText(res *job.Result) string {
	if res.Failed == nil {
		return fmt.Sprintf("chunks that are back from quarantine now were %s", plural(res.Queue.Failed, "time", "times"))
	}
	return plural(res.Failed.Chunks, "chunk was", "chunks were") + " quarantined and"
}

// firstFailed tells of the first quarantined chunk, as the rest of a sentence.
func firstFailed(f *job.FailedResult) string {
	if f == nil { // they were taken back, too late for a pass
		return ""
	}
	text := fmt.Sprintf("; chunk %d: %s", f.First[0].Chunk, f.First[0].Reason)
	if f.Chunks > 1 {
		text += fmt.Sprintf(" (and %d chunks more)", f.Chunks-1)
	}
	return text
}

// readResult reads the record `result`.
func readResult(ctx context.Context, st store.Store) (*job.Result, error) {
	kv, err := store.Lookup(ctx, st, job.KeyResult)
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	if !kv.Exists() {
		return nil, fmt.Errorf("the job is complete and has no result")
	}
	var res job.Result
	if err := json.Unmarshal(kv.Value, &res); err != nil {
		return nil, fmt.Errorf("the record result: %w", err)
	}
	if res.Failed != nil {
		for i := range res.Failed.First {
			res.Failed.First[i].Reason = cli.Plain(res.Failed.First[i].Reason)
		}
	}
	res.History, err = job.History(ctx, st, 0)
	return &res, err
}

// complete adds what only the run knows.
func (r *runner) complete(res *job.Result) {
	wall := r.clk.Now().Sub(r.started).Seconds()
	cpu := (r.stats.processes.CPU + ownCPU()).Seconds()
	res.WallSeconds, res.CPUSeconds = &wall, &cpu
	switch seconds, whole := r.follow.seconds(); {
	case whole:
		res.Seconds = &seconds
		if seconds > 0 {
			rate := float64(res.Records) / seconds
			res.RecordsPerSecond = &rate
		}
	case seconds > 0: // this run trained only the rest of the job
		res.RecordsPerSecond = nil
	}
	res.Restarts.Pserver = r.stats.processes.Restarts[kindPserver]
	res.Restarts.Trainer = r.stats.processes.Restarts[kindTrainer]
	if k := r.stats.kills; k != nil {
		res.Restarts.Kills = &job.Kills{Pserver: k[kindPserver], Trainer: k[kindTrainer]}
	}
}

// ownCPU is the processor time of this process, the embedded etcd's included.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (r *runner) writeResult(res *job.Result) error {
	if r.opts.result == "" {
		return nil
	}
	b, err := json.Marshal(res)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if r.opts.result == "-" {
		_, err = r.out.out.Write(b)
		return err
	}
	return writeWhole(r.opts.result, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

func (r *runner) export(ctx context.Context) error {
	j, err := job.Load(ctx, r.store)
	if err != nil {
		return err
	}
	n, err := exportModel(ctx, &found{store: r.store, job: j, checkpoints: r.dir.checkpoints()}, r.opts.export)
	if err != nil {
		return err
	}
	r.log.WithField("file", r.opts.export).WithField("values", n).Info("model exported")
	return nil
}

// summarise writes the summary of a complete job.
func (r *runner) summarise(w io.Writer, res *job.Result) error {
	var b strings.Builder
	summary(&b, res)
	if !r.dir.temp {
		fmt.Fprintf(&b, "kept      %s\n", r.dir.path)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// summary is a result for people.
func summary(b *strings.Builder, res *job.Result) {
	fmt.Fprintf(b, "job       %s complete: %s in %s", res.Job, plural(res.Records, "record", "records"), plural(int64(res.Passes), "pass", "passes"))
	if res.BadRecords > 0 {
		fmt.Fprintf(b, " and %s left out", plural(res.BadRecords, "bad record", "bad records"))
	}
	if res.Seconds != nil {
		fmt.Fprintf(b, ", %.1f s", *res.Seconds)
	}
	if res.RecordsPerSecond != nil {
		fmt.Fprintf(b, ", %s records/s", thousands(int64(*res.RecordsPerSecond)))
	}
	if res.WallSeconds != nil && res.CPUSeconds != nil {
		fmt.Fprintf(b, " (the whole command: %.1f s, %.1f s of processor time)", *res.WallSeconds, *res.CPUSeconds)
	}
	b.WriteByte('\n')
	if res.Train.Loss != nil {
		fmt.Fprintf(b, "training  loss %.5f over the last pass, each batch before its update\n", *res.Train.Loss)
	}
	if res.Test != nil {
		fmt.Fprintf(b, "test      %s: %s\n", plural(res.Test.Records, "record", "records"), metrics(res.Test))
	}
	passes(b, res.History)
	q := res.Queue
	fmt.Fprintf(b, "chunks    %s complete, %s failed; %s takes, %s requeued%s\n",
		thousands(q.Complete), thousands(q.Failed), thousands(q.Takes), thousands(q.Requeued), speculatedText(q.Speculated))
	if res.Failed != nil {
		failedLines(b, res.Failed)
	}
	fmt.Fprintf(b, "shards    %s\n", shardLine(res.Shards))
	lossLines(b, res)
	fmt.Fprintf(b, "restarts  %d pservers, %d trainers", res.Restarts.Pserver, res.Restarts.Trainer)
	if k := res.Restarts.Kills; k != nil {
		fmt.Fprintf(b, "; kills between first take and last complete: %d pservers, %d trainers", k.Pserver, k.Trainer)
	}
	b.WriteByte('\n')
}

// lossLines says of each shard what it has lost, of very many those that have
// lost most.
func lossLines(b *strings.Builder, res *job.Result) {
	lost := slices.DeleteFunc(slices.Clone(res.Shards), func(s job.ShardState) bool { return s.Lost == 0 })
	slices.SortStableFunc(lost, func(a, b job.ShardState) int { return cmp.Compare(b.Lost, a.Lost) })
	why := "--allow-reinit"
	if res.Recovery == job.PolicySkip {
		why = "recovery.policy: skip"
	}
	for _, s := range lost[:min(len(lost), shownShards)] {
		fmt.Fprintf(b, "lost      %s (%s)\n", lossText(s.Shard, s.Lost, s.Losses), why)
	}
	if n := len(lost) - shownShards; n > 0 {
		fmt.Fprintf(b, "lost      batches of %s more\n", plural(int64(n), "shard", "shards"))
	}
}

// lossText is like "12 batches of shard 1 to 2 failures".
func lossText(shard int, batches, losses int64) string {
	return fmt.Sprintf("%s of shard %d to %s", plural(batches, "batch", "batches"), shard, plural(losses, "failure", "failures"))
}

// failedLines says of the first quarantined chunks what is wrong with them, and
// what was applied of them nevertheless.
func failedLines(b *strings.Builder, f *job.FailedResult) {
	label := "failed"
	for _, c := range f.First[:min(len(f.First), shownFailed)] {
		fmt.Fprintf(b, "%-9s chunk %d (%s, bytes %d to %d): %s; applied: %s\n", label, c.Chunk, c.File, c.Start, c.End, c.Reason, appliedText(c.Batches))
		label = ""
	}
	if n := f.Chunks - int64(min(len(f.First), shownFailed)); n > 0 {
		fmt.Fprintf(b, "%-9s and %s more: starfish queue failed\n", "", thousands(n))
	}
}

// shownPasses is how many passes a summary lists.
const shownPasses = 10

// passes lists what the newest passes have achieved, if there was more than one.
func passes(b *strings.Builder, history []job.PassResult) {
	if len(history) < 2 {
		return
	}
	for _, p := range history[max(len(history)-shownPasses, 0):] {
		fmt.Fprintf(b, "%-9s training loss %s", fmt.Sprintf("pass %d", p.Pass+1), number(p.Train.Loss))
		if p.Test != nil {
			for _, name := range []string{"loss", "auc", "rmse"} {
				if v, ok := p.Test.Metrics[name]; ok {
					fmt.Fprintf(b, ", test %s %s", name, number(v))
				}
			}
		}
		b.WriteByte('\n')
	}
}

func number(v *float64) string {
	if v == nil {
		return "undefined"
	}
	return fmt.Sprintf("%.5f", *v)
}

// metrics lists the metrics of the test data by name, and why some are
// undefined.
func metrics(t *job.TestResult) string {
	var texts, reasons []string
	for _, name := range slices.Sorted(maps.Keys(t.Metrics)) {
		v := t.Metrics[name]
		switch reason := t.Undefined[name]; {
		case v != nil && strings.HasPrefix(name, "groups"): // a count
			texts = append(texts, name+" "+thousands(int64(*v)))
		case v != nil || slices.Contains(reasons, reason) || reason == "":
			texts = append(texts, name+" "+number(v))
		default:
			texts = append(texts, name+" "+number(v)+" ("+reason+")")
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(texts, ", ")
}

// shardLine sums up the shards.
func shardLine(shards []job.ShardState) string {
	if len(shards) == 0 {
		return "none"
	}
	sum := job.ShardState{}
	equal := true
	for _, s := range shards {
		equal = equal && s.Batches+s.Lost == shards[0].Batches+shards[0].Lost
		sum.Skipped += s.Skipped
		sum.Duplicates += s.Duplicates
		sum.Lost += s.Lost
		sum.Replayed += s.Replayed
	}
	text := fmt.Sprintf("%d, each with %s batches", len(shards), thousands(shards[0].Batches+shards[0].Lost))
	if sum.Lost > 0 {
		text += ", the lost ones included"
	}
	if !equal {
		text = fmt.Sprintf("%d, WITH DIFFERENT NUMBERS OF BATCHES", len(shards))
	}
	return text + fmt.Sprintf("; %s skipped, %s lost, %s replayed, %s duplicates ignored",
		thousands(sum.Skipped), thousands(sum.Lost), thousands(sum.Replayed), thousands(sum.Duplicates))
}
