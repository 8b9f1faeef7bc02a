package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
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
}

func TestServeAdmin(t *testing.T) {
	t.Parallel()
	log, hook := test.NewNullLogger()
	d := Daemon{Admin: "127.0.0.1:0", Log: log}
	registry := prometheus.NewRegistry()
	failure := errors.New("the daemon's own end")
	err := d.ServeAdmin(t.Context(), registry, func() error { return errors.New("warming up") }, func() any { return "fine" },
		func(context.Context) error {
			address := hook.LastEntry().Data["address"].(string)
			require.Equal(t, "warming up\n", get(t, "http://"+address+"/readyz"))
			require.Contains(t, get(t, "http://"+address+"/status"), "fine")
			return failure
		})
	require.ErrorIs(t, err, failure)
	require.Equal(t, logrus.InfoLevel, hook.LastEntry().Level)

	d.Admin = "nowhere:port"
	require.Equal(t, 2, job.ExitCode(d.ServeAdmin(t.Context(), registry, nil, nil, nil)))
	d.Admin = ""
	require.NoError(t, d.ServeAdmin(t.Context(), registry, nil, nil, func(context.Context) error { return nil }))
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
