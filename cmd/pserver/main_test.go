package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
	"starfish/internal/store"
	"starfish/internal/store/storetest"
	"starfish/job"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		says string
	}{
		"no job":         {nil, "--job is missing"},
		"no etcd":        {[]string{"--job", "j"}, "--etcd-endpoints is missing"},
		"misspelt flag":  {[]string{"--jbo", "j"}, "unknown flag: --jbo"},
		"extra argument": {[]string{"now"}, `unexpected argument "now"`},
		"no size":        {[]string{"--job", "j", "--max-memory", "4 elephants"}, "4 elephants"},
		"little memory":  {[]string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--max-memory", "3KiB"}, "--max-memory 3072 bytes: the least is 1MiB"},
		"no such mode":   {[]string{"--job", "j", "--etcd-endpoints", "127.0.0.1:1", "--recovery", "sometimes"}, `--recovery "sometimes" is none of auto, always, never`},
		"no such spec":   {[]string{"--spec", "/absent.yaml"}, "/absent.yaml"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			require.Equal(t, 2, cli.Execute(t.Context(), command(), c.args, &stderr))
			require.Contains(t, stderr.String(), c.says)
			require.Equal(t, 1, bytes.Count(stderr.Bytes(), []byte("\n")))
		})
	}
}

// A pserver that is given the spec makes the job of a built-in model.
func TestCreate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data"), []byte("1 1:1\n"), 0o644))
	spec, err := job.ParseSpec([]byte("job: j\ndata: {train: [data]}\nmodel: {type: count}\n"), dir, nil)
	require.NoError(t, err)
	st := store.Prefixed(storetest.Embedded(t), job.Prefix("j"))
	require.NoError(t, create(t.Context(), st, spec))
	j, err := job.Load(t.Context(), st)
	require.NoError(t, err)
	require.Equal(t, spec.JSON(), j.Spec.JSON())
	require.NoError(t, create(t.Context(), st, spec), "it is the same job")

	other, err := job.ParseSpec([]byte("job: j\ndata: {train: [data]}\nmodel: {type: oracle}\n"), dir, nil)
	require.NoError(t, err)
	require.Equal(t, 2, job.ExitCode(create(t.Context(), st, other)))
}
