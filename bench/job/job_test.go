package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/trainer/model"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	require.Equal(t, spread{1, 3, 9}, newSpread([]float64{9, 1, 3}))
	require.Equal(t, spread{1, 2.5, 9}, newSpread([]float64{9, 1, 3, 2}))
	require.Equal(t, "3.0 (1.0 – 9.0)", spread{1, 3, 9}.format("%.1f"))
}

func TestReadOutput(t *testing.T) {
	t.Parallel()
	s, err := readOutput([]byte("1000\n"))
	require.NoError(t, err)
	require.Equal(t, sample{records: 1000}, s)
	s, err = readOutput([]byte(`{"records":7,"seconds":2.5,"phase":"complete"}` + "\n"))
	require.NoError(t, err)
	require.Equal(t, sample{records: 7, training: 2.5}, s)
	_, err = readOutput([]byte("Segmentation fault"))
	require.Error(t, err)
}

func TestReportTakesRatiosWithinRounds(t *testing.T) {
	t.Parallel()
	programs := []program{{name: yardstick}, {name: whole}}
	round := func(bare, job float64) map[string]sample {
		return map[string]sample{yardstick: {wall: bare, cpu: 2 * bare}, whole: {wall: job, cpu: 3 * job, training: job / 2}}
	}
	var b bytes.Buffer
	share := report(&b, 2e6, programs, []map[string]sample{round(1, 2), round(10, 20), round(1, 4)})
	require.InDelta(t, 0.5, share, 1e-9)
	text := b.String()
	require.Contains(t, text, "0.50 (0.25 – 0.50)")
	require.Contains(t, text, "first take to last complete: 2.00 (1.00 – 10.00) s")
}

func TestReportScale(t *testing.T) {
	t.Parallel()
	round := func(one, four float64) map[string]sample {
		return map[string]sample{small: {cpu: one}, large: {cpu: four}}
	}
	var b bytes.Buffer
	reportScale(&b, 2e6, []map[string]sample{round(2, 4), round(10, 11), round(4, 5)})
	require.Equal(t, "\nCPU-s per million records, 1+1: 2.00 (1.00 – 5.00), 4+4: 2.50 (2.00 – 5.50), ratio 1.25 (1.10 – 2.00)\n", b.String())
}

func TestSpecIsValid(t *testing.T) {
	t.Parallel()
	spec, err := job.ParseSpec([]byte(specText("/data/with space/ctr.libsvm", 4, 3, 8)), t.TempDir(), nil, job.Models(model.Names()...))
	require.NoError(t, err)
	require.Equal(t, batch, spec.Train.Batch)
	require.Equal(t, 8, spec.Shards)
	require.Equal(t, []int{4, 3}, []int{spec.Run.Pservers, spec.Run.Trainers})
	require.EqualValues(t, chunk, spec.Data.Chunk)
	require.Equal(t, []string{"/data/with space/ctr.libsvm"}, spec.Data.Train)
}

// The two programs that this one plays see every record.
func TestParseAndBare(t *testing.T) {
	t.Parallel()
	c := config{rows: 3000, cache: t.TempDir()}
	file, err := c.data(io.Discard)
	require.NoError(t, err)
	before, err := os.Stat(file)
	require.NoError(t, err)
	again, err := c.data(io.Discard)
	require.NoError(t, err)
	require.Equal(t, file, again)
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, before.ModTime(), after.ModTime(), "the data is made once")
	left, err := filepath.Glob(filepath.Join(c.cache, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)
	for _, what := range []string{"parse", "bare"} {
		var out bytes.Buffer
		require.NoError(t, run([]string{what, file}, &out, io.Discard))
		require.Equal(t, "3000", strings.TrimSpace(out.String()), what)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-rows", "0"}, {"-rounds", "0"}, {"x"}, {"-frobnicate"}} {
		require.Error(t, run(args, io.Discard, io.Discard), args)
	}
	require.Error(t, run([]string{"parse", "/does/not/exist"}, io.Discard, io.Discard))
}
