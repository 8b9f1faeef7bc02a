package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spawner starts processes from one locked thread (see the package comment).
type spawner struct {
	work chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // all children have ended by now
		defer close(s.done)
		setTimerSlack(childSlack)
		defer setTimerSlack(0) // the default
		for f := range s.work {
			f()
		}
	}()
	return s
}

// childSlack is by how much the kernel may wake a sleeping thread of a child too
// late, so that it wakes several at once (prctl(2), PR_SET_TIMERSLACK; 50 µs by
// default). A child has it from the thread that starts it. What it is for is the
// Go runtime's monitor: while a process goes idle and on again from message to
// message, it sleeps for 20 µs at a time, and took a twentieth of a job's
// processor time. Nothing in a child needs a timer to be more exact than this.
const childSlack = 500 * time.Microsecond

// setTimerSlack sets the calling thread's slack; 0 is the default. An error leaves
// it as it is, which is slower and not wrong.
func setTimerSlack(d time.Duration) { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0) }

// start starts a command on the spawner's thread.
func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	s.work <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread; only after the last child has ended.
func (s *spawner) close() {
	close(s.work)
	<-s.done
}

// command prepares a child whose output goes to the log file, which stays open
// in the caller's hands until the child has been started.
func command(p Process) (*exec.Cmd, *os.File, error) {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log of %s: %w", p.Name, err)
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append(without(os.Environ(), p.Unset), p.Env...)
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd, log, nil
}

// without is an environment without some variables.
func without(env, names []string) []string {
	return slices.DeleteFunc(env, func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(names, name)
	})
}
