package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"starfish/checkpoint"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/ledger"
)

func checkpointCommand(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "checkpoint",
		Short: "List the checkpoints of a job, read them, or ask for new ones",
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(checkpointLsCommand(s), checkpointVerifyCommand(s), checkpointNowCommand(s))
	return c
}

// checkpointList is the answer of `starfish checkpoint ls`, `verify` and `now`.
type checkpointList struct {
	about
	Directory   string             `json:"directory"`
	Checkpoints []listedCheckpoint `json:"checkpoints"` // by shard, newest first

	verified bool
}

// listedCheckpoint is one record, and with `verify` what was found.
type listedCheckpoint struct {
	Shard      int    `json:"shard"`
	Seq        int64  `json:"seq"`
	UUID       string `json:"uuid"`
	Path       string `json:"path"`
	Size       int64  `json:"size"`
	MD5        string `json:"md5"`
	Timestamp  int64  `json:"timestamp"` // UnixNano by the saver's clock
	Generation int64  `json:"generation"`
	Passes     int    `json:"passes"`
	Batches    int64  `json:"batches"`
	// Loads and Error: only `verify` says them.
	Loads *bool  `json:"loads,omitempty"`
	Error string `json:"error,omitempty"`
}

func listed(m checkpoint.Meta) listedCheckpoint {
	return listedCheckpoint{Shard: m.Shard, Seq: m.Seq, UUID: m.UUID, Path: m.Path, Size: m.Size, MD5: m.MD5, Timestamp: m.Timestamp,
		Generation: m.Generation, Passes: m.Passes, Batches: m.Batches}
}

func checkpointLsCommand(s streams) *cobra.Command {
	var q question
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List the checkpoints of every shard, newest first",
		Example: "  starfish checkpoint ls --dir run1\n  starfish checkpoint ls --etcd-endpoints 10.0.0.1:2379 --job adult -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return q.ask(c.Context(), s, func(ctx context.Context, f *found) (answer, error) {
				l, _, err := listCheckpoints(ctx, f)
				return l, err
			})
		},
	}
	q.register(c)
	return c
}

func listCheckpoints(ctx context.Context, f *found) (*checkpointList, [][]checkpoint.Meta, error) {
	metas, _, err := checkpoint.ListAll(ctx, f.store, f.job.Parameters.Shards)
	if err != nil {
		return nil, nil, err
	}
	l := &checkpointList{about: aboutJob(f.job), Directory: f.directory(), Checkpoints: []listedCheckpoint{}}
	for _, ms := range metas {
		for _, m := range ms {
			l.Checkpoints = append(l.Checkpoints, listed(m))
		}
	}
	return l, metas, nil
}

func (l *checkpointList) text(b *strings.Builder) {
	if len(l.Checkpoints) == 0 {
		b.WriteString("no checkpoint is listed\n")
		return
	}
	fmt.Fprintf(b, "%s\n", l.Directory)
	table(b, func(row func(...string)) {
		titles := []string{"SHARD", "SEQ", "GENERATION", "SAVED", "SIZE", "PASSES", "BATCHES", "MD5", "FILE"}
		if l.verified {
			titles = append([]string{"LOADS"}, titles...)
		}
		row(titles...)
		for _, c := range l.Checkpoints {
			cells := []string{fmt.Sprint(c.Shard), fmt.Sprint(c.Seq), fmt.Sprint(c.Generation), time.Unix(0, c.Timestamp).Format(time.DateTime),
				bytesText(c.Size), fmt.Sprint(c.Passes), thousands(c.Batches), c.MD5, c.Path}
			if l.verified {
				cells = append([]string{servedText(c.Loads)}, cells...)
			}
			row(cells...)
		}
	})
	for _, c := range l.Checkpoints {
		if c.Error != "" {
			fmt.Fprintf(b, "%s: %s\n", c.Path, c.Error)
		}
	}
}

func checkpointVerifyCommand(s streams) *cobra.Command {
	var q question
	var dir string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Read every listed checkpoint as a restore would",
		Long: "Reads every listed checkpoint, as a pserver that restores the shard would: size, MD5, and all of its content.\n" +
			"Exit code 1 if one of them does not load, 5 if a shard has some and none of them loads.",
		Example: "  starfish checkpoint verify --dir run1\n  starfish checkpoint verify --etcd-endpoints 10.0.0.1:2379 --job adult --checkpoint-dir /mnt/ckpt",
		RunE: func(c *cobra.Command, _ []string) error {
			return q.open(c.Context(), s, func(ctx context.Context, f *found) error {
				if dir != "" {
					f.checkpoints = dir
				}
				l, verdict, err := verifyCheckpoints(ctx, f)
				if err == nil {
					err = say(s.out, q.form, l)
				}
				if err != nil {
					return err
				}
				return verdict
			})
		},
	}
	q.register(c)
	c.Flags().StringVar(&dir, "checkpoint-dir", "", "directory of the checkpoints (default: that of --dir, or the spec's checkpoint.dir)")
	return c
}

