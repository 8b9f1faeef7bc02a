package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store/embedded"
)

// The README's main run: a real model on real data, as good as any solver's.
func TestRunAdult(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c := newCall(t, "run", "-f", adult, "--dir", dir, "--result", "-", "--export", filepath.Join(dir, "model.txt")).succeed()
	r := c.result()
	require.Equal(t, "complete", r.Phase)
	require.EqualValues(t, 5*32561, r.Records)
	require.EqualValues(t, 180, r.Queue.Complete)
	require.EqualValues(t, 16281, r.Test.Records)
	require.GreaterOrEqual(t, *r.Test.Metrics["auc"], 0.9010)
	require.GreaterOrEqual(t, *r.Test.Metrics["accuracy"], 0.848)
	require.LessOrEqual(t, *r.Test.Metrics["loss"], 0.3260)
	require.Positive(t, *r.Seconds)
	require.GreaterOrEqual(t, *r.WallSeconds, *r.Seconds)
	require.Positive(t, *r.CPUSeconds)
	require.Len(t, r.Shards, 4)
	for _, s := range r.Shards {
		require.EqualValues(t, 2665, s.Batches, "shard %d", s.Shard)
	}
	require.Contains(t, c.stderr.String(), "job       adult complete: 162,805 records in 5 passes")
	c.leavesNothing()
	model := exported(t, filepath.Join(dir, "model.txt"))
	require.True(t, strings.HasPrefix(model, "bias\t0\t-0."), model)

	// The directory is kept: the same command has the same answer at once, other
	// commands find the job, and another spec is refused.
	again := newCall(t, "run", "-f", adult, "--dir", dir, "--result", "-", "--export", filepath.Join(dir, "again.txt")).succeed().result()
	require.Equal(t, r.UUID, again.UUID)
	require.Equal(t, r.Test, again.Test)
	require.Equal(t, model, exported(t, filepath.Join(dir, "again.txt")))
	newCall(t, "export", "--dir", dir, "-o", filepath.Join(dir, "third.txt")).succeed()
	require.Equal(t, model, exported(t, filepath.Join(dir, "third.txt")))
	text := newCall(t, "status", "--dir", dir).succeed().stdout.String()
	require.Contains(t, text, "phase    complete, pass 5 of 5")
	require.Contains(t, text, "accuracy")
	other := newCall(t, "run", "-f", adult, "--dir", dir, "--set", "train.passes=6")
	require.Equal(t, 2, other.run())
	require.Contains(t, other.stderr.String(), "train.passes: 5 in the job, 6 here")
	before, err := os.ReadFile(filepath.Join(dir, "spec.json"))
	require.NoError(t, err)
	stranger := newCall(t, "run", "-f", count, "--dir", dir)
	require.Equal(t, 2, stranger.run())
	require.Contains(t, stranger.last(), `is of job "adult", and the spec of job "count"`)
	after, err := os.ReadFile(filepath.Join(dir, "spec.json"))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	require.Equal(t, text, newCall(t, "status", "--dir", dir).succeed().stdout.String())
}

// Without --dir nothing is left, not even a directory.
func TestRunWithoutDirectoryLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	c := newCall(t, "run", "-f", adult, "--set", "train.passes=1", "--pservers", "1", "--trainers", "1").env("TMPDIR=" + tmp).succeed()
	require.Contains(t, c.stdout.String(), "job       adult complete: 32,561 records in 1 pass")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	c.leavesNothing()
}

// A run that is asked to stop hands back and saves what it has; one that is
// killed leaves no process; the same command goes on after both, and every
// record is counted once.
func TestRunGoesOnAfterSigtermAndSigkill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	const passes = 90
	args := []string{"run", "-f", count, "--dir", dir, "--set", fmt.Sprintf("train.passes=%d", passes), "--result", "-",
		"--export", filepath.Join(dir, "counts.txt")}
	trained := func(atLeast int64) func() bool {
		return func() bool {
			s, err := statusOf(t, dir)
			return err == nil && s.Queue.Complete >= atLeast
		}
	}
	c := newCall(t, args...).start()
	c.until(trained(100))
	asked := time.Now()
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.wait(), c.stderr.String())
	require.Less(t, time.Since(asked), 15*time.Second)
	require.Contains(t, c.stderr.String(), "the same command goes on from here")
	c.leavesNothing()
	s, err := statusOf(t, dir)
	require.NoError(t, err)
	require.Zero(t, s.Queue.Pending, "chunks are handed back")
	require.Empty(t, append(s.Pservers, s.Trainers...), "registrations are revoked")
	for _, sh := range s.Shards {
		require.Positive(t, sh.Checkpoints)
		require.Empty(t, sh.Owner)
	}

	c = newCall(t, args...).start()
	c.until(trained(s.Queue.Complete + 100))
	require.NoError(t, c.cmd.Process.Kill())
	c.wait()
	c.leavesNothing()

	c = newCall(t, args...).succeed()
	r := c.result()
	require.EqualValues(t, passes*32561, r.Records)
	requireExact(t, filepath.Join(dir, "counts.txt"), passes)
	c.leavesNothing()
}

