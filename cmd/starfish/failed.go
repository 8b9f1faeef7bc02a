package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"starfish/internal/cli"
	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/pserver/pb"
)

// failedChunk is a quarantined chunk.
type failedChunk struct {
	Chunk int64 `json:"chunk"`
	Pass  int   `json:"pass"` // in which it was quarantined
	Rank  int64 `json:"rank"` // in that pass; -1 if its lanes are gone
	// File, Start and End say where it lies; absent where the list of files is
	// not stored.
	File     string `json:"file,omitempty"`
	Start    int64  `json:"start"`
	End      int64  `json:"end"`
	Reason   string `json:"reason"`
	Failures int    `json:"failures"`
	Trainer  string `json:"trainer"` // that reported the last failure
}

// readFailed lists the quarantined chunks.
func readFailed(ctx context.Context, f *found, data jobData) ([]failedChunk, error) {
	records, err := f.queue.FailedChunks(ctx)
	if err != nil {
		return nil, err
	}
	chunks := []failedChunk{}
	for _, r := range records {
		c := failedChunk{Chunk: r.Chunk, Pass: r.Pass, Rank: -1, Reason: cli.Plain(r.Reason), Failures: r.Failures, Trainer: r.Owner}
		if m, err := f.queue.Manifest(ctx, r.Pass); err == nil {
			c.Rank = f.queue.Rank(m, r.Pass, r.Chunk)
		}
		if data.plan != nil {
			if span, err := data.plan.Span(r.Chunk); err == nil {
				c.File, c.Start, c.End = span.File, span.Start, span.End
			}
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// failedList is the answer of `starfish queue failed`.
type failedList struct {
	about
	Failed []countedChunk `json:"failed"` // by chunk
}

// countedChunk is a quarantined chunk with what shards have of it.
type countedChunk struct {
	failedChunk
	// Batches of it, by shard, that were applied or skipped in the pass in which
	// it was quarantined, before that; null for a shard that does not tell.
	Batches []*int64 `json:"batches"`
}

func queueFailedCommand(s streams) *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:   "failed",
		Short: "List the quarantined chunks and why",
		Long: "Lists the quarantined chunks: where they lie, what is wrong with them, and how many batches of each were\n" +
			"applied before it failed, which the pservers are asked for.",
		Example: "  starfish queue failed --dir run1\n  starfish queue failed --etcd-endpoints 10.0.0.1:2379 --job adult -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return q.ask(c.Context(), s, listFailed)
		},
	}
	q.register(c)
	return c
}

func listFailed(ctx context.Context, f *found) (answer, error) {
	data, err := readData(ctx, f.queue)
	if err != nil {
		return nil, err
	}
	failed, err := readFailed(ctx, f, data)
	if err != nil {
		return nil, err
	}
	l := &failedList{about: aboutJob(f.job), Failed: []countedChunk{}}
	var at []*pb.ChunkRef
	for _, c := range failed {
		l.Failed = append(l.Failed, countedChunk{c, make([]*int64, f.job.Parameters.Shards)})
		at = append(at, &pb.ChunkRef{Pass: int64(c.Pass), Rank: max(c.Rank, 0)})
	}
	if len(at) == 0 {
		return l, nil
	}
	progress, err := askProgress(ctx, f, at)
	for shard, counts := range progress {
		for i, n := range counts {
			if l.Failed[i].Rank >= 0 {
				l.Failed[i].Batches[shard] = n
			}
		}
	}
	return l, err
}

// askProgress asks each shard's owner how many batches it has of chunks that are
// not finished: by shard and chunk, nil where it does not tell or has finished it.
func askProgress(ctx context.Context, f *found, chunks []*pb.ChunkRef) ([][]*int64, error) {
	view, err := membership.ReadView(ctx, f.store)
	if err != nil {
		return nil, err
	}
	counts := make([][]*int64, len(view.Shards))
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for i, o := range view.Shards {
		if !o.Owned() {
			continue
		}
		g.Go(func() error {
			req := &pb.ProgressRequest{Job: f.job.UUID[:], Shards: []*pb.ShardRef{{Shard: uint32(i), Generation: o.Generation}}, Chunks: chunks}
			counts[i] = progressOf(ctx, transport.TCP, o.Address, req)
			return nil
		})
	}
	return counts, g.Wait()
}

// progressOf asks one owner about one shard; nil if there is no answer.
func progressOf(ctx context.Context, n transport.Network, address string, req *pb.ProgressRequest) []*int64 {
	cc, err := transport.NewClient(n, address)
	if err != nil {
		return nil
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	r, err := pb.NewPServerClient(cc).Progress(ctx, req)
	if err != nil || len(r.Shards) != 1 || len(r.Shards[0].Chunks) != len(req.Chunks) {
		return nil
	}
	counts := make([]*int64, len(req.Chunks))
	for i, c := range r.Shards[0].Chunks {
		if !c.Finished {
			counts[i] = &c.Next
		}
	}
	return counts
}

func (l *failedList) text(b *strings.Builder) {
	if len(l.Failed) == 0 {
		b.WriteString("no chunk is quarantined\n")
		return
	}
	for i, c := range l.Failed {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "chunk %d failed %s, last in pass %d, reported by %s\n", c.Chunk, plural(int64(c.Failures), "time", "times"), c.Pass+1, c.Trainer)
		fmt.Fprintf(b, "  reason   %s\n", c.Reason)
		if c.File != "" {
			fmt.Fprintf(b, "  data     %s, bytes %d to %d\n", c.File, c.Start, c.End)
		}
		fmt.Fprintf(b, "  applied  %s\n", appliedText(c.Batches))
	}
}

// appliedText says how many batches the shards have.
func appliedText(batches []*int64) string {
	var known []int64
	for _, n := range batches {
		if n != nil {
			known = append(known, *n)
		}
	}
	if len(known) == 0 {
		return "unknown: no pserver answers"
	}
	equal := true
	for _, n := range known {
		equal = equal && n == known[0]
	}
	silent := ""
	if n := len(batches) - len(known); n > 0 {
		silent = "; no answer from " + plural(int64(n), "shard", "shards")
	}
	if equal {
		return fmt.Sprintf("%s before it failed, on each shard%s", plural(known[0], "batch", "batches"), silent)
	}
	var parts []string
	for shard, n := range batches {
		if n != nil {
			parts = append(parts, fmt.Sprintf("%d on shard %d", *n, shard))
		}
	}
	return "batches before it failed: " + strings.Join(parts, ", ") + silent
}
