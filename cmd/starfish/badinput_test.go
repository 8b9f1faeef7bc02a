package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bad input ends with the documented code and one clear line that names the
// place; never with a stack trace, never with a hang.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		return file
	}
	spec := func(data string, more ...string) string {
		return "job: bad\ndata: {train: [" + data + "]}\nmodel: {type: logistic}\ntrain: {passes: 1}\n" + strings.Join(more, "\n")
	}
	write("good", "1 1:1 2:1\n-1 2:1\n")
	write("empty", "")
	write("nan", "1 1:1\n1 1:nan\n")
	write("huge", "1 1:1\n1 18446744073709551616:1\n")
	write("unlabelled", "1:1 2:1\n")
	write("binary", "\x7fELF\x02\x01\x01\x00\x00\xff\xfe\x00\x01\n\x00\x00\x9c\n")
	write("nothing/_hidden", "1 1:1\n")
	write("table.csv", "y,a\n1,x\n0,x,3\n")
	write("weights.csv", "y,w\n1,-1\n")
	write("quote.csv", "y,a\n1,\"x\ny\"\n")
	write("cut.gz", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x33\x54")
	csv := func(data string, more ...string) string {
		return strings.Replace(spec(data, more...), "]}", "], format: csv, label: y}", 1)
	}
	cases := map[string]struct {
		spec string
		args []string
		code int
		says []string
	}{
		"misspelt field":        {spec: spec("good", "shrads: 4"), code: 2, says: []string{":5", "shrads", "shards"}},
		"negative batch":        {spec: spec("good"), args: []string{"--set", "train.batch=-1"}, code: 2, says: []string{"train.batch"}},
		"missing file":          {spec: spec("absent"), code: 2, says: []string{"absent"}},
		"empty data set":        {spec: spec("empty"), code: 2, says: []string{"empty"}},
		"directory of nothing":  {spec: spec("nothing"), code: 2, says: []string{"nothing"}},
		"binary file":           {spec: spec("binary"), code: 1, says: []string{"binary:1"}},
		"nan":                   {spec: spec("nan"), code: 1, says: []string{"nan:2"}},
		"key 2^64":              {spec: spec("huge"), code: 1, says: []string{"huge:2"}},
		"label missing":         {spec: spec("unlabelled"), code: 1, says: []string{"unlabelled:1"}},
		"no such model":         {spec: strings.Replace(spec("good"), "logistic", "oracle", 1), code: 2, says: []string{"oracle"}},
		"a field of later":      {spec: spec("good"), args: []string{"--set", "train.mode=sync"}, code: 2, says: []string{"train.mode", "sync"}},
		"csv given as libsvm":   {spec: spec("table.csv"), code: 1, says: []string{"table.csv:1", "label"}},
		"libsvm given as csv":   {spec: csv("good"), code: 2, says: []string{"good", `no column "y"`}},
		"csv without label":     {spec: csv("table.csv"), args: []string{"--set", "data.label="}, code: 2, says: []string{"data.label"}},
		"no such column":        {spec: csv("table.csv", "features: [{name: b, type: numeric}]"), code: 2, says: []string{"table.csv", `no column "b"`}},
		"too many fields":       {spec: csv("table.csv"), code: 1, says: []string{"table.csv:3", "3 fields instead of 2"}},
		"a negative weight":     {spec: csv("weights.csv"), args: []string{"--set", "data.weight=w"}, code: 1, says: []string{"weights.csv:2", "weight"}},
		"a quoted line break":   {spec: csv("quote.csv"), code: 1, says: []string{"quote.csv:2", "chunk: file"}},
		"a truncated file":      {spec: spec("cut.gz"), code: 1, says: []string{"cut.gz: byte 12", "truncated"}},
		"a type of later":       {spec: csv("table.csv", "features: [{name: a, type: list, table: t}]"), code: 2, says: []string{":5", "features[0].table"}},
		"not YAML":              {spec: "job: [", code: 2, says: []string{"spec.yaml"}},
		"no such directory":     {spec: spec("good"), args: []string{"--dir", filepath.Join(dir, "good", "sub")}, code: 2, says: []string{"--dir"}},
		"no etcd there":         {spec: spec("good"), args: []string{"--etcd-endpoints", "127.0.0.1:1", "--etcd-timeout", "500ms", "--dir", filepath.Join(dir, "no-etcd")}, code: 3, says: []string{"127.0.0.1:1"}},
		"result to nowhere":     {spec: spec("good"), args: []string{"--result", "/absent/r.json"}, code: 2, says: []string{"--result"}},
		"export to a directory": {spec: spec("good"), args: []string{"--export", dir}, code: 2, says: []string{"--export"}},
		"no such program":       {spec: spec("good"), args: []string{"--pserver-binary", "/absent"}, code: 2, says: []string{"/absent"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(filepath.Join("specs", name, "spec.yaml"), strings.ReplaceAll(c.spec, "train: [", "train: [../../"))
			call := newCall(t, append([]string{"run", "-f", file, "--log-level", "error"}, c.args...)...)
			start := time.Now()
			require.Equal(t, c.code, call.run(), call.stderr.String())
			require.Less(t, time.Since(start), time.Minute)
			require.Len(t, call.lines(), 1, call.stderr.String())
			last := call.last()
			require.True(t, strings.HasPrefix(last, "starfish: "), last)
			for _, pkg := range []string{"etcdqueue", "reader", "store", "trainer", "pserver", "supervise", "client", "membership"} {
				require.NotContains(t, last, " "+pkg+": ", "the name of a package says nothing to a user")
			}
			for _, word := range c.says {
				require.Contains(t, last, word)
			}
			require.NotContains(t, call.stderr.String(), "goroutine")
			require.Empty(t, call.stdout.String())
			call.leavesNothing()
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		says string
	}{
		"misspelt verb":      {[]string{"rnu"}, `did you mean "run"?`},
		"misspelt flag":      {[]string{"run", "--fiel", "x"}, "unknown flag: --fiel, did you mean --file?"},
		"a flag almost":      {[]string{"run", "-f", "x", "--pserver", "2"}, "unknown flag: --pserver, did you mean --pservers?"},
		"no spec":            {[]string{"run"}, "-f is missing"},
		"chaos of what":      {[]string{"run", "-f", "x", "--chaos", "etcd=1s"}, "--chaos"},
		"chaos how often":    {[]string{"run", "-f", "x", "--chaos", "trainer=often"}, "--chaos"},
		"negative trainers":  {[]string{"run", "-f", "x", "--trainers", "-1"}, "--trainers"},
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
		"generate nowhere":   {[]string{"generate", "ctr", "--rows", "1", "-o", "/absent/x"}, "-o: "},
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
