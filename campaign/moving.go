package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"starfish/internal/clock"
	"starfish/internal/supervise"
)

const (
	// evenPatience is how long a fault waits until the shards lie evenly.
	evenPatience = 8 * time.Second
	// comePatience is how long a new process has to register.
	comePatience = 20 * time.Second
)

// extra is a process beyond those that `starfish run` keeps: of a machine that
// has come in mid-job. It is started again when it dies, as they are.
type extra struct {
	role, name string
	sup        *supervise.Supervisor
	stop       context.CancelFunc
	ended      chan struct{}
	err        error // why it could not be kept running, once it has ended
}

// placed lists the processes of a role that are to be there, by name.
func (r *run) placed(role string) []string {
	n := r.plan.Shape.Pservers
	if role == trainers {
		n = r.plan.Shape.Trainers
	}
	var names []string
	for i := range n {
		if name := fmt.Sprintf("%s-%d", role, i); !r.left[name] {
			names = append(names, name)
		}
	}
	for _, e := range r.extras {
		if e.role == role {
			names = append(names, e.name)
		}
	}
	return names
}

// shapeNow is the plan's shape with the processes that are there by now.
func (r *run) shapeNow() Shape {
	s := r.plan.Shape
	s.Pservers, s.Trainers = len(r.placed(pservers)), len(r.placed(trainers))
	return s
}

// join starts n processes more and waits until they are registered.
func (r *run) join(ctx context.Context, role string, n int) ([]string, error) {
	var names []string
	for range n {
		r.joined++
		names = append(names, fmt.Sprintf("%s-%d", role, 100+r.joined))
		if err := r.startExtra(role, names[len(names)-1]); err != nil {
			return nil, err
		}
	}
	if err := r.pace(); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeoutCause(ctx, comePatience, fmt.Errorf("%v did not register", names))
	defer cancel()
	for {
		there, err := r.obs.registered(within, role)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(names, func(name string) bool { return !there[name] }) {
			return names, nil
		}
		if err := clock.Sleep(within, clock.System, look); err != nil {
			return nil, err
		}
	}
}

// startExtra starts a process on the run's etcd and keeps it.
func (r *run) startExtra(role, name string) error {
	args := []string{"--job", jobName, "--name", name, "--etcd-endpoints", strings.Join(r.obs.endpoints, ","),
		"--listen", "127.0.0.1:0", "--admin-address", ""}
	if role == pservers {
		args = append(args, "--checkpoint-dir", r.file("run", "checkpoints"))
	}
	obs, runEnded := r.obs, r.ended
	sup, err := supervise.New(supervise.Config{
		Processes: []supervise.Process{{Kind: role, Name: name, Path: filepath.Join(r.programs, role), Args: args, Env: r.environment(),
			Log: r.file("run", "logs", name+".log")}},
		Clock: clock.System, Log: r.log, Grace: endPatience,
		Finished: func(ctx context.Context) bool {
			select {
			case <-runEnded:
				return true
			default:
			}
			w, err := obs.window(ctx)
			return err == nil && w == ""
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &extra{role: role, name: name, sup: sup, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		if err := sup.Run(ctx); !errors.Is(err, context.Canceled) {
			e.err = err
		}
	}()
	r.extras = append(r.extras, e)
	return nil
}

// leave asks processes to stop, all at once, and waits until they have; they are
// not started again.
func (r *run) leave(ctx context.Context, names []string) error {
	var going []process
	now := marked(r.mark)
	for _, name := range names {
		if slices.ContainsFunc(r.extras, func(e *extra) bool { return e.name == name }) {
			continue
		}
		if err := os.WriteFile(r.file("hold", name), nil, 0o644); err != nil {
			return err
		}
		r.left[name] = true
		for _, p := range now {
			if p.name == name && p.signal(syscall.SIGTERM) == nil {
				going = append(going, p)
			}
		}
	}
	err := r.endExtras(func(e *extra) bool { return slices.Contains(names, e.name) }, false)
	return errors.Join(err, gone(ctx, going), r.pace())
}

// endExtras ends those extra processes, in order or by SIGKILL, and waits for it.
func (r *run) endExtras(those func(*extra) bool, kill bool) error {
	var left, going []*extra
	for _, e := range r.extras {
		if !those(e) {
			left = append(left, e)
			continue
		}
		if kill {
			e.sup.KillAll()
		}
		e.stop()
		going = append(going, e)
	}
	r.extras = left
	var errs []error
	for _, e := range going {
		<-e.ended
		errs = append(errs, e.err)
	}
	return errors.Join(errs...)
}

// every is all extra processes.
func every(*extra) bool { return true }

// restartExtras starts extra processes anew, on another etcd.
func (r *run) restartExtras(before []*extra) error {
	for _, e := range before {
		if err := r.startExtra(e.role, e.name); err != nil {
			return err
		}
	}
	return nil
}

// reinforce lets processes join until a fault has as many as it needs: others
// may have left for good.
func (r *run) reinforce(ctx context.Context, f Fault) error {
	role, needs := pservers, f.Kind.Needs
	if f.Kind.Action == Leave {
		role, needs = f.Kind.Roles[0], 2
	}
	n := needs - len(r.placed(role))
	if n <= 0 {
		return nil
	}
	if _, err := r.join(ctx, role, n); err != nil {
		return err
	}
	return r.awaitEven(ctx, role)
}

// move carries out a fault of a kind whose processes come or go.
func (r *run) move(ctx context.Context, f Fault, s *Strike, during func() bool) error {
	role := f.Kind.Roles[0]
	var come, leave []string
	more := 1
	if f.Kind.Action == Burst {
		if more = burstPservers; role == trainers {
			more = max(burstTrainers-len(r.placed(role)), 0)
		}
	}
	var err error
	if f.Kind.Action != Leave {
		if come, err = r.join(ctx, role, more); err != nil {
			return err
		}
		if err := r.awaitEven(ctx, role); err != nil {
			return err
		}
	}
	if f.Kind.Action != Join {
		less := 1
		if f.Kind.Action == Burst {
			if less = len(r.placed(role)) - calmPservers; role == trainers {
				less = len(r.placed(role)) - calmTrainers
			}
		}
		leave = those(r.placed(role), f.Pick, less)
		if err := r.leave(ctx, leave); err != nil {
			return err
		}
	}
	s.Struck, s.Process = during(), fmt.Sprintf("+%v -%v", come, leave)
	return r.awaitEven(ctx, role)
}

// those takes n of names, from the part at of them on and around.
func those(names []string, at float64, n int) []string {
	first := int(at * float64(len(names)))
	var taken []string
	for i := range max(n, 0) {
		taken = append(taken, names[(first+i)%len(names)])
	}
	return taken
}

// awaitEven waits until the shards lie evenly, if pservers have come or gone;
// how long that took is in the report (load.go). Where it is not to be it goes on:
// the job may have ended.
func (r *run) awaitEven(ctx context.Context, role string) error {
	if role != pservers {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, evenPatience)
	defer cancel()
	for {
		if even, err := r.obs.even(within); err == nil && even {
			return nil
		}
		if w, err := r.obs.window(within); err == nil && w != Training {
			return nil
		}
		if clock.Sleep(within, clock.System, 4*look) != nil {
			return context.Cause(ctx)
		}
	}
}
