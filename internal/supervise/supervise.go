package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"starfish/internal/clock"
)

// Process is one child to keep running.
type Process struct {
	Kind string // what it is: "pserver" or "trainer"
	Name string // who it is: "pserver-0"
	Path string // its program
	Args []string
	Env  []string // added to the supervisor's environment
	// Unset names variables of that environment that the child does not get.
	Unset []string
	Log   string // file that its output is appended to
}

// DefaultGrace is how long children have to end in order.
const DefaultGrace = 30 * time.Second

// Config configures a Supervisor.
type Config struct {
	Processes []Process
	Clock     clock.Clock
	Log       logrus.FieldLogger
	// Finished asks whether the work has ended, well or not. It is asked after
	// each exit: if so the child stays down, else it is started again, even
	// after an exit with code 0.
	Finished func(ctx context.Context) bool
	// Grace is the time from SIGTERM to SIGKILL; 0 = DefaultGrace.
	Grace time.Duration
}

// StoppedError ends a run because of a child that cannot be kept running.
type StoppedError struct {
	Code int    // the exit code of the child, and of the run
	Name string // the child
	Line string // the decisive line of its log
	Log  string // the file with the rest
}

func (e *StoppedError) Error() string {
	if e.Line == "" {
		return fmt.Sprintf("%s ended with code %d and wrote nothing (log: %s)", e.Name, e.Code, e.Log)
	}
	return fmt.Sprintf("%s ended with code %d: %s (log: %s)", e.Name, e.Code, e.Line, e.Log)
}

// Stats counts what happened so far.
type Stats struct {
	Alive    map[string]int // children running now, by kind
	Restarts map[string]int // starts but for each child's first, by kind
	CPU      time.Duration  // user and system time of all children that have ended
}

// Supervisor keeps children running. Its methods may be called at any time
// from any goroutine.
type Supervisor struct {
	cfg   Config
	spawn *spawner

	mu       sync.Mutex
	running  map[string]*child // by name
	restarts map[string]int
	cpu      time.Duration
	stopping bool
}

type child struct {
	Process
	cmd    *exec.Cmd
	struck bool          // a Killer has chosen it
	done   chan struct{} // closed when it has ended; cmd.ProcessState says how
}

// New makes a Supervisor; nothing is started before Run.
func New(cfg Config) (*Supervisor, error) {
	if len(cfg.Processes) == 0 {
		return nil, errors.New("supervise: no processes")
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Finished == nil {
		cfg.Finished = func(context.Context) bool { return false }
	}
	return &Supervisor{cfg: cfg, running: map[string]*child{}, restarts: map[string]int{}}, nil
}

// Run starts the children and returns when all have ended: nil if each ended in
// order, the context's cause if it ended before, *StoppedError if a child could
// not be kept running.
func (s *Supervisor) Run(ctx context.Context) error {
	s.spawn = newSpawner()
	defer s.spawn.close()
	g, within := errgroup.WithContext(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-within.Done()
		s.stop()
	}()
	left := newCensus(s.cfg.Processes)
	for _, p := range s.cfg.Processes {
		g.Go(func() error { return s.keep(within, p, left) })
	}
	err := g.Wait()
	<-stopped
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, cause)) {
		return cause
	}
	return err
}

// keep keeps one child running.
func (s *Supervisor) keep(ctx context.Context, p Process, left *census) error {
	var h history
	log := s.cfg.Log.WithFields(logrus.Fields{"process": p.Name})
	for first := true; ; first = false {
		exit, err := s.once(ctx, p, first)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if s.cfg.Finished(ctx) {
			log.WithFields(logrus.Fields{"code": exit.Code, "signal": exit.Signal, "line": exit.Line}).
				Debug("a process ended with the work and stays down")
			return nil
		}
		what, delay := h.next(exit)
		log := log.WithFields(logrus.Fields{"code": exit.Code, "signal": exit.Signal, "line": exit.Line, "delay": delay})
		stop := &StoppedError{Code: exit.code(), Name: p.Name, Line: exit.Line, Log: p.Log}
		switch what {
		case giveUp:
			return stop
		case leave:
			log.Warn("a process was superseded and stays down")
			if left.gone(p.Kind) {
				return stop
			}
			return nil
		}
		if exit.Code == 0 {
			log.Warn("a process ended in order although the work goes on, and is started again")
		} else {
			log.Warn("a process died and is started again")
		}
		if err := clock.Sleep(ctx, s.cfg.Clock, delay); err != nil {
			return nil //nolint:nilerr // the run is ending
		}
	}
}

// once starts a child and waits for its end.
func (s *Supervisor) once(ctx context.Context, p Process, first bool) (Exit, error) {
	cmd, log, err := command(p)
	if err != nil {
		return Exit{}, err
	}
	from, _ := log.Seek(0, 2)
	start := s.cfg.Clock.Now()
	c, err := s.start(p, cmd, first)
	log.Close()
	if err != nil || c == nil {
		return Exit{}, err
	}
	_ = cmd.Wait() // its error repeats the state
	s.ended(c)
	exit := exitOf(cmd.ProcessState)
	exit.Uptime = s.cfg.Clock.Now().Sub(start)
	if exit.failed() && ctx.Err() == nil {
		exit.Line, exit.Crash = decisive(lastLines(p.Log, from))
	}
	return exit, nil
}

// start starts a child unless the run is ending, in which case it returns nil.
func (s *Supervisor) start(p Process, cmd *exec.Cmd, first bool) (*child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, nil
	}
	if err := s.spawn.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Name, err)
	}
	c := &child{Process: p, cmd: cmd, done: make(chan struct{})}
	s.running[p.Name] = c
	if !first {
		s.restarts[p.Kind]++
	}
	return c, nil
}

func (s *Supervisor) ended(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, c.Name)
	s.cpu += c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
	close(c.done)
}

// stop ends the children: SIGTERM, and SIGKILL to those that are still there
// after the grace.
func (s *Supervisor) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.signal(syscall.SIGTERM)
	timer := s.cfg.Clock.Timer(s.cfg.Grace)
	defer timer.Stop()
	tick := 20 * time.Millisecond
	for s.alive() > 0 {
		poll := s.cfg.Clock.Timer(tick)
		select {
		case <-timer.C():
			s.cfg.Log.WithField("grace", s.cfg.Grace).Error("processes did not end in time and are killed")
			s.signal(syscall.SIGKILL)
			return
		case <-poll.C():
		}
	}
}

// KillAll ends all children at once.
func (s *Supervisor) KillAll() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.signal(syscall.SIGKILL)
}

func (s *Supervisor) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.running {
		_ = c.cmd.Process.Signal(sig) // an error means that it has ended
	}
}

func (s *Supervisor) alive() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

// Stats returns the counts so far.
func (s *Supervisor) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Alive: map[string]int{}, Restarts: map[string]int{}, CPU: s.cpu}
	for _, c := range s.running {
		st.Alive[c.Kind]++
	}
	for kind, n := range s.restarts {
		st.Restarts[kind] = n
	}
	return st
}

// exitOf translates the kernel's account of an end.
func exitOf(state *os.ProcessState) Exit {
	e := Exit{Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal().String()
	}
	return e
}

// census counts the children of each kind that may still run.
type census struct {
	mu   sync.Mutex
	left map[string]int
}

func newCensus(ps []Process) *census {
	c := &census{left: map[string]int{}}
	for _, p := range ps {
		c.left[p.Kind]++
	}
	return c
}

// gone takes one child out; true if it was the last of its kind.
func (c *census) gone(kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left[kind]--
	return c.left[kind] == 0
}
