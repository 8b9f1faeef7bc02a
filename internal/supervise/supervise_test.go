package supervise

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
)

const patient = 20 * time.Second

func helper(t *testing.T, kind, name, script string) Process {
	t.Helper()
	return Process{Kind: kind, Name: name, Path: os.Args[0], Env: []string{helperVariable + "=" + script},
		Log: filepath.Join(t.TempDir(), name+".log")}
}

func newRun(t *testing.T, cfg Config) *Supervisor {
	t.Helper()
	cfg.Clock, cfg.Log = clock.System, quiet()
	s, err := New(cfg)
	require.NoError(t, err)
	return s
}

// running starts Run and returns its result.
func running(ctx context.Context, s *Supervisor) <-chan error {
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	return result
}

func logHas(p Process, text string) func() bool {
	return func() bool {
		b, _ := os.ReadFile(p.Log)
		return strings.Contains(string(b), text)
	}
}

// What a child inherits from the thread that starts it is not the default.
func TestChildrenHaveTimerSlack(t *testing.T) {
	t.Parallel()
	spawn := newSpawner()
	defer spawn.close()
	cat, err := exec.LookPath("cat")
	require.NoError(t, err)
	p := Process{Path: cat, Args: []string{"/proc/self/timerslack_ns"}, Log: filepath.Join(t.TempDir(), "log")}
	cmd, log, err := command(p)
	require.NoError(t, err)
	defer log.Close()
	require.NoError(t, spawn.start(cmd))
	require.NoError(t, cmd.Wait())
	out, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	require.Equal(t, strconv.FormatInt(childSlack.Nanoseconds(), 10), strings.TrimSpace(string(out)))
}

func TestOrderlyEndOfAllEndsTheRun(t *testing.T) {
	t.Parallel()
	a, b := helper(t, "pserver", "a", "say hello exit 0"), helper(t, "trainer", "b", "exit 0")
	s := newRun(t, Config{Processes: []Process{a, b}, Finished: func(context.Context) bool { return true }})
	require.NoError(t, s.Run(t.Context()))
	require.True(t, logHas(a, "hello")())
	require.Zero(t, s.Stats().Restarts["pserver"])
	require.Positive(t, s.Stats().CPU)
}

func TestOrderlyEndBeforeTheWorkIsDoneIsARestart(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	p := helper(t, "trainer", "b", "exit 0")
	s := newRun(t, Config{Processes: []Process{p}, Finished: func(context.Context) bool { return asked.Add(1) > 2 }})
	require.NoError(t, s.Run(t.Context()))
	require.Equal(t, 2, s.Stats().Restarts["trainer"])
}

func TestEarlyFailureIsMendedByAnotherStart(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	p := helper(t, "trainer", "b", "once "+filepath.Join(t.TempDir(), "memory")+" 1 exit 0")
	s := newRun(t, Config{Processes: []Process{p}, Finished: func(context.Context) bool { return asked.Add(1) > 1 }})
	start := time.Now()
	require.NoError(t, s.Run(t.Context()))
	require.Equal(t, 1, s.Stats().Restarts["trainer"])
	require.GreaterOrEqual(t, time.Since(start), firstDelay)
}

// Once the work has ended, however, nobody is started again and nothing is
// worth a line, whatever the children end with.
func TestNobodyIsStartedAfterTheEndOfTheWork(t *testing.T) {
	t.Parallel()
	a, b, c := helper(t, "pserver", "a", "exit 1"), helper(t, "trainer", "b", "exit 2"), helper(t, "trainer", "c", "exit 4")
	s := newRun(t, Config{Processes: []Process{a, b, c}, Finished: func(context.Context) bool { return true }})
	log, hook := test.NewNullLogger()
	s.cfg.Log = log
	require.NoError(t, s.Run(t.Context()))
	require.Empty(t, s.Stats().Restarts)
	require.Empty(t, hook.AllEntries())
}

// The environment is handed on, but for what is meant for the supervisor.
func TestEnvironment(t *testing.T) {
	t.Setenv("STARFISH_SET", "a=b")
	t.Setenv("STARFISH_TAKE", "3")
	p := helper(t, "trainer", "b", "env STARFISH_SET env STARFISH_TAKE exit 0")
	p.Unset = []string{"STARFISH_SET", "STARFISH"}
	s := newRun(t, Config{Processes: []Process{p}, Finished: func(context.Context) bool { return true }})
	require.NoError(t, s.Run(t.Context()))
	b, err := os.ReadFile(p.Log)
	require.NoError(t, err)
	require.Equal(t, "STARFISH_SET=\nSTARFISH_TAKE=3\n", string(b))
}

