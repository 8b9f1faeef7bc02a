package job_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

func TestResultJSON(t *testing.T) {
	t.Parallel()
	loss, auc, rate := 0.32, 0.902, 77526.5
	r := job.Result{Job: "adult", UUID: "u", Phase: "complete", Mode: "async", Recovery: "replay", Passes: 5, Records: 162805, BadRecords: 7,
		RecordsPerSecond: &rate, Train: job.TrainResult{Loss: &loss},
		Test:    &job.TestResult{Records: 16281, Metrics: map[string]*float64{"loss": &loss, "auc": &auc, "accuracy": nil}, Undefined: map[string]string{"accuracy": "why"}},
		Queue:   job.QueueResult{Chunks: 36, Complete: 180, Takes: 181, Requeued: 1},
		Shards:  []job.ShardState{{Shard: 0, Generation: 1, Batches: 2665}},
		History: []job.PassResult{{Pass: 4, Records: 32561, Train: job.TrainResult{Loss: &loss}}}}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"v":1,"job":"adult","uuid":"u","phase":"complete","mode":"async","recovery":"replay","passes":5,"records":162805,"bad_records":7,"staleness":null,
		"seconds":null,"wall_seconds":null,"cpu_seconds":null,"records_per_second":77526.5,"train":{"loss":0.32},
		"test":{"records":16281,"loss":0.32,"auc":0.902,"accuracy":null,"undefined":{"accuracy":"why"}},
		"queue":{"chunks":36,"complete":180,"failed":0,"takes":181,"requeued":1,"speculated":0,"batches":0,"records":0},
		"shards":[{"shard":0,"generation":1,"batches":2665,"skipped":0,"records":0,"duplicates":0,"lost":0,"losses":0,"replayed":0,"recovered_seconds":0,"handovers":0,"handover_seconds":0}],
		"restarts":{"pserver":0,"trainer":0},
		"failed":null,"history":[{"pass":4,"records":32561,"seconds":null,"train":{"loss":0.32},"test":null}]}`, string(text))
	var back job.Result
	require.NoError(t, json.Unmarshal(text, &back))
	r.V = job.ResultVersion
	require.Equal(t, r, back)
	require.EqualError(t, json.Unmarshal([]byte(`{"v":2,"test":[]}`), &back), "job: the result has version 2; this program knows version 1")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"job":"adult"}`), &back), "version 0")
	for _, broken := range []string{`{"v":1,"test":[]}`, `{"v":1,"test":{"records":1.5}}`, `{"v":1,"test":{"records":1,"auc":"x"}}`, `{"v":1,"test":{"undefined":[]}}`, `{"v":"1"}`} {
		require.Error(t, json.Unmarshal([]byte(broken), &back), broken)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0, job.ExitCode(nil))
	require.NoError(t, job.Exit(job.ExitData, nil))
	require.Equal(t, 1, job.ExitCode(io.EOF))
	err := job.Exit(job.ExitData, io.ErrUnexpectedEOF)
	require.Equal(t, 6, job.ExitCode(fmt.Errorf("trainer: %w", err)))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.EqualError(t, err, io.ErrUnexpectedEOF.Error())
	require.Equal(t, 4, job.ExitCode(job.Exitf(job.ExitSuperseded, "by %s", "x")))
	require.Equal(t, 2, job.ExitCode(fmt.Errorf("%w: x", job.ErrSpecDiffers)))
	require.Equal(t, 7, job.ExitCode(job.Exit(job.ExitFailedChunks, job.Exit(job.ExitData, errors.New("x")))), "the outermost")
}
