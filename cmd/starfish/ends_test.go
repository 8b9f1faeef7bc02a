package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/job"
)

// lines are what a call has said.
func (c *call) lines() []string { return strings.Split(strings.TrimSpace(c.stderr.String()), "\n") }

// last is the last of them.
func (c *call) last() string { return c.lines()[len(c.lines())-1] }

// A job of which every chunk fails ends with code 1, with one line that names
// the first bad record, and with a result; so does the same command again.
func TestFailedJob(t *testing.T) {
	dir := t.TempDir()
	spec, data := filepath.Join(dir, "spec.yaml"), filepath.Join(dir, "data")
	require.NoError(t, os.WriteFile(data, []byte("1 1:1\n1 1:nan\n"), 0o644))
	require.NoError(t, os.WriteFile(spec, []byte("job: bad\ndata: {train: [data]}\nmodel: {type: logistic}\n"), 0o644))
	args := []string{"run", "-f", spec, "--dir", filepath.Join(dir, "run"), "--result", "-"}
	want := fmt.Sprintf("every chunk of pass 0 failed; chunk 0: bad record: %s:2: the value \"nan\" is not a finite number", data)

	c := newCall(t, args...)
	require.Equal(t, 1, c.run(), c.stderr.String())
	require.Equal(t, "starfish: job bad has failed: "+want, c.last())
	require.NotContains(t, c.stderr.String(), "started again")
	require.Equal(t, 1, strings.Count(c.stderr.String(), "nan"), c.stderr.String())
	r := c.result()
	require.Equal(t, "failed", r.Phase)
	require.Equal(t, want, r.Reason)
	require.Equal(t, job.QueueResult{Chunks: 1, Failed: 1, Takes: 3}, r.Queue)
	require.Nil(t, r.Shards)
	require.Nil(t, r.Train.Loss)
	require.Positive(t, *r.WallSeconds)
	var text map[string]any
	require.NoError(t, json.Unmarshal(c.stdout.Bytes(), &text))
	require.EqualValues(t, 1, text["v"])
	c.leavesNothing()

	args[len(args)-1] = filepath.Join(dir, "result.json")
	again := newCall(t, args...)
	require.Equal(t, 1, again.run(), again.stderr.String())
	require.Equal(t, c.last()+". It had failed before, and a job that has failed does not go on: begin a new one with another --dir, or remove "+
		filepath.Join(dir, "run")+" first", again.last())
	require.Empty(t, again.stdout.String())
	b, err := os.ReadFile(args[len(args)-1])
	require.NoError(t, err)
	var second job.Result
	require.NoError(t, json.Unmarshal(b, &second))
	require.Equal(t, r.UUID, second.UUID)
	require.Equal(t, r.Reason, second.Reason)
	require.Nil(t, second.Seconds)

	status := newCall(t, "status", "--dir", filepath.Join(dir, "run")).succeed().stdout.String()
	require.Contains(t, status, "phase    failed: "+want)
}

// A job whose keys are deleted while it runs ends the run, whatever its
// processes do then.
func TestDeletedJob(t *testing.T) {
	srv, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	defer srv.Close()
	quiet := logrus.New()
	quiet.SetLevel(logrus.PanicLevel)
	st, closeStore, err := (&cli.Etcd{Endpoints: srv.Endpoints(), Timeout: time.Minute}).Connect(t.Context(), quiet)
	require.NoError(t, err)
	defer closeStore()
	at := store.Prefixed(st, job.Prefix("count"))
	c := newCall(t, "run", "-f", count, "--etcd-endpoints", strings.Join(srv.Endpoints(), ","), "--dir", t.TempDir(), "--set", "train.passes=100000").start()
	f, err := newFollower(at, &job.Spec{}, clock.System)
	require.NoError(t, err)
	defer f.close()
	c.until(func() bool { _, s, err := f.look(t.Context()); return err == nil && s.Pass > 0 })
	asked := time.Now()
	prefix := job.Prefix("count")
	_, err = st.Txn(t.Context(), store.Txn{Then: []store.Op{store.DeleteRange(prefix, store.PrefixEnd(prefix))}})
	require.NoError(t, err)
	require.Equal(t, 1, c.wait(), c.stderr.String())
	require.Less(t, time.Since(asked), 30*time.Second)
	require.Equal(t, "starfish: job count: "+errJobGone.Error(), c.last())
	require.NotContains(t, c.stderr.String(), "started again")
	c.leavesNothing()
}

