package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/bench/ctrgen"
)

func TestRun(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "deep", "ctr")
	var stdout, stderr bytes.Buffer
	require.NoError(t, run([]string{"-rows", "100", "-out", out, "-formats", "libsvm,tsv"}, &stdout, &stderr))
	var s ctrgen.Summary
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &s))
	require.Equal(t, uint64(100), s.Rows)
	for _, format := range []string{"libsvm", "tsv"} {
		text, err := os.ReadFile(out + "." + format)
		require.NoError(t, err)
		require.Equal(t, 100, bytes.Count(text, []byte("\n")), format)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	out := filepath.Join(t.TempDir(), "ctr")
	for _, args := range [][]string{{"-rowz", "1"}, {"extra"}, {"-formats", "xml", "-out", out}, {"-bits", "99", "-out", out}} {
		require.Error(t, run(args, &stdout, &stderr), args)
	}
}
