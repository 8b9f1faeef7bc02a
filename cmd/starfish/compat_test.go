package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/membership"
)

// The tests of this file run programs of the last release and of this tree in one
// job: docs/compatibility.md has what is promised. `make compat` runs them.

// last are the programs of the last release, built on demand; TestMain removes them.
var last struct {
	once sync.Once
	dir  string
	err  error
}

// lastRelease is the directory of the last release: its sources, and its programs
// in bin.
func lastRelease(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the last release")
	}
	for _, tool := range []string{"git", "tar", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("it builds the last release, which takes ", tool)
		}
	}
	last.once.Do(func() {
		if last.dir, last.err = os.MkdirTemp("", "starfish-last-"); last.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		out, err := exec.Command("../../deploy/build-last-release", last.dir).CombinedOutput()
		if err != nil {
			last.err = fmt.Errorf("%s: %w", out, err)
		}
	})
	const noHistory = 77
	if exit := (*exec.ExitError)(nil); errors.As(last.err, &exit) && exit.ExitCode() == noHistory {
		t.Skip(last.err)
	}
	require.NoError(t, last.err)
	return last.dir
}

// mixed is a job `count` of the last release's example in which programs of two
// versions work.
type mixed struct {
	*elastic
	old, now string // directories of programs
}

func newMixed(t *testing.T, passes int, set ...string) *mixed {
	t.Helper()
	release, now := lastRelease(t), filepath.Dir(starfishProgram(t))
	spec := filepath.Join(release, "examples", "count", "count.yaml")
	m := &mixed{newElasticOf(t, spec, passes, set...), filepath.Join(release, "bin"), now}
	t.Cleanup(func() {
		for name, c := range m.all {
			if t.Failed() {
				t.Logf("%s of %s:\n%s", name, filepath.Dir(c.cmd.Path), c.stderr.String())
			}
		}
	})
	return m
}

// start starts a process of a version in the place of the one that had the name,
// and waits until it works: a pserver owns shards, a trainer has chunks in hand.
func (m *mixed) start(dir, name string) {
	m.t.Helper()
	m.all[name] = m.daemonIn(dir, name, m.spec...)
	m.either(name+" works", func() bool {
		if strings.HasPrefix(name, "trainer") {
			return m.holds(name)
		}
		v, err := membership.ReadView(m.t.Context(), m.store)
		if err != nil {
			return false // there is no job yet
		}
		for _, o := range v.Shards {
			if o.Name == name {
				return true
			}
		}
		return false
	})
}

// either waits for what is to happen while the job trains; it stops waiting when
// the job has ended before.
func (m *mixed) either(what string, ok func() bool) {
	m.t.Helper()
	m.until(what, func() bool { return ok() || m.phase() == etcdqueue.PhaseComplete })
}

// replace stops a process, in order or not, and starts one of a version instead.
func (m *mixed) replace(s syscall.Signal, dir, name string) {
	m.t.Helper()
	c := m.all[name]
	require.NoError(m.t, c.cmd.Process.Signal(s))
	if code := c.wait(); s == syscall.SIGTERM {
		require.Zero(m.t, code, "%s: %s", name, c.stderr.String())
	}
	m.start(dir, name)
	m.moves()
}

// moves waits until more chunks are complete.
func (m *mixed) moves() {
	m.t.Helper()
	complete := func() int64 {
		s, _, err := m.queue.Totals(m.t.Context())
		require.NoError(m.t, err)
		return s.Complete
	}
	before := complete()
	m.either("chunks become complete", func() bool { return complete() > before })
}

// end is the end of an elastic, after which the tools of both versions find the job
// in order.
func (m *mixed) end() {
	m.t.Helper()
	r := m.elastic.end()
	for _, dir := range []string{m.old, m.now} {
		tool := func(args ...string) *call { return m.call(args...).as(filepath.Join(dir, "starfish")).succeed() }
		var s jobStatus
		require.NoError(m.t, json.Unmarshal(tool("status", "--job", "count", "-o", "json").stdout.Bytes(), &s))
		require.Equal(m.t, r.Records, s.Result.Records)
		tool("queue", "audit", "--job", "count")
		file := filepath.Join(m.t.TempDir(), "counts.txt")
		tool("export", "--job", "count", "-o", file)
		requireExact(m.t, file, m.passes)
	}
	m.t.Logf("%d passes: %d takes of %d chunks, %d requeued", m.passes, r.Queue.Takes, r.Queue.Complete, r.Queue.Requeued)
}

// enough repeats a test with more passes if its job was over before everything had
// happened to it, for it is not known how fast the machine is.
func enough(t *testing.T, passes int, test func(t *testing.T, passes int) (over bool)) {
	t.Helper()
	for again := true; again; passes *= 4 {
		again = false // also if the test ends in its midst
		t.Run(fmt.Sprintf("%d passes", passes), func(t *testing.T) { again = test(t, passes) && !t.Failed() })
	}
}

// A job is taken from one version to the other, process by process, while it
// trains: forward as an upgrade does it, and back.
func TestCompatRoll(t *testing.T) {
	for _, test := range []struct {
		name    string
		forward bool
		order   []string
	}{
		{"forward, pservers first", true, []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1"}},
		{"back, trainers first", false, []string{"trainer-0", "trainer-1", "pserver-0", "pserver-1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			enough(t, 40, func(t *testing.T, passes int) bool {
				m := newMixed(t, passes)
				from, to := m.old, m.now
				if !test.forward {
					from, to = to, from
				}
				for _, name := range []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1"} {
					m.start(from, name)
				}
				for _, name := range test.order {
					m.replace(syscall.SIGTERM, to, name)
				}
				over := m.phase() != etcdqueue.PhaseTraining
				m.end()
				return over
			})
		})
	}
}