// The variables that stand for flags of run are for run alone; others are for
// the processes.
func TestEnvironmentOfTheProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	file, err := filepath.Abs(count)
	require.NoError(t, err)
	c := newCall(t, "run").env("STARFISH_FILE="+file, "STARFISH_SET=train.passes=2", "STARFISH_DIR="+dir, "STARFISH_RESULT=-",
		"STARFISH_PSERVERS=1", "STARFISH_LOG_LEVEL=debug", "STARFISH_EXPORT="+filepath.Join(t.TempDir(), "m.txt")).succeed()
	require.EqualValues(t, 2*32561, c.result().Records)

	c = newCall(t, "run", "-f", count, "--set", "train.passes=2").env("STARFISH_TAKE=many")
	require.Equal(t, 2, c.run())
	require.Contains(t, c.last(), `environment STARFISH_TAKE="many"`)
	require.NotContains(t, c.last(), "trainer: ")
}

// Without --dir nothing is left, however the run ends; what a killed one leaves
// is removed by the next.
func TestTemporaryDirectoryOfAnInterruptedRun(t *testing.T) {
	tmp := t.TempDir()
	left := func() []os.DirEntry {
		dirs, err := os.ReadDir(tmp)
		require.NoError(t, err)
		return dirs
	}
	begin := func() *call {
		c := newCall(t, "run", "-f", count, "--set", "train.passes=100000", "--pservers", "1", "--trainers", "1").env("TMPDIR=" + tmp).start()
		c.until(func() bool { return strings.Contains(c.stderr.String(), "job started") })
		return c
	}
	ends := map[string][]syscall.Signal{
		"second signal": {syscall.SIGINT, syscall.SIGTERM},
		"hangup":        {syscall.SIGHUP},
	}
	if signal.Ignored(syscall.SIGHUP) { // under nohup(1), and so by the run too
		delete(ends, "hangup")
	}
	for name, signals := range ends {
		c := begin()
		for _, s := range signals {
			require.NoError(t, c.cmd.Process.Signal(s))
		}
		c.wait()
		require.Empty(t, left(), name)
		c.leavesNothing()
	}
	c := begin()
	require.NoError(t, c.cmd.Process.Kill())
	c.wait()
	c.leavesNothing()
	require.Len(t, left(), 1)
	newCall(t, "run", "-f", count, "--set", "train.passes=1").env("TMPDIR=" + tmp).succeed()
	require.Empty(t, left())
}

// However fast passes turn, a job can be asked how it stands.
func TestStatusOfShortPasses(t *testing.T) {
	dir := t.TempDir()
	spec := filepath.Join(dir, "spec.yaml")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), []byte("1 1:1\n-1 2:1\n"), 0o644))
	require.NoError(t, os.WriteFile(spec, []byte("job: short\ndata: {train: [data]}\nmodel: {type: count}\ntrain: {passes: 100000}\nshards: 1\n"), 0o644))
	at := filepath.Join(dir, "run")
	c := newCall(t, "run", "-f", spec, "--dir", at, "--trainers", "1", "--pservers", "1").start()
	c.until(func() bool { s, err := statusOf(t, at); return err == nil && s.Pass >= 100 })
	for range 3 {
		asked := time.Now()
		s, err := statusOf(t, at)
		require.NoError(t, err)
		require.Equal(t, "training", string(s.Phase))
		require.Less(t, time.Since(asked), 10*time.Second)
		require.InDelta(t, s.Queue.Complete, s.Queue.Chunks, 2)
	}
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.wait(), c.stderr.String())
	c.leavesNothing()
}
