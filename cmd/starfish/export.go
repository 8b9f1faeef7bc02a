package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"starfish/checkpoint"
	"starfish/internal/cli"
	"starfish/internal/modelfile"
	"starfish/job"
	"starfish/pserver"
)

func exportCommand(s streams) *cobra.Command {
	var t target
	var out, checkpoints string
	c := &cobra.Command{
		Use:   "export -o FILE",
		Short: "Write the trained model of a job to a file",
		Long: "Writes what the newest checkpoints of a job hold: of a complete job its model, of a running one its\n" +
			"state at the last saves. The file's suffix names the form: .npz, .safetensors, anything else is text.",
		Example: "  starfish export --dir run1 -o model.npz\n  starfish export --etcd-endpoints 10.0.0.1:2379 --job adult -o model.txt",
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				return cli.Usage("-o is missing: name the file to write")
			}
			if err := errors.Join(checkExportName(out), checkWritable("-o", out)); err != nil {
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
			n, err := exportModel(c.Context(), f, out)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "%s rows and elements written to %s\n", thousands(n), out)
			return err
		},
	}
	t.register(c.Flags())
	c.Flags().StringVar(&checkpoints, "checkpoint-dir", "", "directory of the checkpoints (default: that of --dir, or the spec's checkpoint.dir)")
	c.Flags().StringVarP(&out, "output", "o", "", "file to write (required); its suffix names the form: .npz, .safetensors, else text")
	return c
}

// checkExportName refuses what is no file.
func checkExportName(file string) error {
	if file == "-" {
		return cli.Usage("an export goes to a file, not to -")
	}
	return nil
}

// exportModel writes the model in the form that the file's name asks for, and
// returns the number of its rows and elements.
func exportModel(ctx context.Context, f *found, file string) (n int64, err error) {
	shards, err := loadShards(ctx, f)
	if err != nil {
		return 0, err
	}
	parts := make([]modelfile.Content, len(shards))
	for i, s := range shards {
		parts[i] = s
	}
	meta := modelfile.Metadata{
		Job: f.job.Spec.Job, UUID: f.job.UUID.String(), Spec: f.job.Spec, Parameters: f.job.Parameters,
		Records: shards[0].Stats().Total.Records,
	}
	err = writeWhole(file, func(out *os.File) error {
		n, err = modelfile.Write(out, modelfile.FormOf(file), meta, modelfile.Merge(f.job.Parameters.List, parts))
		return err
	})
	return n, err
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
		shards[i], err = pserver.NewShard(f.job.Parameters, i, f.job.Spec.Queue.Lanes, pserver.ShardOptions{Blank: true})
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
