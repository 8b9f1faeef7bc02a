package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/remind"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/supervise"
	"starfish/job"
	"starfish/trainer"
	"starfish/trainer/model"
)

// The rhythm of a run.
const (
	lookEvery = 250 * time.Millisecond // the live line
	hearEvery = time.Second            // what the pservers say
	logEvery  = 10 * time.Second       // where there is no live line
	// For processes to end by themselves once the job has ended, well or not.
	lingerAfter  = 30 * time.Second
	inUseFor     = 5 * time.Second // a directory that somebody looks into
	failedLinger = 5 * time.Second
	endTimeout   = 3 * time.Second // of asking for it
)

// runner is one `starfish run`.
type runner struct {
	opts *options
	spec *job.Spec
	dir  workdir
	out  streams
	scr  *screen
	log  *logrus.Logger
	clk  clock.Clock

	started time.Time
	store   store.Store // the job's part
	follow  *follower
	events  *events
	stats   tally
	ended   atomic.Bool // the job is complete, or has failed, or is gone
	// failedBefore: the job had failed when this run began.
	failedBefore bool
}

// tally is what only the run knows of its processes.
type tally struct {
	processes supervise.Stats
	kills     map[string]int // by kind; nil without --chaos
}

// run runs a job to its end, or until ctx ends.
func run(ctx context.Context, o *options, out streams) error {
	r := &runner{opts: o, out: out, scr: newScreen(out.err), clk: clock.System}
	r.started = r.clk.Now()
	var err error
	if r.log, err = o.Logger(r.scr); err != nil {
		return err
	}
	if r.spec, err = o.readSpec(); err != nil {
		return err
	}
	if r.dir, err = openWorkdir(o.dir); err != nil {
		return err
	}
	defer r.dir.close()
	if err = r.dir.checkJob(r.spec.Job); err != nil {
		return err
	}
	cli.OnAbort(ctx, r.dir.close)
	if err = o.checkOutputs(); err != nil {
		return err
	}
	if r.events, err = openEvents(o.metricsOut, r.log); err != nil {
		return err
	}
	defer r.events.close()
	err = r.within(ctx)
	if err == nil && r.ended.Load() {
		return nil // a signal that came later changes nothing
	}
	if ctx.Err() != nil && isStop(ctx, err) {
		r.sayStopped()
		return nil
	}
	return err
}

// isStop tells whether the error is only that the command was asked to stop.
func isStop(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, cli.ErrSignal) || errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
}

func (r *runner) sayStopped() {
	if r.dir.temp {
		r.log.Info("stopped before the end; without --dir nothing is kept")
		return
	}
	r.log.WithField("dir", r.dir.path).Info("stopped before the end; the same command goes on from here")
}

