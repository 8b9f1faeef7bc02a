package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/mutants"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	exit := errors.New("exit status 1")
	cases := map[string]struct {
		out    string
		err    error
		caught bool
		by     string
		broken bool
	}{
		"tests pass":   {"ok  \tx\t0.1s\n", nil, false, "", false},
		"a test":       {"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\nFAIL\n", exit, true, "TestA/b", false},
		"a crash":      {"panic: oops\n\ngoroutine 1 [running]:\n", exit, true, "panic: oops", false},
		"a hang":       {"panic: test timed out after 2m0s\n", exit, true, "the time-out", false},
		"no compile":   {"# x\nx.go:1: bad\nFAIL\tx [build failed]\n", exit, false, "", true},
		"no toolchain": {"", exit, false, "", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := judge([]byte(c.out), c.err)
			require.Equal(t, c.broken, err != nil, "%v", err)
			require.Equal(t, c.caught, o.caught)
			require.Equal(t, c.by, o.by)
		})
	}
}

// A whole trial in a module of one file: a mutant that is caught, one that
// survives, and one that does not compile.
func TestTry(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	write("m.go", "package m\n\nfunc Add(a, b int) int { return a + b }\n\nfunc Unused() int { return 1 }\n")
	write("m_test.go", "package m\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n")
	m := mutants.Mutant{Name: "minus", File: "m.go", Old: "a + b", New: "a - b", Package: ".", Run: "TestAdd"}
	b := bench{root: root, baseline: map[[2]string]error{}}
	o, err := b.try(m)
	require.NoError(t, err)
	require.Equal(t, outcome{true, "TestAdd"}, o)

	m.Old, m.New = "return 1", "return 2"
	o, err = b.try(m)
	require.NoError(t, err)
	require.False(t, o.caught)

	m.New = "return nothing"
	_, err = b.try(m)
	require.ErrorContains(t, err, "does not compile")

	m.New, m.Run = "return 2", "TestAbsent"
	_, err = b.try(m)
	require.ErrorContains(t, err, "no tests")
	m.Old = "gone"
	_, err = b.try(m)
	require.ErrorIs(t, err, mutants.ErrStale)
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.Error(t, run([]string{"-only", "("}, &out, &out))
	require.Error(t, run([]string{"-only", "no such mutant"}, &out, &out))
	require.NoError(t, run([]string{"-list"}, &out, &out))
}