// A second signal ends the run at once.
func TestSecondSignal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c := newCall(t, "run", "-f", count, "--dir", dir, "--set", "train.passes=1000").start()
	c.until(func() bool {
		s, err := statusOf(t, dir)
		return err == nil && len(s.Trainers) == 3
	})
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGINT))
	asked := time.Now()
	c.wait() // it may have ended in order before the second one
	require.Less(t, time.Since(asked), 10*time.Second)
	c.leavesNothing()
}

// Two runs cannot share a directory.
func TestDirectoryInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c := newCall(t, "run", "-f", count, "--dir", dir, "--set", "train.passes=1000").start()
	c.until(func() bool { _, err := statusOf(t, dir); return err == nil })
	other := newCall(t, "run", "-f", count, "--dir", dir, "--set", "train.passes=1000")
	require.Equal(t, 2, other.run())
	require.Contains(t, other.stderr.String(), "another run is using it")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.wait(), c.stderr.String())
}

// The same seed and one trainer give the same model to the bit, however many
// pservers and processors there are and however much is taken at once; another
// seed gives another.
func TestSameSeedSameModel(t *testing.T) {
	train := func(pservers, procs, take, seed int, sets ...string) string {
		file := filepath.Join(t.TempDir(), "model.txt")
		args := append([]string{
			"run", "-f", adult, "--set", "train.passes=2", "--set", fmt.Sprintf("train.seed=%d", seed), "--export", file,
			"--pservers", fmt.Sprint(pservers), "--trainers", "1", "--set", "queue.lanes=5",
		}, sets...)
		newCall(t, args...).env(fmt.Sprintf("GOMAXPROCS=%d", procs), fmt.Sprintf("STARFISH_TAKE=%d", take)).succeed()
		return exported(t, file)
	}
	first := train(2, 2, 0, 1)
	for _, other := range []struct{ pservers, procs, take int }{{2, 2, 0}, {1, 1, 1}, {3, 4, 3}, {2, 1, 100}} {
		require.Equal(t, first, train(other.pservers, other.procs, other.take, 1), "%+v", other)
	}
	require.NotEqual(t, first, train(2, 2, 0, 2))
	inOrder := train(1, 2, 1, 1, "--set", "train.shuffle=false")
	require.NotEqual(t, first, inOrder)
	require.Equal(t, inOrder, train(2, 1, 4, 1, "--set", "train.shuffle=false"))
}

// An etcd that is there already is used instead of an embedded one, and the
// trainers may be another program, which then makes the job.
func TestRunWithOtherParts(t *testing.T) {
	srv, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	defer srv.Close()
	etcd := []string{"--etcd-endpoints", strings.Join(srv.Endpoints(), ",")}
	dir := filepath.Join(t.TempDir(), "run")
	c := newCall(t, append([]string{"run"}, append(etcd, "-f", count, "--dir", dir, "--set", "train.passes=2", "--result", "-",
		"--trainer-binary", filepath.Join(filepath.Dir(starfishProgram(t)), "trainer"))...)...).succeed()
	require.EqualValues(t, 2*32561, c.result().Records)
	require.NoDirExists(t, filepath.Join(dir, "etcd"))
	c.leavesNothing()

	text := newCall(t, append([]string{"status", "--job", "count"}, etcd...)...).succeed().stdout.String()
	require.Contains(t, text, "phase    complete")
	file := filepath.Join(t.TempDir(), "counts.txt")
	newCall(t, append([]string{"export", "--job", "count", "-o", file, "--checkpoint-dir", filepath.Join(dir, "checkpoints")}, etcd...)...).succeed()
	requireExact(t, file, 2)
	other := newCall(t, append([]string{"status", "--job", "other"}, etcd...)...)
	require.Equal(t, 2, other.run())
	require.Contains(t, other.stderr.String(), `there is no job "other"`)
}