// within runs the job while etcd runs. The end of an embedded etcd is the reason
// of whatever goes wrong after it.
func (r *runner) within(ctx context.Context) error {
	endpoints, failed, stopEtcd, err := r.startEtcd(ctx)
	if err != nil {
		return err
	}
	defer stopEtcd()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var died atomic.Pointer[error]
	go func() {
		select {
		case err := <-failed:
			err = fmt.Errorf("%w: %s: %w (log: %s)", errEtcdFailed, r.dir.etcd(), err, r.dir.log("etcd"))
			died.Store(&err)
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err = r.throughout(ctx, endpoints)
	if reason := died.Load(); reason != nil && err != nil {
		return *reason
	}
	return err
}

// errEtcdFailed: the etcd inside cannot go on. Nothing that the processes still do
// can be listed, or handed back, without it.
var errEtcdFailed = errors.New("etcd has failed")

// throughout runs the job with the etcd at the endpoints.
func (r *runner) throughout(ctx context.Context, endpoints []string) error {
	conn := r.opts.Etcd
	conn.Endpoints = endpoints
	st, closeStore, err := conn.Connect(ctx, r.log)
	if err != nil {
		return err
	}
	defer closeStore()
	r.store = store.Prefixed(st, job.Prefix(r.spec.Job))
	resumed, err := r.prepare(ctx, endpoints)
	if err != nil {
		return err
	}
	defer r.follow.close()
	state, err := r.follow.state(ctx)
	if err != nil && !errors.Is(err, etcdqueue.ErrNoQueue) {
		return err
	}
	r.failedBefore = state.Phase == etcdqueue.PhaseFailed
	if err := r.events.skip(ctx, r); err != nil {
		return err
	}
	if !state.Phase.Ended() {
		if err := r.train(ctx, endpoints, resumed); err != nil {
			return err
		}
	}
	return r.finish(ctx)
}

// startEtcd starts the embedded etcd, unless there is another. The channel
// delivers an error if it ends by itself.
func (r *runner) startEtcd(ctx context.Context) ([]string, <-chan error, func(), error) {
	if len(r.opts.Endpoints) > 0 {
		return r.opts.Endpoints, nil, func() {}, nil
	}
	file, err := os.OpenFile(r.dir.log("etcd"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, nil, err
	}
	log, err := r.opts.Logger(file)
	if err != nil {
		return nil, nil, nil, err
	}
	srv, err := r.startEmbedded(ctx, log)
	if err != nil {
		file.Close()
		if errors.Is(err, embedded.ErrInUse) {
			err = cli.Usage("--dir %s: another run is using it", r.dir.path)
		}
		return nil, nil, nil, err
	}
	return srv.Endpoints(), srv.Failed(), func() {
		srv.Close()
		file.Close()
	}, nil
}

// startEmbedded waits a moment for a directory that is in use: it may be a
// status or an export that looks into it, and not another run.
func (r *runner) startEmbedded(ctx context.Context, log logrus.FieldLogger) (*embedded.Server, error) {
	for began := r.clk.Now(); ; {
		srv, err := embedded.Start(ctx, embedded.Config{Dir: r.dir.etcd(), Durable: !r.dir.temp, Log: log})
		if !errors.Is(err, embedded.ErrInUse) || r.clk.Now().Sub(began) > inUseFor {
			return srv, err
		}
		if err := clock.Sleep(ctx, r.clk, lookEvery); err != nil {
			return nil, err
		}
	}
}

// prepare makes the job, or finds it as it was left, which it tells.
func (r *runner) prepare(ctx context.Context, endpoints []string) (resumed bool, err error) {
	if resumed, err = r.makeJob(ctx); err != nil {
		return resumed, err // the files keep what they say of the job that is there
	}
	err = r.dir.writeRun(runFile{Job: r.spec.Job, Endpoints: endpoints, Embedded: len(r.opts.Endpoints) == 0})
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(r.dir.spec(), append(r.spec.JSON(), '\n'), 0o644); err != nil {
		return false, err
	}
	r.follow, err = newFollower(r.store, r.spec, r.clk)
	return resumed, err
}

// makeJob creates the job, unless it is there, or the trainers' program knows
// models that this one does not: then the first of them does.
func (r *runner) makeJob(ctx context.Context) (resumed bool, err error) {
	j, err := job.Load(ctx, r.store)
	if err == nil {
		if d := job.Diff(j.Spec, r.spec); d != "" {
			return true, cli.Usage("%w: %s", job.ErrSpecDiffers, d)
		}
		return true, nil
	}
	if !errors.Is(err, job.ErrNoJob) || r.opts.trainerBin != "" {
		return false, ignore(err, job.ErrNoJob)
	}
	m, err := model.New(r.spec)
	if err != nil {
		return false, cli.Usage("%w", err)
	}
	_, err = trainer.CreateJob(ctx, r.store, r.spec, m)
	return false, err
}

// ignore is err unless it is what.
func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// train runs the processes until the job has ended.
func (r *runner) train(ctx context.Context, endpoints []string, resumed bool) error {
	procs, err := r.processes(endpoints)
	if err != nil {
		return err
	}
	sup, err := supervise.New(supervise.Config{Processes: procs, Clock: r.clk, Log: r.log, Finished: r.jobEnded})
	if err != nil {
		return err
	}
	cli.OnAbort(ctx, sup.KillAll)
	defer context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errEtcdFailed) {
			r.log.WithError(context.Cause(ctx)).Error("the processes are killed: what they have not saved is trained again")
			sup.KillAll()
		}
	})()
	killer := supervise.NewKiller(sup, r.opts.chaos, r.opts.chaosSeed, r.follow)
	r.log.WithFields(logrus.Fields{"job": r.spec.Job, "pservers": r.spec.Run.Pservers, "trainers": r.spec.Run.Trainers,
		"dir": r.dir.path, "resumed": resumed}).Info("job started")

	watching, stopWatching := context.WithCancel(ctx)
	running, stopRunning := context.WithCancelCause(ctx)
	var g errgroup.Group
	g.Go(func() error {
		defer stopWatching()
		return sup.Run(running)
	})
	g.Go(func() error {
		err := r.follow.follow(watching)
		if watching.Err() != nil {
			return nil //nolint:nilerr // the processes have ended
		}
		stopRunning(err)
		return err
	})
	g.Go(func() error { return killer.Run(watching) })
	g.Go(func() error { return r.watch(watching, stopRunning) })
	err = g.Wait()
	stopRunning(nil)
	r.scr.show("")
	r.stats = tally{processes: sup.Stats()}
	if r.opts.chaos != nil {
		r.stats.kills = killer.Kills()
	}
	return r.judge(err)
}

