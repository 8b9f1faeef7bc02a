package failpoint_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/failpoint"
)

// TestOrdinaryProgramsHaveNoFailpoints: neither the variable nor a point's name
// is in a program that was built without the tag.
func TestOrdinaryProgramsHaveNoFailpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tags := range []string{"", "failpoints"} {
		out := filepath.Join(dir, "trainer"+tags)
		build := exec.Command("go", "build", "-tags", tags, "-o", out, "../../cmd/trainer")
		text, err := build.CombinedOutput()
		require.NoError(t, err, string(text))
		program, err := os.ReadFile(out)
		require.NoError(t, err)
		armed := tags != ""
		for _, word := range []string{"STARFISH_FAILPOINTS", string(failpoint.AfterTake), string(failpoint.BetweenPushes)} {
			require.Equal(t, armed, bytes.Contains(program, []byte(word)), "%q in a program with tags %q", word, tags)
		}
	}
}

// An armed point kills the first process that hits it, and no other; one that is
// not armed kills nobody.
func TestStrikesOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "hit")
	main := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(main, []byte("package main\n\nimport \"starfish/internal/failpoint\"\n\n"+
		"func main() { failpoint.Hit(failpoint.AfterTake) }\n"), 0o644))
	overlay := filepath.Join(dir, "overlay.json")
	here, err := os.Getwd()
	require.NoError(t, err)
	place := filepath.Join(here, "hit", "main.go")
	require.NoError(t, os.WriteFile(overlay, []byte(`{"Replace":{"`+place+`":"`+main+`"}}`), 0o644))
	out, err := exec.Command("go", "build", "-tags", "failpoints", "-overlay", overlay, "-o", program, "./hit").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, sub := range []string{"armed", "struck"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	hit := func() syscall.WaitStatus {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "STARFISH_FAILPOINTS="+dir)
		_ = cmd.Run()
		return cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	require.Zero(t, hit().ExitStatus())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "armed", "after-take"), []byte("10ms"), 0o644))
	require.Equal(t, syscall.SIGKILL, hit().Signal())
	struck, err := filepath.Glob(filepath.Join(dir, "struck", "after-take.*"))
	require.NoError(t, err)
	require.Len(t, struck, 1)
	require.Zero(t, hit().ExitStatus())
}

// A point costs nothing in an ordinary build: this is an empty loop.
func BenchmarkHit(b *testing.B) {
	for b.Loop() {
		failpoint.Hit(failpoint.BetweenPushes)
	}
}
