package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"starfish/campaign/history"
	"starfish/internal/clock"
	"starfish/internal/failpoint"
)

const (
	jobName  = "campaign"
	leaseTTL = 2 * time.Second
	// pacedFor is about how long a job lasts at least while it is paced.
	pacedFor = 40 * time.Second
	// patience is how long a run may take: many times what it takes.
	patience = 6 * time.Minute
)

// run is one plan that is carried out.
type run struct {
	plan     Plan
	dir      string
	programs string
	mark     string // in the environment of all its processes
	log      *logrus.Logger
	counts   map[string]int

	cmd *exec.Cmd
	// ended is closed at the end of the present `starfish run`; cmd.ProcessState
	// says how it ended.
	ended chan struct{}
	obs   *observer
	watch errgroup.Group
	hist  *history.History
	load  load
	next  int64
	// stopWatch ends the watch of the present observer.
	stopWatch context.CancelFunc

	// extras are the processes that have joined, joined how many there ever were,
	// left those of the run that have left for good.
	extras []*extra
	joined int
	left   map[string]bool
	// A pass has so many chunks, the job so many takes.
	perPass, takes int
	// pids are the names of processes that were seen.
	pids map[int]string

	// over: the present fault lasts over the next one; goOn ends the one that
	// lasts, if there is one.
	over bool
	goOn func(context.Context) error
	// abort ends the run at once.
	abort context.CancelCauseFunc

	out Outcome
}

// carryOut carries out a plan in dir, where its logs are afterwards.
func carryOut(ctx context.Context, plan Plan, programs, dir string) Outcome {
	began := clock.System.Now()
	r := &run{plan: plan, dir: dir, programs: programs, mark: "STARFISH_CAMPAIGN_MARK=" + uuid.NewString(), next: 1,
		left: map[string]bool{}, pids: map[int]string{}, out: Outcome{Plan: plan, Dir: dir}}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the run has not ended after %v", patience))
	defer cancel()
	ctx, r.abort = context.WithCancelCause(ctx)
	defer r.abort(nil)
	logFile, err := r.prepare()
	if err == nil {
		defer logFile.Close()
		err = r.carryOut(ctx)
	}
	err = errors.Join(err, r.cleanUp(), r.measure())
	r.out.Seconds = clock.System.Now().Sub(began).Seconds()
	if err != nil {
		r.out.Failure = err.Error()
	}
	return r.out
}

