package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/job"
)

// The tests of whole jobs run the real programs as real processes; they are
// built once. They run one after the other, for each has the machine to itself.

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range []string{programs.dir, last.dir} {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// programs are the three programs, built on demand.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

// starfishProgram is the path of starfish; its daemons lie beside it.
func starfishProgram(t *testing.T) string {
	t.Helper()
	programs.once.Do(func() {
		programs.dir, programs.err = os.MkdirTemp("", "starfish-e2e-") //nolint:usetesting // it outlives the test
		if programs.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", programs.dir+"/", "./cmd/starfish", "./cmd/pserver", "./cmd/trainer")
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			programs.err = errors.New(string(out))
		}
	})
	require.NoError(t, programs.err)
	return filepath.Join(programs.dir, "starfish")
}

// command is one call of starfish.
type call struct {
	t      *testing.T
	cmd    *exec.Cmd
	mark   string // in the environment of the call and all its children
	stdout safeBuffer
	stderr safeBuffer
}

func newCall(t *testing.T, args ...string) *call {
	t.Helper()
	c := &call{t: t, cmd: exec.Command(starfishProgram(t), args...), mark: "E2E_MARK=" + uuid.NewString()}
	c.cmd.Env = append(os.Environ(), c.mark)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	return c
}

// as runs another program instead.
func (c *call) as(program string) *call {
	c.cmd.Path, c.cmd.Args[0] = program, program
	return c
}

func (c *call) env(pairs ...string) *call {
	c.cmd.Env = append(c.cmd.Env, pairs...)
	return c
}

func (c *call) start() *call {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Start())
	c.t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// wait waits for the end and returns the exit code, -1 after a signal.
func (c *call) wait() int {
	c.t.Helper()
	const patience = 10 * time.Minute // less than the test binary's own
	timer := time.AfterFunc(patience, func() { _ = c.cmd.Process.Signal(syscall.SIGABRT) })
	defer timer.Stop()
	_ = c.cmd.Wait() // the exit code says it
	return c.cmd.ProcessState.ExitCode()
}

func (c *call) run() int { return c.start().wait() }

// succeed runs and demands exit code 0.
func (c *call) succeed() *call {
	c.t.Helper()
	require.Zero(c.t, c.run(), c.stderr.String())
	return c
}

// result is what --result - wrote.
func (c *call) result() job.Result {
	c.t.Helper()
	var r job.Result
	require.NoError(c.t, json.Unmarshal(c.stdout.Bytes(), &r), c.stdout.String())
	return r
}

// left lists the processes that the call has left behind.
func (c *call) left() []string {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var left []string
	for _, f := range files {
		if env, _ := os.ReadFile(f); bytes.Contains(env, []byte(c.mark)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
			left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}

func (c *call) leavesNothing() {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return len(c.left()) == 0 }, 10*time.Second, 20*time.Millisecond, "%v", c.left())
}

// until waits for a condition while the call runs.
func (c *call) until(ok func() bool) {
	c.t.Helper()
	require.Eventually(c.t, ok, time.Minute, 20*time.Millisecond, c.stderr.String())
}

// safeBuffer may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const (
	adult = "../../examples/adult/adult.yaml"
	count = "../../examples/count/count.yaml"
)

// model reads an exported model without its comment, which names the job's UUID.
func exported(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	comment, rest, ok := strings.Cut(string(b), "\n")
	require.True(t, ok && strings.HasPrefix(comment, "# "), comment)
	return rest
}

// statusOf asks how a local run stands.
func statusOf(t *testing.T, dir string) (jobStatus, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, starfishProgram(t), "status", "--dir", dir, "-o", "json", "--measure", "0", "--etcd-timeout", "5s").Output()
	var s jobStatus
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

func (s *safeBuffer) Bytes() []byte { return []byte(s.String()) }
