package job_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// full is a spec with every section, as the documentation shows it.
const full = `job: adult
data:
  train: [a9a]                 # files, directories or globs
  test: [a9a.t]
  format: libsvm
  chunk: 64KiB                 # of input bytes
  max_bad_records: 0           # per chunk; more fail the chunk
model: {type: logistic, bits: 20}
optimizer: {type: adagrad, learning_rate: 0.1}
train: {mode: async, passes: 5, batch: 64, shuffle: true, seed: 1, window: 1}
shards: 4
queue: {lanes: 64, stall_timeout: 60s, speculate: 7s, max_failures: 3}
checkpoint: {dir: checkpoints, interval: 30s, keep: 3}
recovery: {policy: replay, barrier_timeout: 30s, memory_wait: 10m}
lease_ttl: 10s
run: {pservers: 2, trainers: 2}
`

// least is a spec with nothing but what has no default.
const least = "job: j\ndata: {train: [d]}\nmodel: {type: count}\n"

func parse(t *testing.T, text string, sets ...string) *job.Spec {
	t.Helper()
	s, err := job.ParseSpec([]byte(text), "/data", sets)
	require.NoError(t, err)
	return s
}

func TestFullSpec(t *testing.T) {
	t.Parallel()
	s := parse(t, full)
	require.Equal(t, "adult", s.Job)
	require.Equal(t, []string{"/data/a9a"}, s.Data.Train)
	require.Equal(t, []string{"/data/a9a.t"}, s.Data.Test)
	require.Equal(t, job.Bytes(65536), s.Data.Chunk)
	require.Equal(t, job.Model{Type: "logistic", Bits: 20}, s.Model)
	require.Equal(t, job.Optimizer{Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10, Reduction: "mean"}, s.Optimizer)
	require.Equal(t, job.Train{Mode: "async", Passes: 5, Batch: 64, Shuffle: true, Seed: 1, Window: 1, Evaluate: "pass", MaxSkipped: 0.01, MaxLossGrowth: 5}, s.Train)
	require.Equal(t, job.Queue{Lanes: 64, StallTimeout: time.Minute, Speculate: 7 * time.Second, MaxFailures: 3}, s.Queue)
	require.Equal(t, job.Checkpoint{Dir: "/data/checkpoints", Interval: 30 * time.Second, Keep: 3}, s.Checkpoint)
	require.Equal(t, job.Recovery{Policy: "replay", BarrierTimeout: 30 * time.Second, MemoryWait: 10 * time.Minute}, s.Recovery)
	require.Equal(t, 10*time.Second, s.LeaseTTL)
	require.Equal(t, job.Run{Pservers: 2, Trainers: 2}, s.Run)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	s := parse(t, least)
	require.Equal(t, job.Train{Mode: "async", Passes: 1, Batch: 64, Shuffle: true, Seed: 1, Window: 1, Evaluate: "pass", MaxSkipped: 0.01, MaxLossGrowth: 5}, s.Train)
	require.Equal(t, job.Bytes(1<<20), s.Data.Chunk)
	require.Equal(t, "libsvm", s.Data.Format)
	require.Equal(t, 4, s.Shards)
	require.Equal(t, 10*time.Second, s.LeaseTTL)
	require.Equal(t, "/data/checkpoints", s.Checkpoint.Dir)
	require.InDelta(t, 0.1, s.Optimizer.LearningRate, 0)
	require.InDelta(t, 0.01, parse(t, least+"optimizer: {type: sgd}").Optimizer.LearningRate, 0)
	require.Zero(t, parse(t, least+"optimizer: {type: sgd}").Optimizer.Epsilon)
}