func (r *run) carryOut(ctx context.Context) error {
	// The kernel ends a process with the thread that started it (Pdeathsig).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var training, draining []Fault
	for _, f := range r.plan.Faults {
		switch f.Kind.Window {
		case Creating:
			r.arm(f)
		case Training:
			training = append(training, f)
		case Draining:
			draining = append(draining, f)
		}
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	for _, f := range r.plan.Faults {
		if f.Kind.Window == Creating {
			r.noteArmed(f)
		}
	}
	for i, f := range training {
		r.over = i+1 < len(training) && r.shapeNow().over(f, training[i+1])
		if err := r.strikeIfRunning(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	for _, f := range draining {
		r.arm(f)
	}
	if err := os.RemoveAll(r.file("points", "pace")); err != nil {
		return err
	}
	if err := r.awaitEnd(ctx); err != nil {
		return err
	}
	for _, f := range draining {
		r.noteArmed(f)
	}
	return r.check(ctx)
}

func (r *run) file(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

// prepare makes the directory with data, spec and the files of the points.
func (r *run) prepare() (*os.File, error) {
	for _, sub := range []string{"data", "tmp", "hold", "points/armed", "points/struck", "points/pace"} {
		if err := os.MkdirAll(r.file(sub), 0o755); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(r.file("campaign.log"))
	if err != nil {
		return nil, err
	}
	r.log = logrus.New()
	r.log.SetOutput(log)
	r.log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	var size int
	if r.counts, size, err = writeData(r.file("data"), r.plan); err != nil {
		return nil, err
	}
	s := r.plan.Shape
	r.perPass = size/s.Chunk + 2
	r.takes = max(r.perPass*s.Passes/s.Take, 1)
	if err := os.WriteFile(r.file("spec.yaml"), []byte(specText(r.plan)), 0o644); err != nil {
		return nil, err
	}
	return log, r.pace()
}

// pace tells the trainers how long a take has to last: each takes at its own pace,
// so that all that are there by now take pacedFor together.
func (r *run) pace() error {
	each := pacedFor * time.Duration(min(len(r.placed(trainers)), r.perPass)) / time.Duration(r.takes)
	// Renamed: whoever reads it must find it whole.
	tmp := r.file("points", "pace.new")
	if err := os.WriteFile(tmp, []byte(each.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, r.file("points", "pace", string(failpoint.AfterTake)))
}

// holdScript is the program of the daemons: it waits while a file holds back the
// process of its name, and becomes the daemon.
const holdScript = `#!/bin/sh
name=none previous=
for arg; do
	[ "$previous" = --name ] && name=$arg
	previous=$arg
done
while [ -e "$CAMPAIGN_HOLD/$name" ]; do sleep 0.02; done
exec "${0%/*}/real/${0##*/}" "$@"
`

// start starts `starfish run`, which goes on with what there is.
func (r *run) start() error {
	args := []string{"run", "-f", r.file("spec.yaml"), "--dir", r.file("run"), "--result", r.file("result.json"),
		"--export", r.file("model.txt"), "--pserver-binary", filepath.Join(r.programs, pservers)}
	if r.plan.Shape.ByTrainers {
		args = append(args, "--trainer-binary", filepath.Join(r.programs, trainers))
	}
	out, err := os.OpenFile(r.file("run.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(r.programs, "starfish"), args...)
	cmd.Env = append(os.Environ(), r.environment()...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its state says how
	}()
	r.cmd, r.ended = cmd, ended
	r.log.WithField("pid", cmd.Process.Pid).Info("started")
	return nil
}

// environment is what all processes of the run have in common.
func (r *run) environment() []string {
	return []string{r.mark, "TMPDIR=" + r.file("tmp"), "STARFISH_FAILPOINTS=" + r.file("points"),
		fmt.Sprintf("STARFISH_TAKE=%d", r.plan.Shape.Take), "CAMPAIGN_HOLD=" + r.file("hold")}
}

// begin starts the run and waits until it trains; again if it is killed before.
func (r *run) begin(ctx context.Context) error {
	for {
		before, err := os.Stat(r.file("run", "run.json"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := r.start(); err != nil {
			return err
		}
		err = r.whileRunning(ctx, func(ctx context.Context) error { return r.open(ctx, before) })
		if !errors.Is(err, errRunEnded) {
			return err
		}
		if !r.killed() {
			return r.badEnd()
		}
		r.log.Info("the run was killed while the job was created")
	}
}

// errRunEnded: the present `starfish run` has ended.
var errRunEnded = errors.New("starfish run has ended")

// whileRunning does f; if the run ends before it is done, errRunEnded.
func (r *run) whileRunning(ctx context.Context, f func(context.Context) error) error {
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-r.ended:
			cancel(errRunEnded)
		case <-within.Done():
		}
	}()
	err := f(within)
	ended := errors.Is(context.Cause(within), errRunEnded)
	cancel(nil)
	<-stopped
	if err != nil && ended {
		return errRunEnded
	}
	return err
}

// open observes the run once it trains.
func (r *run) open(ctx context.Context, before os.FileInfo) error {
	obs, err := observe(ctx, r.file("run", "run.json"), before)
	if err != nil {
		return err
	}
	if r.hist == nil {
		chunks, err := obs.chunks(ctx)
		if err != nil {
			obs.close()
			return err
		}
		r.hist = history.New(chunks, obs.job.Spec.Queue.Lanes)
		r.hist.Announced = true
	}
	for {
		w, err := obs.window(ctx)
		if err == nil && w != Creating {
			break
		}
		if err := clock.Sleep(ctx, clock.System, look); err != nil {
			obs.close()
			return err
		}
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.obs, r.stopWatch = obs, stop
	r.watch.Go(func() error {
		err := obs.watch(watching, r.hist, &r.load, &r.next)
		if err != nil {
			r.abort(errHistory) // what would come after it says less
		}
		return err
	})
	return nil
}

// errHistory: a revision was not as it should be; the watch has the reason.
var errHistory = errors.New("the history is not right")

// unobserve ends the observation, of a run that has ended.
func (r *run) unobserve() error {
	if r.obs == nil {
		return nil
	}
	r.stopWatch()
	err := r.watch.Wait()
	r.watch = errgroup.Group{}
	r.load.pause()
	r.obs.close()
	r.obs = nil
	return err
}

// again starts the run anew after its end.
func (r *run) again(ctx context.Context) error {
	if err := r.unobserve(); err != nil {
		return err
	}
	return r.begin(ctx)
}

// awaitEnd waits until the job is complete, and all its processes have ended.
func (r *run) awaitEnd(ctx context.Context) error {
	if err := r.whileRunning(ctx, r.awaitComplete); err != nil && !errors.Is(err, errRunEnded) {
		return err
	}
	// Those that have left may come back: the run waits for all of its own.
	for name := range r.left {
		os.Remove(r.file("hold", name))
	}
	select {
	case <-r.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.endExtras(every, false); err != nil {
		return err
	}
	if err := r.unobserve(); err != nil {
		return err
	}
	if r.cmd.ProcessState.ExitCode() != 0 {
		return r.badEnd()
	}
	return nil
}

// awaitComplete waits until the job has ended.
func (r *run) awaitComplete(ctx context.Context) error {
	for {
		if w, err := r.obs.window(ctx); err == nil && w == "" {
			return nil
		}
		if err := clock.Sleep(ctx, clock.System, 10*look); err != nil {
			return err
		}
	}
}

func (r *run) killed() bool {
	status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

func (r *run) badEnd() error {
	return fmt.Errorf("starfish run ended with %s, see %s", r.cmd.ProcessState, r.file("run.log"))
}

// measure notes how evenly the load was, and what hand-overs have cost.
func (r *run) measure() (err error) {
	r.out.Evened, r.out.Late = r.load.evened, r.load.late
	if r.hist != nil {
		r.out.Claims, r.out.HandOvers = r.hist.Claims(), len(r.hist.Moved())
		r.out.Pauses, err = readPauses(r.file("run", "logs"), r.hist.Moved())
	}
	return err
}

// cleanUp leaves no process behind, however the plan went.
func (r *run) cleanUp() error {
	err := r.endExtras(every, true)
	for range 100 {
		left := marked(r.mark)
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			_ = p.signal(syscall.SIGKILL)
		}
		_ = clock.Sleep(context.Background(), clock.System, 10*time.Millisecond)
	}
	return errors.Join(err, r.unobserve())
}
