package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
	"starfish/internal/modelfile"
	"starfish/job"
	"starfish/predict"
	"starfish/trainer/model"
)

// TestPredictIsTheEvaluation: in whatever form a job's model leaves, its
// predictions give the metrics of the job's own evaluation, bit for bit; and
// NumPy, which shares no code, computes the same predictions from the raw
// records.
func TestPredictIsTheEvaluation(t *testing.T) {
	for name, data := range map[string]string{
		"adult": "../../examples/adult/a9a.t", "census": "../../examples/census/adult.test",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			spec := fmt.Sprintf("../../examples/%s/%s.yaml", name, name)
			file := func(suffix string) string { return filepath.Join(dir, "model"+suffix) }
			want := newCall(t, "run", "-f", spec, "--set", "train.passes=1", "--dir", filepath.Join(dir, "run"), "--result", "-",
				"--export", file(".npz")).succeed().result().Test
			var first []byte
			for _, suffix := range []string{".npz", ".safetensors", ".txt"} {
				if suffix != ".npz" {
					newCall(t, "export", "--dir", filepath.Join(dir, "run"), "-o", file(suffix)).succeed()
				}
				out, metrics := filepath.Join(dir, "out"), filepath.Join(dir, "metrics.json")
				newCall(t, "predict", "-m", file(suffix), "-i", data, "-o", out, "--metrics", metrics).succeed()
				b, err := os.ReadFile(metrics)
				require.NoError(t, err)
				var got job.TestResult
				require.NoError(t, json.Unmarshal(b, &got))
				require.Equal(t, *want, got, suffix)
				lines, err := os.ReadFile(out)
				require.NoError(t, err)
				require.Equal(t, int(want.Records), bytes.Count(lines, []byte("\n")))
				require.True(t, first == nil || bytes.Equal(first, lines), suffix)
				first = lines
			}
			for _, suffix := range []string{".npz", ".safetensors"} {
				sameInNumPy(t, file(suffix), data, string(first))
			}
		})
	}
}

// sameInNumPy compares with examples/numpy, if there is a Python with NumPy.
// Without one the keys of columnsModel, which that program has computed, are what
// remains.
func sameInNumPy(t *testing.T, model, data, want string) {
	t.Helper()
	python := ""
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import numpy").Run() == nil {
			python = p
			break
		}
	}
	if python == "" {
		t.Log("no python3 with numpy here: the example examples/numpy was not tried")
		return
	}
	out, err := exec.Command(python, "../../examples/numpy/predict.py", model, data).Output()
	require.NoError(t, err)
	theirs, ours := strings.Fields(string(out)), strings.Fields(want)
	require.Len(t, theirs, len(ours))
	for i := range ours {
		a, err := strconv.ParseFloat(ours[i], 64)
		require.NoError(t, err)
		b, err := strconv.ParseFloat(theirs[i], 64)
		require.NoError(t, err)
		require.InDelta(t, a, b, 1e-6, "record %d", i)
	}
}

// modelRuns is a model in memory.
type modelRuns map[int]modelfile.Run

func (m modelRuns) Rows(p int) int64 { return int64(len(m[p].Keys)) }

func (m modelRuns) Export(p int) iter.Seq[modelfile.Run] {
	return func(yield func(modelfile.Run) bool) { yield(m[p]) }
}

// makeModel writes a model whose weights are those of the keys, and bias 0.5.
func makeModel(t *testing.T, spec string, keys []uint64, weights []float32) string {
	t.Helper()
	s, err := job.ParseSpec([]byte(spec), "/d", nil)
	require.NoError(t, err)
	m, err := model.New(s)
	require.NoError(t, err)
	list, err := m.Parameters(s)
	require.NoError(t, err)
	params, err := job.Resolve(s, list)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "model.npz")
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = modelfile.Write(f, modelfile.NPZ, modelfile.Metadata{Job: "j", Spec: s, Parameters: params},
		modelRuns{0: {Floats: []float32{0.5}}, 1: {Keys: keys, Floats: weights}})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return path
}

func lineModel(t *testing.T) string {
	t.Helper()
	return makeModel(t, "job: j\ndata: {train: [x]}\nmodel: {type: linear}\n", []uint64{1, 2}, []float32{1, 10})
}