// Half of the processes are of either version all the time, and each of them is
// killed once: shards go from version to version by their checkpoints, chunks
// by their records.
func TestCompatHalfAndHalf(t *testing.T) {
	for name, test := range map[string]struct {
		passes int
		set    string
	}{"async": {100, "train.mode=async"}, "sync": {50, "train.mode=sync"}} {
		t.Run(name, func(t *testing.T) {
			enough(t, test.passes, func(t *testing.T, passes int) bool {
				m := newMixed(t, passes, test.set, "checkpoint.interval=500ms")
				version := map[string]string{"pserver-0": m.old, "trainer-0": m.old, "pserver-1": m.now, "trainer-1": m.now}
				names := []string{"pserver-0", "pserver-1", "trainer-0", "trainer-1"}
				for _, name := range names {
					m.start(version[name], name)
				}
				for _, name := range names {
					m.replace(syscall.SIGKILL, version[name], name)
				}
				// A pserver that is away for good leaves its shards to the other version.
				for _, name := range names[:2] {
					c := m.all[name]
					require.NoError(t, c.cmd.Process.Kill())
					c.wait()
					other := map[string]string{"pserver-0": "pserver-1", "pserver-1": "pserver-0"}[name]
					m.either("the other one has all shards", func() bool {
						v, err := membership.ReadView(t.Context(), m.store)
						require.NoError(t, err)
						for _, o := range v.Shards {
							if o.Name != other {
								return false
							}
						}
						return true
					})
					m.moves()
					m.start(version[name], name)
				}
				over := m.phase() != etcdqueue.PhaseTraining
				m.end()
				return over
			})
		})
	}
}

// A directory of `starfish run` goes from version to version and back, stopped and
// killed in between.
func TestCompatDirectory(t *testing.T) {
	release, now := lastRelease(t), starfishProgram(t)
	old := filepath.Join(release, "bin", "starfish")
	enough(t, 60, func(t *testing.T, passes int) bool {
		dir := filepath.Join(t.TempDir(), "run")
		file := filepath.Join(dir, "counts.txt")
		run := func(program string) *call {
			return newCall(t, "run", "-f", filepath.Join(release, "examples", "count", "count.yaml"), "--dir", dir, "--set", fmt.Sprintf("train.passes=%d", passes),
				"--pservers", "2", "--trainers", "2", "--result", "-", "--export", file).as(program)
		}
		done, over := int64(0), false
		for _, leg := range []struct {
			program, asks string // the second asks for the status of the first
			signal        syscall.Signal
		}{{old, now, syscall.SIGTERM}, {now, old, syscall.SIGKILL}, {old, now, syscall.SIGKILL}, {now, old, syscall.SIGTERM}} {
			c := run(leg.program).start()
			c.until(func() bool {
				var s jobStatus
				out, err := exec.Command(leg.asks, "status", "--dir", dir, "-o", "json", "--measure", "0", "--etcd-timeout", "5s").Output()
				if err != nil || json.Unmarshal(out, &s) != nil || s.Queue.Complete < done+20 && s.Phase != "complete" {
					return false
				}
				done, over = s.Queue.Complete, s.Phase == "complete"
				return true
			})
			_ = c.cmd.Process.Signal(leg.signal) // it may have ended
			c.wait()
			c.leavesNothing()
		}
		r := run(now).succeed().result()
		require.EqualValues(t, passes*32561, r.Records)
		requireExact(t, file, passes)
		for _, s := range r.Shards {
			require.Equal(t, r.Queue.Batches, s.Batches, "shard %d", s.Shard)
		}
		return over
	})
}

// A model with the state of an optimizer goes on with the other version; both export
// the same, and predict the same with what the other one has exported.
func TestCompatModel(t *testing.T) {
	release, now := lastRelease(t), starfishProgram(t)
	old := filepath.Join(release, "bin", "starfish")
	for _, optimizer := range []string{"adagrad", "adam"} {
		t.Run(optimizer, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			run := func(program string) *call {
				return newCall(t, "run", "-f", filepath.Join(release, "examples", "adult", "adult.yaml"), "--dir", dir, "--set", "train.passes=8",
					"--set", "optimizer.type="+optimizer, "--set", "optimizer.learning_rate=0.01", "--result", "-").as(program)
			}
			c := run(old).start()
			c.until(func() bool { s, err := statusOf(t, dir); return err == nil && s.Queue.Complete >= 36 })
			_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			require.Zero(t, c.wait(), c.stderr.String())
			r := run(now).succeed().result()
			require.EqualValues(t, 8*32561, r.Records)
			require.Greater(t, *r.Test.Metrics["auc"], 0.89)
			var models, predictions []string
			for _, programs := range [][]string{{old, now}, {now, old}} {
				text, file := filepath.Join(t.TempDir(), "model.txt"), filepath.Join(t.TempDir(), "model.npz")
				newCall(t, "export", "--dir", dir, "-o", text).as(programs[0]).succeed()
				models = append(models, exported(t, text))
				newCall(t, "export", "--dir", dir, "-o", file).as(programs[0]).succeed()
				data := filepath.Join(filepath.Dir(adult), "a9a.t")
				predictions = append(predictions, newCall(t, "predict", "-m", file, "-i", data).as(programs[1]).succeed().stdout.String())
			}
			require.Equal(t, models[0], models[1])
			require.Equal(t, predictions[0], predictions[1])
		})
	}
}