func TestUsageErrorEndsTheRunAndTheOthers(t *testing.T) {
	t.Parallel()
	bad, good := helper(t, "trainer", "bad", "say misspelt exit 2"), helper(t, "pserver", "good", "wait")
	s := newRun(t, Config{Processes: []Process{good, bad}})
	err := s.Run(t.Context())
	var stop *StoppedError
	require.ErrorAs(t, err, &stop)
	require.Equal(t, 2, stop.Code)
	require.Equal(t, "misspelt", stop.Line)
	require.Contains(t, err.Error(), bad.Log)
	require.Zero(t, s.alive())
}

func TestSupersededStaysDown(t *testing.T) {
	t.Parallel()
	down, up := helper(t, "trainer", "down", "exit 4"), helper(t, "trainer", "up", "wait")
	s := newRun(t, Config{Processes: []Process{down, up}})
	ctx, cancel := context.WithCancel(t.Context())
	result := running(ctx, s)
	require.Eventually(t, func() bool { return s.Stats().Alive["trainer"] == 1 && logHas(up, "waiting")() }, patient, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
	require.Zero(t, s.Stats().Restarts["trainer"])
}

func TestLastOfAKindSupersededEndsTheRun(t *testing.T) {
	t.Parallel()
	down, up := helper(t, "trainer", "down", "exit 4"), helper(t, "pserver", "up", "wait")
	var stop *StoppedError
	require.ErrorAs(t, newRun(t, Config{Processes: []Process{down, up}}).Run(t.Context()), &stop)
	require.Equal(t, codeSuperseded, stop.Code)
}

func TestStopAsksFirst(t *testing.T) {
	t.Parallel()
	p := helper(t, "pserver", "p", "wait")
	s := newRun(t, Config{Processes: []Process{p}})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := running(ctx, s)
	require.Eventually(t, logHas(p, "waiting"), patient, 10*time.Millisecond)
	cancel(why)
	require.ErrorIs(t, <-result, why)
	require.True(t, logHas(p, "asked to stop")())
}

func TestStopKillsTheDeafAfterTheGrace(t *testing.T) {
	t.Parallel()
	p := helper(t, "pserver", "p", "deaf")
	s := newRun(t, Config{Processes: []Process{p}, Grace: 100 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	result := running(ctx, s)
	require.Eventually(t, logHas(p, "waiting"), patient, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestKillAllDoesNotWait(t *testing.T) {
	t.Parallel()
	p := helper(t, "pserver", "p", "deaf")
	s := newRun(t, Config{Processes: []Process{p}, Grace: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	result := running(ctx, s)
	require.Eventually(t, logHas(p, "waiting"), patient, 10*time.Millisecond)
	cancel()
	s.KillAll()
	require.ErrorIs(t, <-result, context.Canceled)
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	p := helper(t, "pserver", "p", "wait")
	p.Path = filepath.Join(t.TempDir(), "absent")
	err := newRun(t, Config{Processes: []Process{p}}).Run(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "start p")
}

// A supervisor that is killed leaves no children behind.
func TestChildrenDieWithTheSupervisor(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "child.log")
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), helperVariable+"=parent "+log)
	require.NoError(t, parent.Start())
	child := Process{Log: log}
	require.Eventually(t, logHas(child, "waiting"), patient, 10*time.Millisecond)
	pids := childrenOf(t, parent.Process.Pid)
	require.Len(t, pids, 1)
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pids[0], 0), syscall.ESRCH) || isZombie(pids[0]) },
		patient, 10*time.Millisecond)
	require.False(t, logHas(child, "asked to stop")())
}

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, f := range files {
		if fields := stat(f); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func isZombie(pid int) bool {
	fields := stat(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return len(fields) > 0 && fields[0] == "Z"
}

// stat reads the fields of a process from its state on.
func stat(file string) []string {
	b, _ := os.ReadFile(file)
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.Fields(rest)
}