// verifyCheckpoints loads one checkpoint after the other, and says what is
// wrong with them all together.
func verifyCheckpoints(ctx context.Context, f *found) (l *checkpointList, verdict, err error) {
	l, metas, err := listCheckpoints(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	l.verified = true
	from := checkpoint.Loader{Dir: f.directory(), Job: f.job.UUID}
	broken, at := 0, 0
	var lost []string
	for shard, ms := range metas {
		good := 0
		for _, m := range ms {
			err := loads(ctx, f, from, shard, m)
			if ctx.Err() != nil {
				return nil, nil, context.Cause(ctx)
			}
			ok := err == nil
			l.Checkpoints[at].Loads = &ok
			if ok {
				good++
			} else {
				l.Checkpoints[at].Error = cli.Plain(err.Error())
				broken++
			}
			at++
		}
		if len(ms) > 0 && good == 0 {
			lost = append(lost, fmt.Sprint(shard))
		}
	}
	switch {
	case len(lost) > 0:
		verdict = job.Exitf(job.ExitStateLost, "no checkpoint of %s loads", numbered("shard", "shards", lost))
	case broken > 0:
		verdict = job.Exitf(job.ExitFailure, "%d of %d do not load; each shard has one that does", broken, len(l.Checkpoints))
	}
	return l, verdict, nil
}

// loads loads one checkpoint into a shard that is thrown away.
func loads(ctx context.Context, f *found, from checkpoint.Loader, shard int, m checkpoint.Meta) error {
	core, err := pserver.NewShard(f.job.Parameters, shard, f.job.Spec.Queue.Lanes, pserver.ShardOptions{Blank: true})
	if err != nil {
		return err
	}
	_, skipped, err := from.Load(ctx, []checkpoint.Meta{m}, core.NewLoader())
	if errors.Is(err, checkpoint.ErrNoneLoads) && len(skipped) == 1 {
		return skipped[0].Err
	}
	return err
}

func checkpointNowCommand(s streams) *cobra.Command {
	var q question
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "now",
		Short: "Have every shard saved now, and wait for it",
		Long: "Asks the owner of every shard for a checkpoint of its state from now on, waits until each shard lists one,\n" +
			"and lists these. Training goes on meanwhile.",
		Example: "  starfish checkpoint now --dir run1\n  starfish checkpoint now --etcd-endpoints 10.0.0.1:2379 --job adult --timeout 5m",
		RunE: func(c *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return cli.Usage("--timeout %s: a time to wait is positive", timeout)
			}
			return q.ask(c.Context(), s, func(ctx context.Context, f *found) (answer, error) { return saveNow(ctx, f, timeout) })
		},
	}
	q.register(c)
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the checkpoints; exit code 1 after it")
	return c
}

// savedEvery is how often it is looked whether the shards are saved.
const savedEvery = 100 * time.Millisecond

func saveNow(ctx context.Context, f *found, timeout time.Duration) (*checkpointList, error) {
	state, err := f.queue.State(ctx)
	if err != nil {
		return nil, err
	}
	if state.Phase.Ended() {
		return nil, job.Exitf(job.ExitFailure, "the job is %s: nothing is saved any more; `starfish checkpoint ls` lists what there is", state.Phase)
	}
	number, err := checkpoint.Request(ctx, f.store, f.job.Guard())
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statsTimeout)
		defer cancel()
		_ = checkpoint.Withdraw(ctx, f.store, number) // one that stays costs a save
	}()
	for until := clock.System.Now().Add(timeout); ; {
		l, missing, err := answers(ctx, f, number)
		if err != nil || len(missing) == 0 {
			return l, err
		}
		if clock.System.Now().After(until) {
			return nil, job.Exitf(job.ExitFailure, "no checkpoint within %s of %s", timeout, strings.Join(missing, ", "))
		}
		if err := clock.Sleep(ctx, clock.System, savedEvery); err != nil {
			return nil, err
		}
	}
}

// answers are the checkpoints that answer a request, and the shards that have
// none, with their owners.
func answers(ctx context.Context, f *found, number int64) (*checkpointList, []string, error) {
	_, metas, err := listCheckpoints(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	l := &checkpointList{about: aboutJob(f.job), Directory: f.directory(), Checkpoints: []listedCheckpoint{}}
	view, err := membership.ReadView(ctx, f.store)
	if err != nil {
		return nil, nil, err
	}
	var missing []string
	for shard, ms := range metas {
		if len(ms) > 0 {
			var sum ledger.Summary
			if json.Unmarshal(ms[0].Ledger, &sum) == nil && sum.Request >= number {
				l.Checkpoints = append(l.Checkpoints, listed(ms[0]))
				continue
			}
		}
		owner := "nobody"
		if shard < len(view.Shards) && view.Shards[shard].Owned() {
			owner = view.Shards[shard].Name
		}
		missing = append(missing, fmt.Sprintf("shard %d (owned by %s)", shard, owner))
	}
	return l, missing, nil
}