// columnsModel has the weight 1 for `hours`, 4 for `site=a` and 8 for `site=b`.
func columnsModel(t *testing.T) string {
	t.Helper()
	return makeModel(t, `job: j
data: {train: [x], format: csv, label: y, weight: w}
features: [{name: site, type: categorical}, {name: hours, type: numeric}]
model: {type: linear}
`, []uint64{siteBKey, siteAKey, hoursKey}, []float32{8, 4, 1})
}

// The xxh64 of hours, site=a and site=b, as examples/numpy computes them.
const (
	hoursKey = 0xd9253ff06186cdd2
	siteAKey = 0x822a448685a253b6
	siteBKey = 0x4c5ebebf886e1840
)

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestPredictKeepsTheOrder: one line for each record, bad ones in their place,
// over files, compressed ones and many pieces.
func TestPredictKeepsTheOrder(t *testing.T) {
	m, dir := lineModel(t), t.TempDir()
	var text, want strings.Builder
	bad := 0
	for i := range 150_000 {
		if i%7 == 3 {
			fmt.Fprintf(&text, "0 1:what\n# %d\n\n", i)
			want.WriteString("bad\n")
			bad++
			continue
		}
		fmt.Fprintf(&text, "%d 1:%d 7\n", i, i)
		fmt.Fprintf(&want, "%s\n", strconv.FormatFloat(float64(0.5+float32(i)), 'g', -1, 64))
	}
	a := writeFile(t, filepath.Join(dir, "a"), text.String())
	gzipped(t, dir, text.String())
	writeFile(t, filepath.Join(dir, "_skipped"), "1 1:1\n")

	c := newCall(t, "predict", "-m", m, "-i", dir, "-i", a, "-o", filepath.Join(dir, "_out")).succeed()
	out, err := os.ReadFile(filepath.Join(dir, "_out"))
	require.NoError(t, err)
	same := strings.Repeat(want.String(), 3) == string(out)
	require.True(t, same)
	require.Contains(t, c.stderr.String(), fmt.Sprintf("%s bad: loss", thousands(int64(3*bad))))
	require.Contains(t, c.stderr.String(), a+":4: the value \\\"what\\\" is not a finite number")
	require.Equal(t, shownBad, strings.Count(c.stderr.String(), "level=warning"))

	c = newCall(t, "predict", "-m", m, "-i", "-")
	c.cmd.Stdin = strings.NewReader(text.String())
	c.succeed()
	same = want.String() == c.stdout.String()
	require.True(t, same)
	require.Contains(t, c.stderr.String(), "stdin:4: the value")
}

// TestPredictAnswersAtOnce: what stdin has brought is answered although more
// may follow.
func TestPredictAnswersAtOnce(t *testing.T) {
	c := newCall(t, "predict", "-m", lineModel(t), "-i", "-", "--no-labels")
	c.cmd.Stdout = nil
	in, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.start()
	answer := make([]byte, 4)
	for _, line := range []string{"1:1", "2:.1"} {
		_, err = io.WriteString(in, line+"\n")
		require.NoError(t, err)
		_, err = io.ReadFull(out, answer)
		require.NoError(t, err)
		require.Equal(t, "1.5\n", string(answer))
	}
	require.NoError(t, in.Close())
	require.Zero(t, c.wait())
	require.Contains(t, c.stderr.String(), "predicted 2 records\n")
}

