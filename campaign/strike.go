package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
)

const (
	// pointPatience is how long a point is armed before it is given up or, if
	// something has to lead there, before that is done again.
	pointPatience = 8 * time.Second
	provocations  = 4
	endPatience   = 20 * time.Second // of a process that was asked to end
)

// Strike is what became of a fault.
type Strike struct {
	Kind string `json:"kind"`
	// Struck: it hit, in the window of its kind.
	Struck  bool   `json:"struck"`
	Process string `json:"process,omitempty"`
	// Failover is the time from the kill of a pserver until all of its shards
	// were served again, loading included.
	Failover *float64 `json:"failover_seconds,omitempty"`
}

// strikeIfRunning carries out a fault unless the run has ended or ends before the
// fault is over: on a slow machine a job may be complete before its plan is. How
// the run has ended is seen at its end.
func (r *run) strikeIfRunning(ctx context.Context, f Fault) error {
	select {
	case <-r.ended:
		return nil
	default:
	}
	if len(f.Kind.Roles) == 0 && f.Kind.Action != Point {
		return r.strike(ctx, f) // which ends it itself
	}
	err := r.whileRunning(ctx, func(ctx context.Context) error { return r.strike(ctx, f) })
	if errors.Is(err, errRunEnded) {
		r.log.WithField("kind", f.Name).Info("the job had ended before the fault was over")
		return nil
	}
	return err
}

// strike carries out one fault that is to strike in training.
func (r *run) strike(ctx context.Context, f Fault) (err error) {
	if err := clock.Sleep(ctx, clock.System, f.Pause); err != nil {
		return err
	}
	s := Strike{Kind: f.Name}
	before, err := r.obs.window(ctx)
	if err != nil {
		return err
	}
	if goOn := r.goOn; goOn != nil {
		r.goOn = nil
		defer func() { err = errors.Join(err, goOn(ctx)) }()
	}
	if err := r.reinforce(ctx, f); err != nil {
		return err
	}
	during := func() bool { // the fault has hit: is it still the window?
		after, err := r.obs.window(ctx)
		return err == nil && before == Training && after == Training
	}
	switch {
	case f.Kind.Action == Point:
		err = r.atPoint(ctx, f, &s, during)
	case f.Kind.Moving:
		err = r.move(ctx, f, &s, during)
	case f.Kind.Action == Stop:
		return r.stopAndContinue(ctx, f, s, during)
	case len(f.Kind.Roles) == 0:
		err = r.everything(ctx, f, &s, before)
	default:
		err = r.processes(ctx, f, &s, during)
	}
	r.note(s)
	return err
}

func (r *run) note(s Strike) {
	r.out.Strikes = append(r.out.Strikes, s)
	log := r.log.WithFields(logrus.Fields{"kind": s.Kind, "struck": s.Struck, "process": s.Process})
	if s.Failover != nil {
		log = log.WithField("failover_seconds", *s.Failover)
	}
	log.Info("fault")
}

// processes kills or terminates one process of each role.
func (r *run) processes(ctx context.Context, f Fault, s *Strike, during func() bool) error {
	owners, err := r.obs.owned(ctx)
	if err != nil {
		return err
	}
	sig := syscall.SIGKILL
	if f.Kind.Action == Terminate {
		sig = syscall.SIGTERM
	}
	var hit []process
	owned := map[int]int64{}
	for _, role := range f.Kind.Roles {
		p, ok := pick(r.prey(owners), role, f.Pick)
		if !ok {
			return nil // they are all being started again
		}
		hit = append(hit, p)
		if f.Kind.Action != Terminate {
			maps.Copy(owned, owners[p.name])
		}
	}
	s.Process = fmt.Sprint(hit)
	held := r.file("hold", hit[0].name)
	if f.Kind.Action == KillHeld {
		if err := os.WriteFile(held, nil, 0o644); err != nil {
			return err
		}
		defer os.Remove(held)
	}
	began := clock.System.Now()
	for _, p := range hit {
		if p.signal(sig) != nil {
			return nil // it had ended by itself
		}
	}
	if err := gone(ctx, hit); err != nil {
		return err
	}
	s.Struck = during()
	if len(owned) == 0 {
		return nil
	}
	if err := r.obs.awaitServed(ctx, owned); err != nil {
		return err
	}
	took := clock.System.Now().Sub(began).Seconds()
	if s.Struck {
		s.Failover = &took
	}
	return nil
}

// prey are the processes without the pservers that own nothing: what happens to
// them is of no interest.
func (r *run) prey(owners map[string]map[int]int64) []process {
	all := marked(r.mark)
	for _, p := range all {
		r.pids[p.pid] = p.name
	}
	return slices.DeleteFunc(all, func(p process) bool { return p.role == pservers && owners[p.name] == nil })
}

