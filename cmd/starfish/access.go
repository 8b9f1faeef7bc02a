package main

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/job"
)

// target are the flags by which an operator's command finds a job: --job in an
// etcd, or --dir of a local run.
type target struct {
	cli.Etcd
	cli.Logging
	job string
	dir string
}

func (t *target) register(fs *pflag.FlagSet) {
	t.Etcd.Register(fs)
	t.Logging.Register(fs)
	fs.StringVar(&t.job, "job", "", "name of the job")
	fs.StringVar(&t.dir, "dir", "", "directory of a local run, instead of --etcd-endpoints and --job")
}

// found is a job that was found.
type found struct {
	store store.Store // its keys are relative to the job's prefix
	job   job.Job
	// checkpoints is where the files are; empty: where the spec says.
	checkpoints string
	close       func()
}

// open finds the job. A local run that has ended is opened by starting its etcd
// for as long as the command takes.
func (t *target) open(ctx context.Context, log logrus.FieldLogger) (*found, error) {
	f := &found{close: func() {}}
	where := t.Etcd
	name := t.job
	if t.dir != "" {
		if len(where.Endpoints) > 0 {
			return nil, cli.Usage("--dir and --etcd-endpoints exclude each other")
		}
		w := workdir{path: t.dir}
		r, err := w.readRun()
		if err != nil {
			return nil, err
		}
		if name == "" {
			name = r.Job
		}
		f.checkpoints = w.checkpoints()
		where.Endpoints = r.Endpoints
		if r.Embedded {
			if where.Endpoints, f.close, err = wake(ctx, w, r, log); err != nil {
				return nil, err
			}
		}
	}
	if name == "" {
		return nil, cli.Usage("--job is missing: name the job, or the --dir of a local run")
	}
	st, closeStore, err := where.Connect(ctx, log)
	if err != nil {
		f.close()
		return nil, err
	}
	stopEtcd := f.close
	f.close = func() {
		closeStore()
		stopEtcd()
	}
	f.store = store.Prefixed(st, job.Prefix(name))
	f.job, err = job.Load(ctx, f.store)
	if err != nil {
		f.close()
		if errors.Is(err, job.ErrNoJob) {
			return nil, cli.Usage("there is no job %q", name)
		}
		return nil, err
	}
	return f, nil
}

// wake starts the etcd of a local run that has ended; if it has not, its own
// endpoints are used.
func wake(ctx context.Context, w workdir, r runFile, log logrus.FieldLogger) ([]string, func(), error) {
	srv, err := embedded.Start(ctx, embedded.Config{Dir: w.etcd(), Durable: true, Log: log})
	if errors.Is(err, embedded.ErrInUse) {
		return r.Endpoints, func() {}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return srv.Endpoints(), srv.Close, nil
}
