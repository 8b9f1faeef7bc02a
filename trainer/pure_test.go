package trainer

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/pserver/ledger"
	"starfish/trainer/model"
)

func TestSmallest(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		shards   []client.Progress
		next     int64
		finished bool
	}{
		"new everywhere":           {[]client.Progress{{}, {}}, 0, false},
		"one is behind":            {[]client.Progress{{Next: 7}, {Next: 3}, {Next: 5}}, 3, false},
		"one is finished":          {[]client.Progress{{Finished: true}, {Next: 9}}, 9, false},
		"one lost everything":      {[]client.Progress{{Finished: true}, {Next: 0}, {Next: 4}}, 0, false},
		"all are finished":         {[]client.Progress{{Finished: true}, {Finished: true}}, 0, true},
		"the last one is the only": {[]client.Progress{{Next: 2}}, 2, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next, finished := smallest(test.shards)
			require.Equal(t, test.finished, finished)
			require.Equal(t, test.next, next)
		})
	}
}

func TestFiniteFindsEveryPlace(t *testing.T) {
	t.Parallel()
	fresh := func() *item {
		it := &item{}
		it.step.DenseGrad = [][]float32{{1, 2, 3}}
		it.step.Tables = []model.Table{{Grad: []float32{1, -2, 0, 3e38, 5}}}
		return it
	}
	require.True(t, finite(fresh()))
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for i := range 3 {
			it := fresh()
			it.step.DenseGrad[0][i] = bad
			require.False(t, finite(it), "dense %d", i)
		}
		for i := range 5 {
			it := fresh()
			it.step.Tables[0].Grad[i] = bad
			require.False(t, finite(it), "sparse %d", i)
		}
	}
	it := fresh()
	it.meta.Loss = math.Inf(1)
	require.False(t, finite(it))
}

func TestBackOffIsBoundedAndGrows(t *testing.T) {
	t.Parallel()
	for attempt := range 100 {
		d := backOff(attempt)
		require.Positive(t, d)
		require.LessOrEqual(t, d, 2*time.Second)
	}
	require.Less(t, backOff(0), 21*time.Millisecond)
	require.GreaterOrEqual(t, backOff(50), time.Second)
}

func TestPaceAsksForAboutASecond(t *testing.T) {
	t.Parallel()
	var p pace
	require.Equal(t, 1, p.take())
	p.perChunk = 100 * time.Millisecond
	require.Equal(t, 10, p.take())
	p.perChunk = time.Minute
	require.Equal(t, 1, p.take())
	p.perChunk = time.Microsecond
	require.Equal(t, 256, p.take())
}

func TestCoveredNeedsTheNewestOfThePresentGeneration(t *testing.T) {
	t.Parallel()
	view := membership.View{Shards: []membership.Owner{{Generation: 2}, {Generation: 1}}}
	metas := func() [][]checkpoint.Meta {
		return [][]checkpoint.Meta{
			{{Generation: 2, Passes: 5}, {Generation: 1, Passes: 1}},
			{{Generation: 1, Passes: 5}},
		}
	}
	require.True(t, covered(view, metas(), 5))
	m := metas()
	m[0][0].Generation = 1
	require.False(t, covered(view, m, 5), "written by a predecessor")
	m = metas()
	m[1][0].Passes = 4
	require.False(t, covered(view, m, 5), "lacks a pass")
	m = metas()
	m[1] = nil
	require.False(t, covered(view, m, 5), "never saved")
}

func TestCoveredByAllCountsEveryListedCheckpoint(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, coveredByAll([][]checkpoint.Meta{{{Passes: 3}, {Passes: 1}}, {{Passes: 4}}}),
		"an older listed checkpoint may still be restored")
	require.Zero(t, coveredByAll([][]checkpoint.Meta{{{Passes: 3}}, {}}))
}

func TestHandKeepsWhatIsNotDone(t *testing.T) {
	t.Parallel()
	var h hand
	added := h.add([]etcdqueue.Task{{Rank: 1}, {Rank: 2}, {Rank: 3}})
	h.update(func() { added[0].finished, added[0].counted = true, true })
	h.update(func() { added[1].finished = true })
	require.Equal(t, []*held{added[0]}, h.done(), "a chunk is done when it is finished and counted")
	h.doubt()
	require.Empty(t, h.done(), "what owners of an earlier view have said does not count")
	h.drop(func(t etcdqueue.Task) bool { return t.Rank == 1 })
	require.Equal(t, []etcdqueue.Task{{Rank: 2}, {Rank: 3}}, h.tasks())
}

// After a shard has begun anew its records say nothing about the job's.
func TestRecordsOfShardsThatDisagree(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shards []int64
		want   int64
	}{
		"one shard":             {[]int64{12}, 12},
		"all agree":             {[]int64{12, 12, 12}, 12}, // with batches of chunks that failed
		"the first lost some":   {[]int64{7, 10, 10}, 10},
		"another one lost some": {[]int64{12, 12, 7}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := logrus.New()
			var out strings.Builder
			log.SetOutput(&out)
			s := &steward{log: log}
			r := &job.Result{Queue: job.QueueResult{Records: 10}}
			for i, n := range test.shards {
				addShard(r, i, checkpoint.Meta{}, &ledger.Summary{Past: ledger.Sums{Records: n}})
			}
			s.agree(r)
			require.Equal(t, test.want, r.Records)
			require.Equal(t, test.want == 10, strings.Contains(out.String(), "disagree"))

			// What the ledgers call lost is no riddle, and no records.
			out.Reset()
			r.Shards[0].Lost = 3
			s.agree(r)
			require.EqualValues(t, 10, r.Records)
			require.NotContains(t, out.String(), "disagree")
			require.Contains(t, out.String(), "the shard lacks batches that it has lost")
		})
	}
}

// A shard that does not take the gap makes the trainer go back, in that chunk
// and for no other reason.
func TestRefusedGapMakesTheTrainerGoBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		gap  bool
		want int64
	}{
		"go back":             {&client.FaultError{Code: wire.GoBack}, true, 0},
		"go back, not a gap":  {&client.FaultError{Code: wire.GoBack}, false, 7},
		"another refusal":     {&client.FaultError{Code: wire.Paused}, true, 7},
		"another error":       {io.EOF, true, 7},
		"go back, in a chain": {fmt.Errorf("push: %w", &client.FaultError{Code: wire.GoBack}), true, 0},
	} {
		h := &held{acknowledged: 7}
		p := &pipeline{r: &round{w: &worker{}}, pushed: []pushedItem{{it: &item{held: h, meta: wire.Meta{N: 7, Gap: test.gap}}}}}
		p.goBack(test.err)
		require.Equal(t, test.want, h.acknowledged, name)
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Job: "j", Take: -5})
	require.ErrorContains(t, err, "--take -5 is negative")
	require.ErrorContains(t, err, "the name is missing")
	require.Equal(t, 2, job.ExitCode(err))
}
