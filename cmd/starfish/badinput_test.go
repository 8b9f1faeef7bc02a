package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a run cannot reach or read ends with the documented code and one line,
// and leaves nothing behind.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in"), []byte("1 1:1\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(goodSpec), 0o644))
	cases := map[string]struct {
		args []string
		code int
		want string
	}{
		"no spec there":          {[]string{"-f", "absent.yaml"}, 2, "the spec cannot be read: open absent.yaml: no such file or directory"},
		"a directory for a spec": {[]string{"-f", "."}, 2, "the spec cannot be read: read .: is a directory"},
		"a directory in a file":  {[]string{"-f", "spec.yaml", "--dir", "in/sub"}, 2, "--dir: mkdir "},
		"etcd that does not answer": {[]string{"-f", "spec.yaml", "--etcd-endpoints", "127.0.0.1:1", "--etcd-timeout", "500ms", "--dir", "no-etcd"}, 3,
			"etcd at 127.0.0.1:1 was not reached within 500ms"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := newCall(t, append([]string{"run", "--log-level", "error"}, c.args...)...)
			call.cmd.Dir = dir
			require.Equal(t, c.code, call.run(), call.stderr.String())
			require.Len(t, call.lines(), 1, call.stderr.String())
			require.True(t, strings.HasPrefix(call.last(), "starfish: "+c.want), call.last())
			require.Empty(t, call.stdout.String())
			call.leavesNothing()
		})
	}
}

// A file that must not be read is named before anything starts.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "in"), []byte("1 1:1\n"), 0))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(goodSpec), 0o644))
	call := newCall(t, "run", "-f", "spec.yaml", "--log-level", "error")
	call.cmd.Dir = dir
	if os.Geteuid() == 0 { // root may read everything: the program runs as nobody
		const nobody = 65534
		for at := os.TempDir(); at != "/"; at = filepath.Dir(at) {
			info, err := os.Stat(at)
			require.NoError(t, err)
			if info.Mode().Perm()&1 == 0 {
				t.Skipf("nobody cannot look into %s", at)
			}
		}
		own := filepath.Join(dir, "tmp")
		require.NoError(t, os.Mkdir(own, 0o755))
		require.NoError(t, os.Chown(own, nobody, nobody))
		for _, at := range []string{filepath.Dir(call.cmd.Path), dir, filepath.Dir(dir)} {
			require.NoError(t, os.Chmod(at, 0o755)) // temporary directories are the owner's
		}
		call.cmd.Env = append(call.cmd.Environ(), "TMPDIR="+own)
		call.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	require.Equal(t, 2, call.run(), call.stderr.String())
	require.Equal(t, "starfish: no data: open "+filepath.Join(dir, "in")+": permission denied", call.last())
	call.leavesNothing()
}

func TestUsage(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		says string
	}{
		"misspelt verb":      {[]string{"rnu"}, `did you mean "run"?`},
		"and its flags":      {[]string{"statsu", "--dir", "x"}, `unknown command "statsu", did you mean "status"?`},
		"below a verb":       {[]string{"queue", "fialed", "--dir", "x"}, `unknown command "fialed", did you mean "failed"?`},
		"export to a dir":    {[]string{"export", "--dir", "x", "-o", t.TempDir()}, "is a directory"},
		"export to no dir":   {[]string{"export", "--dir", "x", "-o", "no/such/dir"}, "-o no/such/dir: no such file or directory"},
		"misspelt flag":      {[]string{"run", "--fiel", "x"}, "unknown flag: --fiel, did you mean --file?"},
		"a flag almost":      {[]string{"run", "-f", "x", "--pserver", "2"}, "unknown flag: --pserver, did you mean --pservers?"},
		"no spec":            {[]string{"run"}, "-f is missing"},
		"chaos of what":      {[]string{"run", "-f", "x", "--chaos", "etcd=1s"}, "--chaos"},
		"chaos how often":    {[]string{"run", "-f", "x", "--chaos", "trainer=often"}, "--chaos"},
		"negative trainers":  {[]string{"run", "-f", "x", "--trainers", "-1"}, "--trainers"},
		"recovery how":       {[]string{"run", "-f", "x", "--recovery", "sometimes"}, `--recovery "sometimes" is none of auto, always, never`},
		"little memory":      {[]string{"run", "-f", "x", "--max-memory", "3KiB"}, "--max-memory 3072 bytes: the least is 1MiB"},
		"export to stdout":   {[]string{"run", "-f", "x", "--export", "-"}, "not to -"},
		"export there too":   {[]string{"export", "--dir", "x", "-o", "-"}, "not to -"},
		"etcd without dir":   {[]string{"run", "-f", "x", "--etcd-endpoints", "y"}, "needs --dir"},
		"log level":          {[]string{"run", "-f", "x", "--log-level", "loud"}, "--log-level"},
		"export to nowhere":  {[]string{"export", "--job", "j", "--etcd-endpoints", "x"}, "-o is missing"},
		"status of nothing":  {[]string{"status"}, "--job is missing"},
		"status in xml":      {[]string{"status", "-o", "xml"}, "-o"},
		"no run there":       {[]string{"status", "--dir", t.TempDir()}, "no run here"},
		"dir and etcd":       {[]string{"status", "--dir", "x", "--etcd-endpoints", "y"}, "exclude each other"},
		"generate what":      {[]string{"generate", "crt"}, `did you mean "ctr"?`},
		"generate how many":  {[]string{"generate", "ctr", "-o", "x"}, "--rows is missing"},
		"generate to where":  {[]string{"generate", "ctr", "--rows", "1"}, "-o is missing"},
		"generate in xml":    {[]string{"generate", "ctr", "--rows", "1", "-o", "x", "--format", "xml"}, `--format "xml" is none of ffm, libsvm, tsv`},
		"too many bits":      {[]string{"generate", "ctr", "--rows", "1", "-o", "x", "--bits", "40"}, "--bits 40"},
		"negative records":   {[]string{"generate", "ctr", "--rows", "-1", "-o", "x"}, "--rows"},
		"generate nowhere":   {[]string{"generate", "ctr", "--rows", "1", "-o", "/absent/x"}, "-o /absent/x: no such"},
		"no etcd for status": {[]string{"status", "--job", "j"}, "--etcd-endpoints"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := newCall(t, c.args...)
			require.Equal(t, 2, call.run(), call.stderr.String())
			require.Contains(t, call.stderr.String(), c.says)
			require.Equal(t, 1, strings.Count(call.stderr.String(), "\n"), call.stderr.String())
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"status", "--help"}, {"export", "--help"}, {"generate"}, {"generate", "ctr", "--help"}, {"version"}} {
		c := newCall(t, args...).succeed()
		require.NotEmpty(t, c.stdout.String(), args)
		require.Empty(t, c.stderr.String(), args)
	}
}