// judge translates the end of the processes. Of a job that has ended the store
// says more than they do.
func (r *runner) judge(err error) error {
	var stop *supervise.StoppedError
	switch {
	case r.ended.Load():
		if err != nil && !errors.Is(err, errLinger) {
			r.log.WithError(err).Debug("the job has ended, but its processes did not end well")
		}
		return nil
	case errors.As(err, &stop):
		return job.Exit(job.Code(stop.Code), stop)
	}
	return err
}

// errLinger ends processes that stay although the job has ended.
var errLinger = errors.New("processes went on after the end of the job")

// jobEnded asks the store whether the job has ended: then no process need be
// started again. It is asked whenever one has died, and must not hold that up
// for long.
func (r *runner) jobEnded(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	state, err := r.follow.state(ctx)
	return errors.Is(err, errJobGone) || err == nil && state.Phase.Ended()
}

// watch shows the progress until the job has ended, and then sees to it that
// the processes end too.
func (r *runner) watch(ctx context.Context, stop context.CancelCauseFunc) error {
	d := display{runner: r, heard: heard{loss: math.NaN()}}
	for {
		s, state, err := r.follow.look(ctx)
		switch {
		case errors.Is(err, errJobGone), state.Phase == etcdqueue.PhaseFailed:
			return r.linger(ctx, failedLinger, stop)
		case err != nil:
			r.log.WithError(err).Debug("the job's state could not be read")
		case state.Phase == etcdqueue.PhaseComplete:
			return r.linger(ctx, lingerAfter, stop)
		default:
			d.show(ctx, s)
		}
		if clock.Sleep(ctx, r.clk, lookEvery) != nil {
			return nil //nolint:nilerr // the processes have ended
		}
	}
}

// display shows what is seen of the job.
type display struct {
	*runner
	meter   meter
	heard   heard // by the last one that told a loss
	heardAt time.Time
	logAt   time.Time
	trouble remind.Reminder
}

func (d *display) show(ctx context.Context, s sight) {
	now := d.clk.Now()
	if now.Sub(d.heardAt) >= hearEvery {
		d.heardAt = now
		d.hear(ctx, s.pass)
	}
	s.loss, s.waits = d.heard.loss, d.heard.saves.trouble()
	if s.phase == string(etcdqueue.PhaseDraining) {
		s.waits = d.heard.saves.waits()
	}
	d.meter.see(now, s)
	d.scr.show(d.meter.line())
	d.events.see(now, d.started, &d.meter)
	d.events.passes(ctx, d.runner)
	if d.scr.live || now.Sub(d.logAt) < logEvery {
		return
	}
	d.logAt = now
	d.log.Info(d.meter.line())
}

// hear asks the pservers. A loss that nobody tells any more stays, and that
// checkpoints cannot be written is told at once and then more and more rarely.
func (d *display) hear(ctx context.Context, pass int) {
	h := d.follow.hear(ctx, pass)
	if math.IsNaN(h.loss) {
		h.loss = d.heard.loss
	}
	d.heard = h
	now, failing := d.clk.Now(), h.saves.failing
	if len(failing) == 0 {
		if d.trouble.Over(now) {
			d.log.Info("checkpoints are written again")
		}
		return
	}
	if d.trouble.Due(now) {
		d.log.WithFields(logrus.Fields{"shards": shardsOf(failing), "pservers": pserversOf(failing), "shard": failing[0].shard, "error": failing[0].text}).
			Warn("checkpoints cannot be written")
	}
}

// linger gives the processes time to end by themselves, now that the job has
// ended.
func (r *runner) linger(ctx context.Context, patience time.Duration, stop context.CancelCauseFunc) error {
	r.ended.Store(true)
	if clock.Sleep(ctx, r.clk, patience) == nil {
		r.log.Info("processes go on after the end of the job and are stopped")
		stop(errLinger)
	}
	return nil
}