func TestAcceptedForms(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text  string
		check func(t *testing.T, s *job.Spec)
	}{
		"one file instead of a list": {"data: {train: d}", func(t *testing.T, s *job.Spec) {
			require.Equal(t, []string{"/data/d"}, s.Data.Train)
		}},
		"absolute, upward and glob paths": {"data: {train: [/x/y, ../z, 'p/*.txt']}", func(t *testing.T, s *job.Spec) {
			require.Equal(t, []string{"/x/y", "/z", "/data/p/*.txt"}, s.Data.Train)
		}},
		"a chunk in bytes":     {"data: {train: d, chunk: 1000}", func(t *testing.T, s *job.Spec) { require.EqualValues(t, 1000, s.Data.Chunk) }},
		"a chunk in decimal":   {"data: {train: d, chunk: 2MB}", func(t *testing.T, s *job.Spec) { require.EqualValues(t, 2_000_000, s.Data.Chunk) }},
		"a chunk with a blank": {"data: {train: d, chunk: 3 GiB}", func(t *testing.T, s *job.Spec) { require.EqualValues(t, 3<<30, s.Data.Chunk) }},
		"a file as a chunk":    {"data: {train: d, chunk: file}", func(t *testing.T, s *job.Spec) { require.Equal(t, job.WholeFile, s.Data.Chunk) }},
		"the largest seed": {"data: {train: d}\ntrain: {seed: 18446744073709551615}", func(t *testing.T, s *job.Spec) {
			require.Equal(t, uint64(1<<64-1), s.Train.Seed)
		}},
		"window 0":              {"data: {train: d}\ntrain: {window: 0}", func(t *testing.T, s *job.Spec) { require.Zero(t, s.Train.Window) }},
		"a whole learning rate": {"data: {train: d}\noptimizer: {learning_rate: 1}", func(t *testing.T, s *job.Spec) { require.InDelta(t, 1, s.Optimizer.LearningRate, 0) }},
		"anchors": {"data: {train: &x [d], test: *x}", func(t *testing.T, s *job.Spec) {
			require.Equal(t, []string{"/data/d"}, s.Data.Test)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.check(t, parse(t, "job: j\nmodel: {type: count}\n"+tc.text))
		})
	}
	s := parse(t, "job: j\ndata: {train: d}\nmodel: {type: mine, options: {depth: 3, name: x}}")
	require.Equal(t, map[string]string{"depth": "3", "name": "x"}, s.Model.Options)
	require.Equal(t, "2026", parse(t, "job: 2026\ndata: {train: d}\nmodel: {type: count}").Job)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	base := []string{"job: j", "data: {train: [d]}", "model: {type: logistic}"}
	for name, tc := range map[string]struct{ line, want string }{
		"misspelt section":       {"trian: {}", "line 4: trian: unknown field; did you mean train?"},
		"misspelt field":         {"train: {btach: 3}", "line 4: train.btach: unknown field; did you mean batch?"},
		"foreign field":          {"train: {zzzzz: 3}", "line 4: train.zzzzz: unknown field"},
		"negative batch":         {"train: {batch: -5}", "line 4: train.batch: must be at least 1, is -5"},
		"batch of zero":          {"train: {batch: 0}", "line 4: train.batch: must be at least 1, is 0"},
		"huge batch":             {"train: {batch: 9999999999999999999999}", `line 4: train.batch: must be a whole number, not "9999999999999999999999"`},
		"broken batch":           {"train: {batch: 6.5}", `line 4: train.batch: must be a whole number, not "6.5"`},
		"batch as text":          {"train: {batch: '64'}", `line 4: train.batch: must be a whole number, not "64"`},
		"batch as list":          {"train: {batch: [64]}", "line 4: train.batch: must be a whole number, not a list"},
		"no value":               {"train: {batch: }", "line 4: train.batch: has no value"},
		"no section":             {"train: ", "line 4: train: has no value"},
		"section as text":        {"train: fast", `line 4: train: must be a mapping of fields, not "fast"`},
		"negative seed":          {"train: {seed: -1}", `line 4: train.seed: must be a whole number from 0 to 2^64-1, not "-1"`},
		"text for a truth":       {"train: {shuffle: 1}", `line 4: train.shuffle: must be true or false, not "1"`},
		"sync with a window":     {"train: {mode: sync, window: 1}", "line 4: train.window: must be 0 in mode sync, where values are always fresh"},
		"sync with a bound":      {"train: {mode: sync, staleness: 3}", "line 4: train.staleness: is for mode async: in mode sync no value is older than a step"},
		"a bound of nothing":     {"train: {staleness: 0}", "line 4: train.staleness: must be at least 1, is 0"},
		"evaluate":               {"train: {evaluate: ends}", `line 4: train.evaluate: "ends" is not one of pass, end; did you mean end?`},
		"unknown mode":           {"train: {mode: asinc}", `line 4: train.mode: "asinc" is not one of async, sync; did you mean async?`},
		"later window":           {"train: {window: 2}", "line 4: train.window: more than 1 is not implemented in this version"},
		"negative window":        {"train: {window: -1}", "line 4: train.window: must be at least 0, is -1"},
		"features":               {"features: []", "line 4: features: only the formats csv and tsv have columns, not libsvm"},
		"warm start":             {"init: {from: x}", "line 4: init: not implemented in this version"},
		"no shards":              {"shards: 0", "line 4: shards: must be at least 1, is 0"},
		"short lease":            {"lease_ttl: 1s", "line 4: lease_ttl: must be at least 2s, is 1s"},
		"lease without unit":     {"lease_ttl: 10", `line 4: lease_ttl: "10" is no duration; write for example 500ms, 30s or 2m`},
		"one checkpoint":         {"checkpoint: {keep: 1}", "line 4: checkpoint.keep: must be at least 2: the older one is there for when the newest does not load"},
		"another policy":         {"recovery: {policy: skipp}", "line 4: recovery.policy: \"skipp\" is not one of replay, skip; did you mean skip?"},
		"unknown optimizer":      {"optimizer: {type: adagard}", `line 4: optimizer.type: "adagard" is not one of sgd, momentum, nesterov, adagrad, adam, ftrl; did you mean adagrad?`},
		"a foreign setting":      {"optimizer: {type: sgd, epsilon: 1}", "line 4: optimizer.epsilon: sgd has no such setting"},
		"learning rate of zero":  {"optimizer: {learning_rate: 0}", "line 4: optimizer.learning_rate: must be above 0 (and fit a float32), is 0"},
		"vanishing rate":         {"optimizer: {learning_rate: 1e-60}", "line 4: optimizer.learning_rate: must be above 0 (and fit a float32), is 1e-60"},
		"infinite learning rate": {"optimizer: {learning_rate: .inf}", "line 4: optimizer.learning_rate: must be a finite number, not .inf"},
		"nan":                    {"optimizer: {epsilon: .nan}", "line 4: optimizer.epsilon: must be a finite number, not .nan"},
		"field given twice":      {"shards: 3\nshards: 4", "line 5: shards: given twice, first in line 4"},
		"negative max_skipped":   {"train: {max_skipped: -0.1}", "line 4: train.max_skipped: must be a share from 0 to 1, is -0.1"},
		"max_skipped, no share":  {"train: {max_skipped: 10}", "line 4: train.max_skipped: must be a share from 0 to 1, is 10"},
		"small max_loss_growth":  {"train: {max_loss_growth: 0.5}", "line 4: train.max_loss_growth: must be at least 1, or 0 for no limit, is 0.5"},
		"duplicate section":      {"data: {}", "line 4: data: given twice, first in line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Join(append(base, tc.line), "\n")
			_, err := job.ParseSpec([]byte(text), "/data", nil)
			require.EqualError(t, err, tc.want)
			require.Equal(t, 2, job.ExitCode(err))
		})
	}
	for name, tc := range map[string]struct{ text, want string }{
		"empty":              {"", "the spec is empty"},
		"only a comment":     {"# nothing\n", "the spec is empty"},
		"no mapping":         {"- a\n- b\n", "line 1: the spec must be a mapping of fields, not a list"},
		"two documents":      {least + "---\njob: k\n", "line 4: the spec must be a single YAML document"},
		"not YAML":           {"job: j\ndata: 'a\n", "line 2: not valid YAML: found unexpected end of stream"},
		"a tab":              {"\tjob: a", "line 1: not valid YAML: found character that cannot start any token; indent with blanks, not with tabs, and put texts that begin with one of @ ` % into quotes"},
		"binary":             {"\x00\x01\x02", "line 1: not valid YAML: control characters are not allowed"},
		"small max_value":    {"job: j\ndata: {train: d, max_value: 0.5}\nmodel: {type: count}", "line 2: data.max_value: must be from 1 to 3.4e+38, is 0.5"},
		"huge max_value":     {"job: j\ndata: {train: d, max_value: 1e39}\nmodel: {type: count}", "line 2: data.max_value: must be from 1 to 3.4e+38, is 1e+39"},
		"no name":            {"data: {train: d}\nmodel: {type: count}", "job: missing: the job needs a name"},
		"a name with a path": {"job: a/b\ndata: {train: d}\nmodel: {type: count}", `line 1: job: "a/b" must consist of letters, digits, dots, dashes and underscores, begin with a letter or digit, and have at most 63 of them`},
		"no data":            {"job: j\ndata: {format: libsvm}\nmodel: {type: count}", "line 2: data.train: missing: nothing to train on"},
		"no data at all":     {"job: j\nmodel: {type: count}", "data.train: missing: nothing to train on"},
		"an empty path":      {"job: j\ndata: {train: ['']}\nmodel: {type: count}", "line 2: data.train[0]: must be a text, not nothing\nline 2: data.train: missing: nothing to train on"},
		"object storage":     {"job: j\ndata: {train: ['s3://b/x']}\nmodel: {type: count}", "line 2: data.train[0]: s3://b/x: object storage is not implemented in this version"},
		"later format":       {"job: j\ndata: {train: d, format: vw}\nmodel: {type: count}", "line 2: data.format: vw is not implemented in this version"},
		"columns":            {"job: j\ndata:\n  train: d\n  csv: {header: true}\nmodel: {type: count}", "line 4: data.csv: only the formats csv and tsv have columns, not libsvm"},
		"a bad size":         {"job: j\ndata: {train: d, chunk: 64kb}\nmodel: {type: count}", `line 2: data.chunk: "64kb" is no size; write for example 64KiB, 1MiB or file`},
		"a negative size":    {"job: j\ndata: {train: d, chunk: -12582912TiB}\nmodel: {type: count}", `line 2: data.chunk: "-12582912TiB" is no size; write for example 64KiB, 1MiB or file`},
		"an immense size":    {"job: j\ndata: {train: d, chunk: 9999999999TiB}\nmodel: {type: count}", "line 2: data.chunk: 9999999999TiB is too large"},
		"a chunk of nothing": {"job: j\ndata: {train: d, chunk: 0}\nmodel: {type: count}", "line 2: data.chunk: must be at least 1 byte, is 0"},
		"no model":           {"job: j\ndata: {train: d}\nmodel: {bits: 3}", "line 3: model.type: missing: the job needs a model"},
		"no bits":            {"job: j\ndata: {train: d}\nmodel: {type: count, bits: 0}", "line 3: model.bits: must be at least 1, is 0"},
		"too many bits":      {"job: j\ndata: {train: d}\nmodel: {type: count, bits: 64}", "line 3: model.bits: must be at most 63, is 64"},
		"an option of lists": {"job: j\ndata: {train: d}\nmodel: {type: m, options: {a: [1]}}", "line 3: model.options.a: must be a text or a number, not a list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := job.ParseSpec([]byte(tc.text), "/data", nil)
			require.EqualError(t, err, tc.want)
		})
	}
}

