package job_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// The list of a result is bounded, by chunks and by what it says of shards.
func TestFailedResultIsBounded(t *testing.T) {
	t.Parallel()
	require.Nil(t, job.NewFailedResult(nil, 4))
	all := make([]job.FailedChunk, 150)
	for i := range all {
		all[i].Chunk = int64(i)
	}
	for shards, listed := range map[int]int{1: 100, 200: 100, 1024: 19} {
		f := job.NewFailedResult(all, shards)
		require.EqualValues(t, 150, f.Chunks)
		require.Equal(t, all[:listed], f.First, "%d shards", shards)
	}
	require.Len(t, job.NewFailedResult(all[:3], 4).First, 3)
}

func TestFailedDetail(t *testing.T) {
	t.Parallel()
	n := int64(7)
	d := job.FailedDetail{Rank: 5, File: "a b.libsvm", Start: 10, End: 20, Batches: []*int64{&n, nil}}
	text, err := d.Encode()
	require.NoError(t, err)
	require.JSONEq(t, `{"rank":5,"file":"a b.libsvm","start":10,"end":20,"batches":[7,null]}`, string(text))
	c := job.FailedChunk{Chunk: 3}
	require.NoError(t, c.Describe(text))
	require.Equal(t, job.FailedChunk{Chunk: 3, FailedDetail: d}, c)
	for _, bad := range []string{"", `{"rank":"x"}`, "[]"} {
		require.ErrorContains(t, c.Describe(json.RawMessage(bad)), "the detail of failed chunk 3", bad)
	}
}
