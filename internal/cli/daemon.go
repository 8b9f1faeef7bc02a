package cli

import (
	"context"
	"fmt"
	"os"

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

	// Models are the models that this program knows beside the built-in ones; a
	// spec may name no other.
	Models []string

	// Spec is the parsed SpecFile, nil without one.
	Spec *job.Spec
	// Log is the process's logger.
	Log logrus.FieldLogger
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
	return nil
}

// DaemonCommand is the command of a daemon: it resolves the flags, reaches etcd
// and runs.
func DaemonCommand(d *Daemon, name, short string, run func(ctx context.Context, st store.Store) error) *cobra.Command {
	c := &cobra.Command{
		Use:     name,
		Short:   short,
		Version: Version(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := d.Resolve(os.Stderr); err != nil {
				return err
			}
			st, closeStore, err := d.Connect(c.Context(), d.Log)
			if err != nil {
				return orderly(c.Context(), err)
			}
			defer closeStore()
			return orderly(c.Context(), run(c.Context(), st))
		},
	}
	c.SetVersionTemplate(fmt.Sprintf("%s {{.Version}}\n", name))
	d.Register(c.Flags())
	return c
}

// orderly turns the end by a signal into the orderly one that it is.
func orderly(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil && job.ExitCode(err) == int(job.ExitFailure) && isCancel(ctx, err) {
		return nil
	}
	return err
}
