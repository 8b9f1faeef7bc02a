package trainer

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/job"
)

// Main is the main function of a trainer process: of the one that comes with
// starfish, and of a program with models of its own, which models holds by the
// name that the spec's model.type gives them. It does not return.
//
//	func main() {
//		trainer.Main(map[string]trainer.Builder{"mine": newMine})
//	}
func Main(models map[string]Builder) {
	os.Exit(cli.Main(func() *cobra.Command { return command(models) }, os.Args[1:], os.Stderr))
}

func command(models map[string]Builder) *cobra.Command {
	var d cli.Daemon
	var cfg Config
	for name := range models {
		d.Models = append(d.Models, name)
	}
	cmd := cli.DaemonCommand(&d, "trainer", "Train a starfish job: take chunks, compute gradients, push them to the pservers",
		func(ctx context.Context, st store.Store) error {
			cfg.Store = store.Prefixed(st, job.Prefix(d.Job))
			cfg.Job, cfg.Spec, cfg.Models, cfg.Name, cfg.Takeover = d.Job, d.Spec, models, d.Name, d.Takeover
			cfg.Version, cfg.Log, cfg.Registerer = cli.Version(), d.Log, d.Registry
			t, err := New(cfg)
			if err != nil {
				return err
			}
			d.Show(t.Ready, func() any { return t.Status() })
			return t.Run(ctx)
		})
	d.Check = cfg.checkFlags
	cmd.Flags().StringVar(&cfg.Listen, "listen", ":0", "address at which this trainer answers who it is")
	cmd.Flags().StringVar(&cfg.Advertise, "advertise", "", "host:port at which others reach it; without a port the listener's (default: the host's name and the listener's port)")
	cmd.Flags().IntVar(&cfg.Take, "take", 0, "how many chunks a take asks for (default: about a second's work)")
	return cmd
}
