package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/job"
)

const specText = `job: small
data: {train: [data]}
model: {type: %MODEL%}
`

func specFile(t *testing.T, model string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), []byte("1 1:1\n"), 0o644))
	file := filepath.Join(dir, "spec.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(specText, "%MODEL%", model, 1)), 0o644))
	return file
}

func TestResolve(t *testing.T) {
	t.Parallel()
	good := specFile(t, "logistic")
	log := Logging{Level: "info", Format: "text"}
	host, err := os.Hostname()
	require.NoError(t, err)
	cases := map[string]struct {
		in  Daemon
		err string
		job string
	}{
		"a job that is there":       {in: Daemon{Job: "j"}, job: "j"},
		"the spec names the job":    {in: Daemon{SpecFile: good}, job: "small"},
		"both agree":                {in: Daemon{SpecFile: good, Job: "small"}, job: "small"},
		"they do not":               {in: Daemon{SpecFile: good, Job: "other"}, err: `--job "other"`},
		"neither":                   {in: Daemon{}, err: "--job is missing"},
		"an impossible job":         {in: Daemon{Job: "a/b"}, err: `--job: "a/b"`},
		"an impossible name":        {in: Daemon{SpecFile: good, Name: "a/b"}, err: `--name: "a/b"`},
		"no such spec":              {in: Daemon{SpecFile: good + "x"}, err: "no such file"},
		"set without spec":          {in: Daemon{Job: "j", Sets: []string{"a=b"}}, err: "--set needs --spec"},
		"an impossible override":    {in: Daemon{SpecFile: good, Sets: []string{"train.batch=-1"}}, err: "train.batch"},
		"a model nobody knows":      {in: Daemon{SpecFile: specFile(t, "mine")}, err: "mine"},
		"a model that this one has": {in: Daemon{SpecFile: specFile(t, "mine"), Models: []string{"mine"}}, job: "small"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := c.in
			d.Logging = log
			err := d.Resolve(os.Stderr)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, 2, job.ExitCode(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.job, d.Job)
			require.Equal(t, host, d.Name)
		})
	}
}

func TestConnect(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	_, _, err := (&Etcd{}).Connect(t.Context(), log)
	require.ErrorContains(t, err, "--etcd-endpoints")
	require.Equal(t, 2, job.ExitCode(err))

	nobody := Etcd{Endpoints: []string{"127.0.0.1:1"}, Timeout: 200e6}
	_, _, err = nobody.Connect(t.Context(), log)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.Equal(t, int(job.ExitNoEtcd), job.ExitCode(err))

	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	nobody.Timeout = 1e12
	_, _, err = nobody.Connect(ctx, log)
	require.ErrorIs(t, err, why)
}

func TestDaemonCommand(t *testing.T) {
	t.Parallel()
	var d Daemon
	c := DaemonCommand(&d, "daemon", "A daemon", func(context.Context, store.Store) error { return nil })
	require.Equal(t, 3, Execute(t.Context(), c, []string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--etcd-timeout", "100ms"}, io.Discard))
	require.Equal(t, "j", d.Job)

	// A signal while etcd is not reached is an orderly end.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrSignal)
	c = DaemonCommand(new(Daemon), "daemon", "A daemon", func(context.Context, store.Store) error { return nil })
	require.Equal(t, 0, Execute(ctx, c, []string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1"}, io.Discard))
	c = DaemonCommand(new(Daemon), "daemon", "A daemon", func(context.Context, store.Store) error { return nil })
	args := []string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--signal-exit-code", "143"}
	require.Equal(t, 143, Execute(ctx, c, args, io.Discard), "the work is not done")
}

// The exit code of a signal is that of an orderly end by one only.
func TestSignalCode(t *testing.T) {
	t.Parallel()
	d := Daemon{SignalCode: 143}
	require.NoError(t, d.end(t.Context(), nil), "complete")
	lost := job.Exitf(job.ExitStateLost, "lost")
	ctx, signal := context.WithCancelCause(t.Context())
	signal(ErrSignal)
	require.Equal(t, 5, job.ExitCode(d.end(ctx, lost)))
	require.Equal(t, 143, job.ExitCode(d.end(ctx, nil)))
	require.ErrorIs(t, d.end(ctx, nil), ErrSignal)
	d.SignalCode = 0
	require.NoError(t, d.end(ctx, nil))
}

// The admin port is open before etcd is reached and until the daemon has ended.
func TestAdminPort(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	d := Daemon{Admin: "127.0.0.1:0", Log: log}
	failure := errors.New("the daemon's own end")
	err := d.withAdmin(t.Context(), func() error {
		url := "http://" + hook.LastEntry().Data["address"].(string)
		require.Equal(t, "ok\n", get(t, url+"/healthz"))
		require.Equal(t, "etcd has not been reached yet\n", get(t, url+"/readyz"))
		require.Contains(t, get(t, url+"/status"), "etcd has not been reached yet")
		d.Show(func() error { return errors.New("warming up") }, func() any { return "fine" })
		require.Equal(t, "warming up\n", get(t, url+"/readyz"))
		require.Contains(t, get(t, url+"/status"), "fine")
		require.Contains(t, get(t, url+"/metrics"), "go_goroutines")
		return failure
	})
	require.ErrorIs(t, err, failure)
	require.Equal(t, logrus.InfoLevel, hook.LastEntry().Level)

	c := DaemonCommand(new(Daemon), "daemon", "A daemon", func(context.Context, store.Store) error { return nil })
	args := []string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--admin-address", "nowhere:port"}
	require.Equal(t, 2, Execute(t.Context(), c, args, io.Discard), "before etcd is asked")
	d.Admin = ""
	require.NoError(t, d.withAdmin(t.Context(), func() error { return nil }))
}

// An idle daemon whose work is done is ready and stays; a signal ends it, with 0.
func TestIdleWhenComplete(t *testing.T) {
	t.Parallel()
	log, _ := test.NewNullLogger()
	d := Daemon{Log: log, Idle: true, SignalCode: 143}
	require.NoError(t, d.withAdmin(t.Context(), func() error {
		d.Show(func() error { return errors.New("not registered") }, nil)
		ctx, signal := context.WithCancelCause(t.Context())
		ended := make(chan error)
		go func() { ended <- d.end(ctx, nil) }()
		for d.faces.ready() != nil {
			runtime.Gosched()
		}
		select {
		case err := <-ended:
			require.Fail(t, "it did not stay", "%v", err)
		default:
		}
		signal(ErrSignal)
		require.NoError(t, <-ended)

		failure := errors.New("diverged")
		require.Equal(t, failure, d.end(t.Context(), failure), "only what is complete stays")
		return nil
	}))
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	require.NoError(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(b)
}