// gone waits until processes have ended.
func gone(ctx context.Context, ps []process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endPatience, fmt.Errorf("%v did not end", ps))
	defer cancel()
	for _, p := range ps {
		for p.alive() {
			if err := clock.Sleep(ctx, clock.System, look); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopAndContinue stops a process for longer than its lease lives, or until
// after the next fault.
func (r *run) stopAndContinue(ctx context.Context, f Fault, s Strike, during func() bool) error {
	owners, err := r.obs.owned(ctx)
	if err != nil {
		return err
	}
	p, ok := pick(r.prey(owners), f.Kind.Roles[0], f.Pick)
	if !ok || p.signal(syscall.SIGSTOP) != nil {
		r.note(s)
		return nil //nolint:nilerr // there is none, or it has just ended
	}
	s.Process = p.String()
	r.log.WithField("process", s.Process).Info("stopped")
	ends := clock.System.Now().Add(leaseTTL + f.For)
	goOn := func(ctx context.Context) error {
		err := clock.Sleep(ctx, clock.System, max(ends.Sub(clock.System.Now()), 0))
		s.Struck = p.alive() && during() // the next fault may have killed it
		if p.signal(syscall.SIGCONT) != nil {
			s.Struck = false
		}
		r.note(s)
		return err
	}
	if r.over {
		r.goOn = goOn
		return nil
	}
	return goOn(ctx)
}

// everything ends all processes, etcd's too, and starts the run again.
func (r *run) everything(ctx context.Context, f Fault, s *Strike, before Window) error {
	all, extras := marked(r.mark), r.extras
	if f.Kind.Action == Terminate {
		if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
	} else {
		for _, p := range all {
			_ = p.signal(syscall.SIGKILL) // those that have ended with another
		}
	}
	if err := errors.Join(r.endExtras(every, f.Kind.Action == Kill), gone(ctx, all)); err != nil {
		return err
	}
	<-r.ended
	if f.Kind.Action == Terminate && r.cmd.ProcessState.ExitCode() != 0 {
		return r.badEnd()
	}
	s.Process = fmt.Sprintf("%d processes", len(all))
	if err := r.again(ctx); err != nil {
		return err
	}
	if err := r.restartExtras(extras); err != nil {
		return err
	}
	// What trains afterwards has not been complete before.
	after, err := r.obs.window(ctx)
	s.Struck = before == Training && after == Training
	return err
}

// arm makes the next process that comes to the fault's point end there.
func (r *run) arm(f Fault) {
	text := ""
	if f.For > 0 {
		text = f.For.String()
	}
	// Written beside it and renamed: whoever finds it must find it whole.
	tmp := r.file("points", string(f.Kind.Point))
	err := os.WriteFile(tmp, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(tmp, r.armed(f))
	}
	if err != nil {
		r.log.WithError(err).Error("a point could not be armed")
	}
}

func (r *run) armed(f Fault) string { return r.file("points", "armed", string(f.Kind.Point)) }

func (r *run) struckFiles(f Fault) []string {
	files, _ := filepath.Glob(r.file("points", "struck", string(f.Kind.Point)+".*"))
	return files
}

// struckAt is the process that has struck at the fault's point.
func (r *run) struckAt(f Fault) (process, bool) {
	files := r.struckFiles(f)
	if len(files) == 0 {
		return process{}, false
	}
	pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(files[0]), "."))
	return process{pid: pid, role: f.Name, name: r.pids[pid]}, err == nil
}

// atPoint arms a point and waits until it strikes.
func (r *run) atPoint(ctx context.Context, f Fault, s *Strike, during func() bool) error {
	r.arm(f)
	defer os.Remove(r.armed(f))
	tries := 1
	if f.Kind.Provoke {
		tries = provocations
	}
	for try := range tries {
		if f.Kind.Provoke {
			if err := r.provoke(ctx, f, try); err != nil {
				return err
			}
		}
		p, err := r.awaitStrike(ctx, f)
		if errors.Is(err, errNotStruck) {
			continue
		}
		if err != nil {
			return err
		}
		began := clock.System.Now()
		if err := gone(ctx, []process{p}); err != nil {
			return err
		}
		s.Process, s.Struck = p.String(), during()
		for _, file := range r.struckFiles(f) {
			os.Remove(file)
		}
		return r.served(ctx, f, s, p.name, began)
	}
	return nil
}

// provoke does what leads to a point at which a shard gets another owner.
func (r *run) provoke(ctx context.Context, f Fault, try int) error {
	owners, err := r.obs.owned(ctx)
	if err != nil {
		return err
	}
	prey, sig := r.prey(owners), syscall.SIGKILL
	if f.Kind.Moving {
		if sig = syscall.SIGTERM; f.ByJoin && try == 0 {
			_, err := r.join(ctx, pservers, 1)
			r.prey(owners) // to know the new one
			return err
		}
	}
	if p, ok := pick(prey, pservers, f.Pick); ok {
		_ = p.signal(sig) // it may have ended by itself
	}
	return nil
}

// served waits, where the kind is measured, until the shards of a process that was
// killed at began are served again.
func (r *run) served(ctx context.Context, f Fault, s *Strike, name string, began time.Time) error {
	if f.Kind.Limit == 0 || !s.Struck {
		return nil
	}
	owners, err := r.obs.owned(ctx)
	if err != nil || len(owners[name]) == 0 {
		return err
	}
	if err := r.obs.awaitServed(ctx, owners[name]); err != nil {
		return err
	}
	took := clock.System.Now().Sub(began).Seconds()
	s.Failover = &took
	return nil
}

// errNotStruck: nobody came to a point.
var errNotStruck = errors.New("nobody came to the point")

func (r *run) awaitStrike(ctx context.Context, f Fault) (process, error) {
	within, cancel := context.WithTimeoutCause(ctx, pointPatience, errNotStruck)
	defer cancel()
	for {
		if p, ok := r.struckAt(f); ok {
			return p, nil
		}
		if err := clock.Sleep(within, clock.System, look); err != nil {
			return process{}, err
		}
	}
}

// noteArmed notes what became of a point whose place in the code says in which
// window it strikes.
func (r *run) noteArmed(f Fault) {
	p, ok := r.struckAt(f)
	s := Strike{Kind: f.Name, Struck: ok}
	if ok {
		s.Process = p.String()
	}
	os.Remove(r.armed(f))
	r.note(s)
}