// TestPredictColumns: columns may stand in any order, the label may be missing.
func TestPredictColumns(t *testing.T) {
	m, dir := columnsModel(t), t.TempDir()
	for name, tc := range map[string]struct {
		text, out, says string
		args            []string
	}{
		"as trained":    {text: "y,site,hours,w\n1,a,2,1\n0,b,3,0\n", out: "6.5\n11.5\n", says: "predicted 2 records: loss 30.25000"},
		"other order":   {text: "more,hours,y,site\n-,2,1,a\n", out: "6.5\n", says: "predicted 1 record without the column w: loss"},
		"no label":      {text: "site,hours\na,2\n", out: "6.5\n", says: "predicted 1 record\n"},
		"bad label":     {text: "y,site,hours\n?,a,2\n1,b,2\n", out: "bad\n10.5\n", says: "1 bad without the column w: loss"},
		"no labels":     {text: "y,site,hours\n?,a,2\n1,b,2\n", out: "6.5\n10.5\n", says: "predicted 2 records\n", args: []string{"--no-labels"}},
		"another label": {text: "what,site,hours\n1,a,2\n", out: "6.5\n", says: "loss 30.25000", args: []string{"--label", "what"}},
		"tsv":           {text: "site\thours\nb\t0\n", out: "8.5\n", says: "predicted 1", args: []string{"--format", "tsv"}},
		"own keys":      {text: "0 " + fmt.Sprint(uint64(siteBKey)) + "\n", out: "8.5\n", says: "loss", args: []string{"--format", "libsvm"}},
	} {
		c := newCall(t, append([]string{"predict", "-m", m, "-i", writeFile(t, filepath.Join(dir, "data"), tc.text)}, tc.args...)...).succeed()
		require.Equal(t, tc.out, c.stdout.String(), name)
		require.Contains(t, c.stderr.String(), tc.says, name)
	}
}

