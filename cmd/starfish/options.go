package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/supervise"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer/model"
)

// The kinds of child processes.
const (
	kindPserver = "pserver"
	kindTrainer = "trainer"
)

// maxProcesses is how many of a kind a run starts at most, as in a spec.
const maxProcesses = 1000

// options are the flags of `starfish run`.
type options struct {
	cli.Etcd
	cli.Logging

	spec       string
	sets       []string
	pservers   int
	trainers   int
	dir        string
	result     string
	export     string
	metricsOut string
	chaosText  string
	chaosSeed  uint64
	failedOK   bool
	reinit     bool
	maxMemory  cli.Size
	recovery   string
	pserverBin string
	trainerBin string

	chaos supervise.Chaos
	// variables of the environment stand for these flags here; to the processes
	// they would mean something else.
	variables []string
}

func runCommand(s streams) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "run -f SPEC.yaml",
		Short: "Run a whole job on this machine",
		Long: "Runs a whole job on this machine: an embedded etcd (or the one of --etcd-endpoints), and the\n" +
			"job's pservers and trainers as processes that are restarted when they die.",
		Example: "  starfish run -f examples/adult/adult.yaml\n" +
			"  starfish run -f job.yaml --set train.passes=20 --dir run1 --result - --export model.txt\n" +
			"  starfish run -f job.yaml --chaos pserver=5s,trainer=3s",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			o.variables = cli.Variables(c.Flags())
			return run(c.Context(), &o, s)
		},
	}
	o.register(c)
	return c
}

func (o *options) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&o.spec, "file", "f", "", "file of the job's spec (required)")
	fs.StringArrayVar(&o.sets, "set", nil, "path=value overrides one field of the spec; may be repeated")
	fs.IntVar(&o.pservers, "pservers", 0, "number of pservers (default: the spec's run.pservers)")
	fs.IntVar(&o.trainers, "trainers", 0, "number of trainers (default: the spec's run.trainers)")
	fs.StringVar(&o.dir, "dir", "", "directory of etcd's data, checkpoints and logs: kept, and resumed from if it exists\n"+
		"(default: a temporary one that is removed at the end; required with --etcd-endpoints)")
	fs.StringVar(&o.result, "result", "", "write the result as JSON to this file; - is stdout")
	fs.StringVar(&o.export, "export", "", "write the trained model to this file; its suffix names the form: .npz, .safetensors, else text")
	fs.StringVar(&o.metricsOut, "metrics-out", "", "append progress, passes and result to this file, one line of JSON each")
	fs.StringVar(&o.chaosText, "chaos", "", "kill random processes, such as pserver=5s,trainer=3s: one of that kind about that often")
	fs.Uint64Var(&o.chaosSeed, "chaos-seed", 1, "seed of --chaos")
	fs.BoolVar(&o.failedOK, "allow-failed-chunks", false, "exit 0 even if chunks were quarantined (else 7)")
	fs.BoolVar(&o.reinit, "allow-reinit", false, "let a shard of which no checkpoint loads begin anew (else exit 5)")
	fs.Var(&o.maxMemory, "max-memory", "most memory of each pserver for tables and incomplete pushes, for example 4GiB (default: no limit)")
	fs.StringVar(&o.recovery, "recovery", string(pserver.RecoveryAuto), "of each pserver: one-barrier recovery mode of synchronous training: auto, always or never")
	fs.StringVar(&o.pserverBin, "pserver-binary", "", "program of the pservers (default: pserver beside starfish)")
	fs.StringVar(&o.trainerBin, "trainer-binary", "", "program of the trainers, such as one with models of its own\n(default: trainer beside starfish)")
	o.Etcd.Register(fs)
	o.Logging.Register(fs)
}

// validate checks what can be checked without I/O.
func (o *options) validate() error {
	if o.spec == "" {
		return cli.Usage("-f is missing: name the file of the job's spec")
	}
	if o.pservers < 0 || o.trainers < 0 {
		return cli.Usage("--pservers %d, --trainers %d: a number of processes is not negative", o.pservers, o.trainers)
	}
	if o.pservers > maxProcesses || o.trainers > maxProcesses {
		return cli.Usage("--pservers %d, --trainers %d: at most %d of each", o.pservers, o.trainers, maxProcesses)
	}
	if len(o.Endpoints) > 0 && o.dir == "" {
		return cli.Usage("--etcd-endpoints needs --dir: the job stays in that etcd, and its checkpoints must stay too")
	}
	if len(o.Endpoints) == 0 {
		if err := o.RefuseCredentials(); err != nil {
			return err
		}
	}
	if o.chaosText != "" {
		var err error
		if o.chaos, err = supervise.ParseChaos(o.chaosText, kindPserver, kindTrainer); err != nil {
			return cli.Usage("--chaos: %w", err)
		}
	}
	flags := pserver.Config{Recovery: pserver.Recovery(o.recovery), MaxMemory: int64(o.maxMemory)}
	if err := flags.CheckFlags(); err != nil {
		return cli.Usage("%w", err)
	}
	return checkExportName(o.export)
}

// checkOutputs makes sure that what is asked for can be written in the end.
func (o *options) checkOutputs() error {
	return errors.Join(checkWritable("--result", o.result), checkWritable("--export", o.export))
}

// checkWritable makes sure, before the job runs, that a file can be written
// where its end is to be reported.
func checkWritable(flag, file string) error {
	if file == "" || file == "-" {
		return nil
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return cli.Usage("%s %s: is a directory", flag, file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".starfish-*")
	var path *fs.PathError
	switch {
	case errors.As(err, &path): // its name is that of the trial
		return cli.Usage("%s %s: %w", flag, file, path.Err)
	case err != nil:
		return cli.Usage("%s %s: %w", flag, file, err)
	}
	f.Close()
	os.Remove(f.Name())
	return nil
}

// readSpec reads the spec and puts the numbers of processes into it.
func (o *options) readSpec() (*job.Spec, error) {
	var opts []job.Option
	if o.trainerBin == "" {
		opts = append(opts, job.Models(model.Names()...))
	}
	if !o.resumes() {
		opts = append(opts, job.CheckFiles())
	}
	spec, err := job.ReadSpec(o.spec, o.sets, opts...)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	if o.pservers > 0 {
		spec.Run.Pservers = o.pservers
	}
	if o.trainers > 0 {
		spec.Run.Trainers = o.trainers
	}
	return spec, nil
}

// resumes tells whether there was a run in the directory: its job may be
// complete, and its data gone.
func (o *options) resumes() bool {
	if o.dir == "" {
		return false
	}
	_, err := os.Stat(workdir{path: o.dir}.runPath())
	return err == nil
}
