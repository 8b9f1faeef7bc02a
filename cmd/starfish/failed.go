package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/membership"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/pb"
)

// readFailed lists the quarantined chunks, by number.
func readFailed(ctx context.Context, q *etcdqueue.Queue) ([]job.FailedChunk, error) {
	records, err := q.FailedChunks(ctx)
	if err != nil {
		return nil, err
	}
	chunks := []job.FailedChunk{}
	for _, r := range records {
		c := job.FailedChunk{Chunk: r.Chunk, Pass: r.Pass, Reason: cli.Plain(r.Reason), Failures: r.Failures, Trainer: r.Owner}
		if err := c.Describe(r.Detail); err != nil {
			return nil, err
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// failedList is the answer of `starfish queue failed`.
type failedList struct {
	about
	Failed []job.FailedChunk `json:"failed"` // by chunk
}

func queueFailedCommand(s streams) *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:   "failed",
		Short: "List the quarantined chunks and why",
		Long: "Lists the quarantined chunks: where they lie, what is wrong with them, and how many batches of each were\n" +
			"applied before it failed, for which the pservers are asked.",
		Example: "  starfish queue failed --dir run1\n  starfish queue failed --etcd-endpoints 10.0.0.1:2379 --job adult -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return q.ask(c.Context(), s, listFailed)
		},
	}
	q.register(c)
	return c
}

// listFailed asks the shards how many batches they have of the chunks now: one
// that was restored since may have fewer than when the chunk failed. Where it
// does not answer, what it had then stands.
func listFailed(ctx context.Context, f *found) (answer, error) {
	l := &failedList{about: aboutJob(f.job)}
	var err error
	if l.Failed, err = readFailed(ctx, f.queue); err != nil || len(l.Failed) == 0 {
		return l, err
	}
	var at []*pb.ChunkRef
	for _, c := range l.Failed {
		at = append(at, &pb.ChunkRef{Pass: int64(c.Pass), Rank: c.Rank})
	}
	progress, err := askProgress(ctx, f, at)
	for shard, counts := range progress {
		for i, n := range counts {
			if n != nil && shard < len(l.Failed[i].Batches) {
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
		fmt.Fprintf(b, "  data     %s, bytes %d to %d\n", c.File, c.Start, c.End)
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
		return "unknown: no shard tells"
	}
	equal := !slices.ContainsFunc(known, func(n int64) bool { return n != known[0] })
	silent := ""
	if n := len(batches) - len(known); n > 0 {
		silent = "; unknown on " + plural(int64(n), "shard", "shards")
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