// TestPredictRefuses: what cannot be predicted is one line and an exit code,
// and no file is left behind.
func TestPredictRefuses(t *testing.T) {
	svm, columns, dir := lineModel(t), columnsModel(t), t.TempDir()
	data := func(text string) string {
		f, err := os.CreateTemp(dir, "data")
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return writeFile(t, f.Name(), text)
	}
	gz := writeFile(t, filepath.Join(dir, "x.gz"), "no gzip at all")
	good := data("1 1:1\n")
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no model":        {[]string{"-i", good}, 2, "-m is missing"},
		"no data":         {[]string{"-m", svm}, 2, "-i is missing"},
		"vanished model":  {[]string{"-m", svm + "x", "-i", good}, 2, "no such file"},
		"no model at all": {[]string{"-m", good, "-i", good}, 2, "no usable model file: neither text, .npz nor .safetensors"},
		"vanished data":   {[]string{"-m", svm, "-i", good + "x"}, 2, "no such file"},
		"empty data":      {[]string{"-m", svm, "-i", data("")}, 2, "every file is empty"},
		"stdin and files": {[]string{"-m", svm, "-i", "-", "-i", good}, 2, "together with files"},
		"a format":        {[]string{"-m", svm, "-i", good, "--format", "xml"}, 2, "csv, tsv or libsvm"},
		"columns":         {[]string{"-m", svm, "-i", good, "--format", "csv"}, 2, "have no columns"},
		"a column":        {[]string{"-m", columns, "-i", data("y,site\n1,a\n")}, 2, `there is no column "hours" among "y", "site"`},
		"a label column":  {[]string{"-m", columns, "-i", data("site,hours\n1,a\n"), "--label", "z"}, 2, `have a column "z"`},
		"no metrics":      {[]string{"-m", columns, "-i", data("site,hours\na,1\n"), "--metrics", filepath.Join(dir, "m")}, 2, "--metrics needs labels"},
		"neither":         {[]string{"-m", svm, "-i", good, "--metrics", "x", "--no-labels"}, 2, "--no-labels reads none"},
		"all bad":         {[]string{"-m", svm, "-i", data("1:1\n2:2\n")}, 1, "all 2 records are bad"},
		"hint":            {[]string{"-m", svm, "-i", data("1:1\n2:2\n")}, 1, "give --no-labels"},
		"damaged":         {[]string{"-m", svm, "-i", gz, "-o", filepath.Join(dir, "out")}, 1, "starfish: " + gz + ": bad data: byte "},
		"an open quote":   {[]string{"-m", columns, "-i", gzipped(t, dir, "y,site,hours,w\n1,a,2,1\n1,\"b\nc\",2,1\n0,\"a,3,1\n1,b,2,1\n")}, 1, ".csv.gz:5: bad data: a quote is opened"},
		"csv for libsvm":  {[]string{"-m", svm, "-i", data("a,b,y\n1,2,0\n")}, 1, "all 2 records are bad"},
		"and the hint":    {[]string{"-m", svm, "-i", data("a,b,y\n1,2,0\n")}, 1, "the input looks like csv"},
		"gzip as csv":     {[]string{"-m", columns, "-i", data("\x1f\x8b\x08\x00\r\n")}, 2, "the input is compressed by gzip"},
		"a directory":     {[]string{"-m", svm, "-i", good, "-o", dir}, 2, "is a directory"},
		"no space":        {[]string{"-m", svm, "-i", good, "-o", "/dev/full"}, 1, "starfish: write /dev/full: no space left on device"},
	} {
		c := newCall(t, append([]string{"predict"}, tc.args...)...)
		require.Equal(t, tc.code, c.run(), "%s: %s", name, c.stderr.String())
		lines := strings.Split(strings.TrimSpace(c.stderr.String()), "\n")
		require.Contains(t, lines[len(lines)-1], tc.says, name)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*out*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// gzipped writes a compressed file.
func gzipped(t *testing.T, dir, text string) string {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return writeFile(t, filepath.Join(dir, "in.csv.gz"), z.String())
}

// TestPredictLittle: stdin that has nothing, or less than a whole line.
func TestPredictLittle(t *testing.T) {
	svm, columns := lineModel(t), columnsModel(t)
	for _, tc := range []struct {
		model, text, out, says string
		code                   int
	}{
		{columns, "", "", "stdin is empty: there is not even a line that names the columns", 2},
		{columns, "\n \n", "", "stdin is empty", 2},
		{columns, "y,site,hours", "", "predicted 0 records", 0},
		{columns, "y,site,hours\n", "", "predicted 0 records", 0},
		{columns, "site,hours\na,1", "5.5\n", "predicted 1 record\n", 0},
		{svm, "", "", "predicted 0 records", 0},
		{svm, "0 1:1", "1.5\n", "predicted 1 record: loss", 0},
	} {
		c := newCall(t, "predict", "-m", tc.model, "-i", "-")
		c.cmd.Stdin = strings.NewReader(tc.text)
		require.Equal(t, tc.code, c.run(), "%q: %s", tc.text, c.stderr.String())
		require.Equal(t, tc.out, c.stdout.String(), "%q", tc.text)
		require.Contains(t, c.stderr.String(), tc.says, "%q", tc.text)
	}
}

// TestPredictStopped: what a signal has cut short is not taken for the whole,
// wherever it waits at the moment.
func TestPredictStopped(t *testing.T) {
	for name, tc := range map[string]struct{ model, begin string }{
		"before the header": {columnsModel(t), ""},
		"behind it":         {columnsModel(t), "site,hours\na,1\n"},
		"libsvm":            {lineModel(t), "0 1:1\n"},
	} {
		dir := t.TempDir()
		c := newCall(t, "predict", "-m", tc.model, "-i", "-", "-o", filepath.Join(dir, "out"), "--log-level", "debug")
		in, err := c.cmd.StdinPipe()
		require.NoError(t, err)
		c.start()
		_, err = io.WriteString(in, tc.begin)
		require.NoError(t, err)
		if tc.begin != "" { // it has begun to write
			require.Eventually(t, func() bool {
				files, err := filepath.Glob(filepath.Join(dir, ".out.*"))
				return err == nil && len(files) == 1
			}, time.Minute, time.Millisecond)
		}
		require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
		code := c.wait()
		if tc.begin == "" && code == -1 { // the signal came before main
			continue
		}
		require.Equal(t, 1, code, "%s: %s", name, c.stderr.String())
		require.Equal(t, "starfish: stopped by a signal (terminated)\n", c.stderr.String(), name)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

// endless are records without end.
type endless struct{ reads chan struct{} }

func (e endless) Read(b []byte) (int, error) {
	select {
	case e.reads <- struct{}{}:
	default:
	}
	n := 0
	for ; n+6 <= len(b); n += 6 {
		copy(b[n:], "0 1:1\n")
	}
	return n, nil
}

// TestPredictStoppedAtWork: the same where nothing waits.
func TestPredictStoppedAtWork(t *testing.T) {
	m, err := predict.Load(lineModel(t))
	require.NoError(t, err)
	for range 50 {
		d := &inputs{format: "libsvm", options: m.Options()}
		e := endless{make(chan struct{})}
		require.NoError(t, d.standard(t.Context(), e))
		p := &predictor{model: m, data: d, log: logrus.New()}
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-e.reads
			<-e.reads
			cancel(cli.ErrSignal)
		}()
		require.ErrorIs(t, p.run(ctx, io.Discard), cli.ErrSignal)
	}
}