// TestAllErrorsAtOnce: a user sees everything that is wrong, in the order of
// the lines.
func TestAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	text := `job: a
data: {trian: [x], chunk: 0, label: y}
train: {batch: -5, mode: snyc}
features: []
model: {type: logitic}
lease_ttl: 1s
`
	_, err := job.ParseSpec([]byte(text), "/d", []string{"train.passes=0", "model.bits=77", "zz"},
		job.Models("logistic", "linear"), job.FileName("s.yaml"))
	require.EqualError(t, err, `--set zz: must be of the form path=value
--set model.bits: must be at most 63, is 77
--set train.passes: must be at least 1, is 0
s.yaml:2: data.trian: unknown field; did you mean train?
s.yaml:2: data.train: missing: nothing to train on
s.yaml:2: data.chunk: must be at least 1 byte, is 0
s.yaml:2: data.label: only the formats csv and tsv have columns, not libsvm
s.yaml:3: train.mode: "snyc" is not one of async, sync; did you mean sync?
s.yaml:3: train.batch: must be at least 1, is -5
s.yaml:4: features: only the formats csv and tsv have columns, not libsvm
s.yaml:5: model.type: "logitic" is not one of logistic, linear; did you mean logistic?
s.yaml:6: lease_ttl: must be at least 2s, is 1s`)
	_, err = job.ParseSpec([]byte(strings.Replace(least, "count", "fm", 1)), "", nil, job.Models("count"))
	require.EqualError(t, err, "line 3: model.type: fm is not implemented in this version")
	_, err = job.ParseSpec([]byte(strings.Replace(least, "count", "fm", 1)), "", nil)
	require.NoError(t, err, "without Models any name is taken: users have their own")
}

