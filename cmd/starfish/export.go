package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sort"
	"strconv"

	"github.com/spf13/cobra"

	"starfish/checkpoint"
	"starfish/internal/cli"
	"starfish/job"
	"starfish/pserver"
)

func exportCommand(s streams) *cobra.Command {
	var t target
	var out, checkpoints string
	c := &cobra.Command{
		Use:     "export -o FILE.txt",
		Short:   "Write the trained model of a job to a file",
		Long:    "Writes what the newest checkpoints of a job hold: of a complete job its model, of a running one its\nstate at the last saves.",
		Example: "  starfish export --dir run1 -o model.txt\n  starfish export --etcd-endpoints 10.0.0.1:2379 --job adult -o model.txt",
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				return cli.Usage("-o is missing: name the file to write")
			}
			if err := checkExportName(out); err != nil {
				return err
			}
			log, err := t.Logger(s.err)
			if err != nil {
				return err
			}
			f, err := t.open(c.Context(), log)
			if err != nil {
				return err
			}
			defer f.close()
			if checkpoints != "" {
				f.checkpoints = checkpoints
			}
			n, err := exportText(c.Context(), f, out)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "%s values written to %s\n", thousands(n), out)
			return err
		},
	}
	t.register(c.Flags())
	c.Flags().StringVar(&checkpoints, "checkpoint-dir", "", "directory of the checkpoints (default: that of --dir, or the spec's checkpoint.dir)")
	c.Flags().StringVarP(&out, "output", "o", "", "file to write (required); its suffix names the form: .txt")
	return c
}

// exportText writes the model as text, sorted by parameter and key, and returns
// the number of its lines.
func exportText(ctx context.Context, f *found, file string) (int64, error) {
	shards, err := loadShards(ctx, f)
	if err != nil {
		return 0, err
	}
	var lines int64
	err = writeWhole(file, func(out *os.File) error {
		w := bufio.NewWriterSize(out, 1<<20)
		fmt.Fprintf(w, "# starfish model of job %s (%s), version 1: parameter, index or key, values\n", f.job.Spec.Job, f.job.UUID)
		for _, p := range byName(f.job.Parameters.List) {
			lines += writeParameter(w, f.job.Parameters.List[p].Name, p, shards)
		}
		return w.Flush()
	})
	return lines, err
}

// byName is the numbers of the parameters in the order of their names.
func byName(list []job.Parameter) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return list[order[i]].Name < list[order[j]].Name })
	return order
}

// writeParameter writes one parameter, merging what the shards hold of it. The
// writer keeps its first error until Flush.
func writeParameter(w *bufio.Writer, name string, parameter int, shards []*pserver.Shard) (lines int64) {
	var heads []*head
	for _, s := range shards {
		next, stop := iter.Pull2(s.Export(parameter))
		defer stop()
		if h := (&head{next: next}); h.advance() {
			heads = append(heads, h)
		}
	}
	for ; len(heads) > 0; lines++ {
		least := 0
		for i, h := range heads {
			if h.key < heads[least].key {
				least = i
			}
		}
		h := heads[least]
		_, _ = w.WriteString(name)
		_ = w.WriteByte('\t')
		_, _ = w.WriteString(strconv.FormatUint(h.key, 10))
		_ = w.WriteByte('\t')
		_, _ = w.Write(h.text)
		_ = w.WriteByte('\n')
		if !h.advance() {
			heads = append(heads[:least], heads[least+1:]...)
		}
	}
	return lines
}

// head is the next row of one shard.
type head struct {
	next func() (uint64, []byte, bool)
	key  uint64
	text []byte
}

func (h *head) advance() (ok bool) {
	h.key, h.text, ok = h.next()
	return ok
}

// loadShards loads the newest checkpoint of every shard.
func loadShards(ctx context.Context, f *found) ([]*pserver.Shard, error) {
	metas, _, err := checkpoint.ListAll(ctx, f.store, f.job.Parameters.Shards)
	if err != nil {
		return nil, err
	}
	from := checkpoint.Loader{Dir: f.directory(), Job: f.job.UUID}
	shards := make([]*pserver.Shard, len(metas))
	for i, ms := range metas {
		if len(ms) == 0 {
			return nil, fmt.Errorf("shard %d of job %s has no checkpoint yet", i, f.job.Spec.Job)
		}
		shards[i], err = pserver.NewShard(f.job.Parameters, i, f.job.Spec.Queue.Lanes, pserver.ShardOptions{})
		if err != nil {
			return nil, err
		}
		// Only the newest: an older one would be another model.
		if _, _, err = from.Load(ctx, ms[:1], shards[i].NewLoader()); err != nil {
			if errors.Is(err, checkpoint.ErrNoneLoads) {
				err = job.Exit(job.ExitStateLost, err)
			}
			return nil, err
		}
	}
	return shards, nil
}
