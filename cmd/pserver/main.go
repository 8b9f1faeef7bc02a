// Command pserver is the parameter server of a starfish job: it owns shards of
// the job's parameters, applies what trainers push and answers what they pull.
package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

func main() {
	os.Exit(cli.Main(command, os.Args[1:], os.Stderr))
}

func command() *cobra.Command {
	var d cli.Daemon
	var cfg pserver.Config
	c := cli.DaemonCommand(&d, "pserver", "Own shards of a starfish job's parameters and serve them to trainers",
		func(ctx context.Context, st store.Store) error {
			return run(ctx, &d, cfg, store.Prefixed(st, job.Prefix(d.Job)))
		})
	d.Check = cfg.CheckFlags
	fs := c.Flags()
	fs.StringVar(&cfg.Listen, "listen", ":0", "address to serve on")
	fs.StringVar(&cfg.Advertise, "advertise", "", "host:port that trainers dial; without a port the listener's (default: the host's name and the listener's port)")
	fs.StringVar((*string)(&cfg.Recovery), "recovery", string(pserver.RecoveryAuto), "one-barrier recovery mode of synchronous training: auto, always or never")
	fs.StringVar(&cfg.CheckpointDir, "checkpoint-dir", "", "directory of the checkpoints (default: the spec's checkpoint.dir)")
	fs.Var((*cli.Size)(&cfg.MaxMemory), "max-memory", "most memory for tables and incomplete pushes, for example 4GiB; more rows are refused (default: no limit)")
	fs.BoolVar(&cfg.AllowReinit, "allow-reinit", false, "let a shard of which no listed checkpoint loads begin anew (else exit 5)")
	return c
}

// collect makes the garbage collector keep the process near its memory limit:
// without that it lets the heap grow to twice what is in use. GOMEMLIMIT, where it is set,
// stays as it is.
func collect(log logrus.FieldLogger, limit int64) {
	set := debug.SetMemoryLimit(-1)
	switch {
	case limit == 0:
	case set == math.MaxInt64:
		debug.SetMemoryLimit(limit + limit/4 + 64<<20)
	case set < limit+limit/10:
		log.WithFields(logrus.Fields{"GOMEMLIMIT": set, "max_memory": limit}).
			Warn("GOMEMLIMIT is hardly above --max-memory: near the limit the garbage collector will be busy all the time")
	}
}

func run(ctx context.Context, d *cli.Daemon, cfg pserver.Config, st store.Store) error {
	collect(d.Log, cfg.MaxMemory)
	cfg.Store, cfg.Name, cfg.Takeover = st, d.Name, d.Takeover
	cfg.Log, cfg.Registerer, cfg.Version = d.Log, d.Registry, cli.Version()
	if d.Spec != nil {
		cfg.Create = func(ctx context.Context) error { return create(ctx, st, d.Spec) }
	}
	s, err := pserver.New(cfg)
	if err != nil {
		return cli.Usage("%w", err)
	}
	d.Show(s.Ready, func() any { return s.Status() })
	return s.Run(ctx)
}

// create makes the job of a built-in model. Pservers know no models; this
// program does, so that a job can be started by either daemon.
func create(ctx context.Context, st store.Store, spec *job.Spec) error {
	m, err := model.New(spec)
	if err != nil {
		return cli.Usage("%w", err)
	}
	_, err = trainer.CreateJob(ctx, st, spec, m)
	return err
}
