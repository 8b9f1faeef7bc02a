package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
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
	t.registerPlace(fs)
	fs.StringVar(&t.job, "job", "", "name of the job (default: with --dir that of the run)")
}

// registerPlace adds the flags that say in which etcd, but not which job.
func (t *target) registerPlace(fs *pflag.FlagSet) {
	t.Etcd.Register(fs)
	t.Logging.Register(fs)
	fs.StringVar(&t.dir, "dir", "", "directory of a local run, instead of --etcd-endpoints")
	cli.Yield(fs, "etcd-endpoints", "dir")
}

// place is an etcd that was reached.
type place struct {
	store store.Store // its keys are whole
	// job and checkpoints are those of a local run: its job, and where its files are.
	job         string
	checkpoints string
	close       func()
}

// reach connects to the etcd that the flags name. That of a local run that has
// ended is started for as long as the command takes.
func (t *target) reach(ctx context.Context, log logrus.FieldLogger) (*place, error) {
	p := &place{close: func() {}}
	where := t.Etcd
	if t.dir != "" {
		if len(where.Endpoints) > 0 {
			return nil, cli.Usage("--dir and --etcd-endpoints exclude each other")
		}
		w := workdir{path: t.dir}
		r, err := w.readRun()
		if err != nil {
			return nil, err
		}
		p.job, p.checkpoints, where.Endpoints = r.Job, w.checkpoints(), r.Endpoints
		if r.Embedded { // which asks nobody who he is
			where = cli.Etcd{Timeout: where.Timeout}
			if where.Endpoints, p.close, err = wake(ctx, w, r, log); err != nil {
				return nil, err
			}
		}
	}
	st, closeStore, err := where.Connect(ctx, log)
	if err != nil {
		p.close()
		return nil, err
	}
	stopEtcd := p.close
	p.store, p.close = st, func() {
		closeStore()
		stopEtcd()
	}
	return p, nil
}

// found is a job that was found.
type found struct {
	store store.Store // its keys are relative to the job's prefix
	job   job.Job
	queue *etcdqueue.Queue
	// checkpoints is where the files are; empty: where the spec says.
	checkpoints string
	close       func()
}

// open finds the job.
func (t *target) open(ctx context.Context, log logrus.FieldLogger) (*found, error) {
	if t.job == "" && t.dir == "" {
		return nil, cli.Usage("--job is missing: name the job, or the --dir of a local run")
	}
	p, err := t.reach(ctx, log)
	if err != nil {
		return nil, err
	}
	f, err := p.find(ctx, cmp.Or(t.job, p.job))
	if err != nil {
		p.close()
	}
	return f, err
}

// find finds a job there. The place is closed with it.
func (p *place) find(ctx context.Context, name string) (*found, error) {
	f := &found{store: store.Prefixed(p.store, job.Prefix(name)), checkpoints: p.checkpoints}
	var err error
	if f.job, err = job.Load(ctx, f.store); err != nil {
		if errors.Is(err, job.ErrNoJob) {
			return nil, cli.Usage("there is no job %q%s", name, nearJob(ctx, p.store, name))
		}
		return nil, err
	}
	if f.queue, err = openQueue(f.store, f.job.Spec, clock.System); err != nil {
		return nil, err
	}
	f.close = func() {
		f.queue.Close()
		p.close()
	}
	return f, nil
}

// directory is where the job's checkpoints are.
func (f *found) directory() string { return cmp.Or(f.checkpoints, f.job.Spec.Checkpoint.Dir) }

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
