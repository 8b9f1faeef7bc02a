package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starfish/internal/store"
	"starfish/job"
	"starfish/trainer/model"
)

// Daemon is what every daemon is told by flags: which job it belongs to, who it
// is, and how it reaches etcd and is reached. What the job means stands in the
// spec.
type Daemon struct {
	Etcd
	Logging
	Job      string
	SpecFile string
	Sets     []string
	Name     string
	Admin    string
	Takeover bool
	// Idle keeps the process when its job is complete, until a signal.
	Idle bool
	// SignalCode is the exit code of an orderly end by a signal.
	SignalCode uint8

	// Models are the models that this program knows beside the built-in ones; a
	// spec may name no other.
	Models []string

	// Check says what is wrong with the flags that the daemon has besides; optional.
	Check func() error

	// Spec is the parsed SpecFile, nil without one.
	Spec *job.Spec
	// Log is the process's logger.
	Log logrus.FieldLogger
	// Registry holds the metrics that the admin port shows; there is one when the
	// daemon runs.
	Registry *prometheus.Registry

	faces *faces
}

// Register adds the flags.
func (d *Daemon) Register(fs *pflag.FlagSet) {
	d.Etcd.Register(fs)
	d.Logging.Register(fs)
	fs.StringVar(&d.Job, "job", "", "name of the job (default: the spec's)")
	fs.StringVar(&d.SpecFile, "spec", "", "file of the job's spec: creates the job if there is none; without it the process waits for the job")
	fs.StringArrayVar(&d.Sets, "set", nil, "path=value overrides one field of the spec; may be repeated")
	fs.StringVar(&d.Name, "name", "", "name of this process in the job (default: the host's name)")
	fs.StringVar(&d.Admin, "admin-address", ":0", "address of /metrics, /healthz, /readyz, /status and /debug/pprof/; empty for none")
	fs.BoolVar(&d.Takeover, "takeover", false, "take the name over even from a process that is alive")
	fs.BoolVar(&d.Idle, "idle-when-complete", false, "stay, ready and doing nothing, when the job is complete, until a signal: for supervisors that start again whatever ends")
	fs.Uint8Var(&d.SignalCode, "signal-exit-code", 0, "exit code of an orderly end by a signal: for supervisors to which 0 means that the work is done")
}

// Resolve reads the spec and fills in the defaults. It does no network I/O.
func (d *Daemon) Resolve(stderr *os.File) error {
	log, err := d.Logger(stderr)
	if err != nil {
		return err
	}
	d.Log = log
	if d.SpecFile != "" {
		if d.Spec, err = job.ReadSpec(d.SpecFile, d.Sets, job.Models(append(model.Names(), d.Models...)...)); err != nil {
			return Usage("%w", err)
		}
		switch d.Job {
		case "", d.Spec.Job:
			d.Job = d.Spec.Job
		default:
			return Usage("--job %q, but the spec %s is of job %q", d.Job, d.SpecFile, d.Spec.Job)
		}
	} else if len(d.Sets) > 0 {
		return Usage("--set needs --spec")
	}
	if d.Job == "" {
		return Usage("--job is missing: name the job, or give its --spec")
	}
	if d.Name == "" {
		if d.Name, err = os.Hostname(); err != nil {
			return Usage("--name is missing and the host has no name: %w", err)
		}
	}
	if err := job.CheckName(d.Job); err != nil {
		return Usage("--job: %w", err)
	}
	if err := job.CheckName(d.Name); err != nil {
		return Usage("--name: %w", err)
	}
	if d.Check != nil {
		if err := d.Check(); err != nil {
			return Usage("%w", err)
		}
	}
	return nil
}

// DaemonCommand is the command of a daemon: it resolves the flags, opens the admin
// port, reaches etcd and runs; run calls Show.
func DaemonCommand(d *Daemon, name, short string, run func(ctx context.Context, st store.Store) error) *cobra.Command {
	c := &cobra.Command{
		Use:     name,
		Short:   short,
		Version: Version(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := d.Resolve(os.Stderr); err != nil {
				return err
			}
			ctx := c.Context()
			return d.withAdmin(ctx, func() error {
				return d.end(ctx, orderly(ctx, d.connected(ctx, run)))
			})
		},
	}
	c.SetVersionTemplate(fmt.Sprintf("%s {{.Version}}\n", name))
	d.Register(c.Flags())
	return c
}

func (d *Daemon) connected(ctx context.Context, run func(ctx context.Context, st store.Store) error) error {
	st, closeStore, err := d.Connect(ctx, d.Log)
	if err != nil {
		return err
	}
	defer closeStore()
	return run(ctx, st)
}

// end is the end of a daemon that has done its work, has failed or was told to
// stop: with Idle the first waits for a signal, and the last has an exit code of
// its own.
func (d *Daemon) end(ctx context.Context, err error) error {
	switch {
	case err != nil:
		return err
	case ctx.Err() == nil && d.Idle:
		d.faces.over()
		d.Log.Info("there is nothing more to do, idle until a signal")
		<-ctx.Done()
		return nil
	case ctx.Err() != nil && d.SignalCode != 0:
		return job.Exitf(job.Code(d.SignalCode), "%w", context.Cause(ctx))
	}
	return nil
}

// orderly turns the end by a signal into the orderly one that it is.
func orderly(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil && job.ExitCode(err) == int(job.ExitFailure) && isCancel(ctx, err) {
		return nil
	}
	return err
}
