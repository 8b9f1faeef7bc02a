package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/job"
)

// ground is an etcd for commands to work on.
type ground struct {
	t         *testing.T
	endpoints string
	store     store.Store
}

func newGround(t *testing.T) *ground {
	t.Helper()
	srv, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	quiet := logrus.New()
	quiet.SetLevel(logrus.PanicLevel)
	st, closeStore, err := (&cli.Etcd{Endpoints: srv.Endpoints(), Timeout: time.Minute}).Connect(t.Context(), quiet)
	require.NoError(t, err)
	t.Cleanup(closeStore)
	return &ground{t: t, endpoints: strings.Join(srv.Endpoints(), ","), store: st}
}

// job is the part of the store that belongs to a job.
func (g *ground) job(name string) store.Store { return store.Prefixed(g.store, job.Prefix(name)) }

// call is a command on this etcd.
func (g *ground) call(args ...string) *call {
	g.t.Helper()
	return newCall(g.t, append(args, "--etcd-endpoints", g.endpoints)...)
}

// ask runs a command with -o json and decodes its answer, in which no field may
// be unknown.
func (g *ground) ask(into any, args ...string) {
	g.t.Helper()
	decodeStrictly(g.t, g.call(append(args, "-o", "json")...).succeed(), into)
}

func decodeStrictly(t *testing.T, c *call, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(c.stdout.String()))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(into), c.stdout.String())
	require.False(t, d.More(), "one value")
}

// says runs a command that must succeed, and returns its text.
func (g *ground) says(args ...string) string {
	g.t.Helper()
	return g.call(args...).succeed().stdout.String()
}

// refuses demands an exit code and exactly this one line.
func (c *call) refuses(code int, line string) {
	c.t.Helper()
	require.Equal(c.t, code, c.run(), c.stderr.String())
	require.Equal(c.t, "starfish: "+line+"\n", c.stderr.String())
	require.Empty(c.t, c.stdout.String())
}

// small writes a spec with its data and returns the spec's file.
func small(t *testing.T, name string, files map[string]string, more ...string) string {
	t.Helper()
	dir := t.TempDir()
	var data []string
	for file, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		data = append(data, file)
	}
	spec := filepath.Join(dir, "spec.yaml")
	text := "job: " + name + "\ndata: {train: [" + strings.Join(data, ", ") + "]}\nmodel: {type: count}\n" + strings.Join(more, "\n")
	require.NoError(t, os.WriteFile(spec, []byte(text+"\n"), 0o644))
	return spec
}

const twoLines = "1 1:1\n-1 2:1\n"
