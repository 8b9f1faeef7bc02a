package trainer_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/job"
)

// spoiled writes 2,000 records in chunks of badChunkSize bytes, of which line
// badLine is nonsense, and returns the file and where the chunk with it begins.
func spoiled(t *testing.T) (file string, start int64) {
	t.Helper()
	good, _ := records(t, 2000)
	text, err := os.ReadFile(good)
	require.NoError(t, err)
	lines := bytes.SplitAfter(text, []byte("\n"))
	at := int64(len(bytes.Join(lines[:badLine-1], nil)))
	start = at / badChunkSize * badChunkSize
	require.Greater(t, at, start+500, "some batches come before it")
	lines[badLine-1] = []byte("nonsense\n")
	file = filepath.Join(t.TempDir(), "bad.libsvm")
	require.NoError(t, os.WriteFile(file, bytes.Join(lines, nil), 0o600))
	return file, start
}

const (
	badLine      = 201
	badChunkSize = 3000
)

// accountedFor requires that the result says all of the bad chunk, and how many
// of its batches each shard has: those that its ledger has and the lanes have not.
func (c *cluster) accountedFor(file string, start int64) job.FailedChunk {
	r := c.result()
	require.EqualValues(c.t, 2, r.Queue.Failed, "in both passes")
	require.EqualValues(c.t, 1, r.Failed.Chunks)
	require.Len(c.t, r.Failed.First, 1)
	f := r.Failed.First[0]
	require.Equal(c.t, start/badChunkSize, f.Chunk)
	require.Equal(c.t, [2]int64{start, start + badChunkSize}, [2]int64{f.Start, f.End})
	require.Equal(c.t, file, f.File)
	require.Contains(c.t, f.Reason, fmt.Sprintf("%s:%d", file, badLine))
	require.Equal(c.t, c.spec.Queue.MaxFailures, f.Failures)
	require.Zero(c.t, f.Pass)
	require.Len(c.t, f.Batches, c.spec.Shards)
	for i, s := range r.Shards {
		require.Equal(c.t, s.Batches+s.Skipped+s.Lost-r.Queue.Batches, *f.Batches[i], "shard %d", i)
	}
	return f
}

// A chunk is bad in its middle, and everything is killed again and again: it is
// reported max_failures times, none of which is used up by a lost process, and
// everything of it is accounted for.
func TestFailedChunkIsAccountedFor(t *testing.T) {
	file, start := spoiled(t)
	for seed := range max(*seeds, 8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, file, "")
				c.spec.Checkpoint.Interval = time.Second
				c.spec.Data.Chunk, c.spec.Train.Shuffle = badChunkSize, false
				r := rand.New(rand.NewPCG(seed, 7))
				newPlague(c, r).run(plan(r, 15, 40*time.Millisecond))
				c.accountedFor(file, start)
				require.GreaterOrEqual(t, len(c.log.all("chunk failed")), c.spec.Queue.MaxFailures, "each try is a report")
			})
		})
	}
}

// After the failure a shard is lost with all that it had. Nobody trains the bad
// chunk again, so it has nothing of it then, and the result says so.
func TestFailedChunkOfARestoredShard(t *testing.T) {
	file, start := spoiled(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, file, "")
		c.spec.Data.Chunk, c.spec.Train.Shuffle = badChunkSize, false
		c.latency = 40 * time.Millisecond // the job lasts
		c.disk.refuseCheckpoints(true)
		c.trainer("trainer-0")
		c.pserver("pserver-0")
		lost := c.pserver("pserver-1")
		quarantined := func() bool {
			kv, err := store.Lookup(c.ctx, c.store, fmt.Sprintf("%sfailed/%012d", job.Prefix("test"), start/badChunkSize))
			require.NoError(t, err)
			return kv.Exists()
		}
		for !quarantined() {
			time.Sleep(time.Millisecond)
		}
		c.kill(lost)
		c.disk.refuseCheckpoints(false)
		c.pserver("pserver-1")
		c.wait()
		var had []int64
		for _, n := range c.accountedFor(file, start).Batches {
			had = append(had, *n)
		}
		require.Contains(t, had, int64(0), "the shards that were lost")
		require.Positive(t, slices.Max(had), "the others")
	})
}