func TestSets(t *testing.T) {
	t.Parallel()
	s := parse(t, full, "train.batch=128", "data.train=[x, /y]", "model.bits=", "job=other", "optimizer.epsilon=1e-6",
		"model.options.depth=3", "lease_ttl=5s", "train.batch=256")
	require.Equal(t, 256, s.Train.Batch, "the last one counts")
	require.Equal(t, []string{"/data/x", "/y"}, s.Data.Train)
	require.Zero(t, s.Model.Bits)
	require.Equal(t, "other", s.Job)
	require.InDelta(t, 1e-6, s.Optimizer.Epsilon, 0)
	require.Equal(t, map[string]string{"depth": "3"}, s.Model.Options)
	require.Equal(t, 5*time.Second, s.LeaseTTL)
	require.Equal(t, 5, s.Train.Passes, "the rest of a section stays")
	for set, want := range map[string]string{
		"train.btach=3":    "--set train.btach: unknown field; did you mean batch?",
		"train.batch.x=3":  "--set train.batch.x: batch is no section",
		"=3":               "--set =3: must be of the form path=value",
		"train.batch":      "--set train.batch: must be of the form path=value",
		"train.batch=-1":   "--set train.batch: must be at least 1, is -1",
		"train.batch=[":    `--set train.batch: the value "[" is not valid YAML`,
		"nothing.at.all=1": "--set nothing.at.all: nothing: unknown field",
		"train=5":          `--set train: must be a mapping of fields, not "5"`,
		"job=":             "job: missing: the job needs a name",
	} {
		_, err := job.ParseSpec([]byte(full), "/data", []string{set})
		require.EqualError(t, err, want, set)
	}
}

func TestCheckFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "d1"), []byte("1 1:1\n"), 0o600))
	path := filepath.Join(dir, "spec.yaml")
	text := "job: j\ndata:\n  train: [d1, gone, 'd*', 'x*', .]\n  test: [" + filepath.Join(dir, "d2") + "]\nmodel: {type: count}\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	_, err := job.ReadSpec(path, nil, job.CheckFiles())
	require.EqualError(t, err, path+":3: data.train[1]: "+dir+"/gone: no such file, directory or match\n"+
		path+":3: data.train[3]: "+dir+"/x*: no such file, directory or match\n"+
		path+":4: data.test[0]: "+dir+"/d2: no such file, directory or match")
	_, err = job.ReadSpec(path, nil)
	require.NoError(t, err)
	_, err = job.ReadSpec(filepath.Join(dir, "nothing"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 2, job.ExitCode(err))
}

// TestCanonical: what is stored in etcd is read back as the same spec, and is
// the same text however the spec was written.
func TestCanonical(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"full": full, "least": least,
		"odd":     "job: x\ndata: {train: ['a b: \"<&>\\u2028#é'], chunk: file}\nmodel: {type: m, options: {b: '1', a: '{x: 2}'}}\noptimizer: {type: sgd, learning_rate: 1e-7}",
		"numbers": "job: x\ndata: {train: d}\nmodel: {type: m}\noptimizer: {learning_rate: 1e20, initial_accumulator: 0.1, epsilon: 3e-30}\nlease_ttl: 1h2m3.5s",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := parse(t, text)
			require.True(t, json.Valid(s.JSON()), "%s", s.JSON())
			var back job.Spec
			require.NoError(t, json.Unmarshal(s.JSON(), &back))
			require.Equal(t, string(s.JSON()), string(back.JSON()))
			require.Empty(t, job.Diff(s, &back))
			again := parse(t, string(s.JSON()))
			require.Empty(t, job.Diff(s, again))
		})
	}
	//nolint:testifylint // the order of the fields matters
	require.Equal(t, `{"job":"j","data":{"train":["/data/d"],"format":"libsvm","chunk":"1MiB","max_bad_records":0,"max_value":1e+09},`+
		`"model":{"type":"count"},"optimizer":{"type":"adagrad","learning_rate":0.1,"epsilon":1e-10,"reduction":"mean"},`+
		`"train":{"mode":"async","passes":1,"batch":64,"shuffle":true,"seed":1,"window":1,"evaluate":"pass","max_skipped":0.01,"max_loss_growth":5},"shards":4,`+
		`"queue":{"lanes":64,"stall_timeout":"1m0s","speculate":"5s","max_failures":3},`+
		`"checkpoint":{"dir":"/data/checkpoints","interval":"30s","keep":3},`+
		`"recovery":{"policy":"replay","barrier_timeout":"30s","memory_wait":"30m0s"},"lease_ttl":"10s","run":{"pservers":2,"trainers":2}}`,
		string(parse(t, least).JSON()))
}

func TestDiff(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"train.batch=128":     "train.batch: 64 in the job, 128 here",
		"job=k":               `job: "adult" in the job, "k" here`,
		"data.train=[a9a, b]": `data.train: ["/data/a9a"] in the job, ["/data/a9a","/data/b"] here`,
		"model.bits=":         "model.bits: 20 in the job, 0 here",
		"lease_ttl=11s":       `lease_ttl: "10s" in the job, "11s" here`,
		"data.chunk=file":     `data.chunk: "64KiB" in the job, "file" here`,
		"run.trainers=7":      "", // how many processes to start is not the job's meaning
		"data.chunk=65536":    "",
	} {
		require.Equal(t, want, job.Diff(parse(t, full), parse(t, full, set)), set)
	}
}

// FuzzSpec: no text crashes the parser, what it accepts survives a round trip,
// and what it refuses is a SpecError with a line of text for each problem.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{full, least, "", "a: &a [*a]", "? [x]\n: y", "job: !!binary aGk=", "data: *x", "<<: {job: j}",
		"job: j\ndata: {train: d}\nmodel: &m {type: *m}", "job: \"\\ud800\"", "1: 2\n2: 3", "{job: j, job: k}"} {
		f.Add(s, "train.batch=2")
	}
	f.Add(full, "a.b.c.d=&x [*x]")
	f.Add(full, "train=")
	f.Fuzz(func(t *testing.T, text, set string) {
		s, err := job.ParseSpec([]byte(text), "/d", []string{set})
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		var back job.Spec
		require.NoError(t, json.Unmarshal(s.JSON(), &back), "%s", s.JSON())
		require.Equal(t, string(s.JSON()), string(back.JSON()))
	})
}
