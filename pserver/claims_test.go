package pserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/wire"
	"starfish/job"
)

func testServer(t *testing.T) *Server {
	t.Helper()
	s, err := New(Config{Store: store.Prefixed(nil, "x"), Name: "p"})
	require.NoError(t, err)
	return s
}

// What the table has for a shard after each view: the memory is kept only if
// nobody can have owned the shard between.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	s := testServer(t)
	before := &membership.Member{}
	now := &tenure{Server: s, member: &membership.Member{}, me: membership.Owner{Incarnation: "me"}, hold: context.Background()}
	old := &held{shard: 0, generation: 4, member: before, core: &Shard{}, done: make(chan struct{})}
	old.loaded.Store(true)
	raw := &held{shard: 0, generation: 4, member: before, done: make(chan struct{})}
	mine := &held{shard: 0, generation: 4, member: now.member, core: &Shard{}, done: make(chan struct{})}

	for name, c := range map[string]struct {
		h          *held
		by         string
		generation int64
		same       bool // stays as it is
		gone       bool // nothing
		core       *Shard
	}{
		"free, nothing held":          {h: nil, by: "", generation: 4, gone: true},
		"another's, nothing held":     {h: nil, by: "other", generation: 4, gone: true},
		"claimed, nothing held":       {h: nil, by: "me", generation: 5},
		"still mine":                  {h: mine, by: "me", generation: 4, same: true},
		"mine taken by another":       {h: mine, by: "other", generation: 5, gone: true},
		"mine given up":               {h: mine, by: "", generation: 4, gone: true},
		"lease lost, not claimed":     {h: old, by: "former me", generation: 4, same: true},
		"lease lost, given up":        {h: old, by: "", generation: 4, same: true},
		"lease lost, another's":       {h: old, by: "other", generation: 5, gone: true},
		"lease lost, was another's":   {h: old, by: "", generation: 5, gone: true},
		"claimed again, none between": {h: old, by: "me", generation: 5, core: old.core},
		"claimed again, one between":  {h: old, by: "me", generation: 6},
		"claimed again, not loaded":   {h: raw, by: "me", generation: 5},
		"mine again, one between":     {h: mine, by: "me", generation: 6},
		"of another registration":     {h: old, by: "me", generation: 4},
	} {
		v := membership.View{Revision: 1, Shards: []membership.Owner{{Incarnation: c.by, Generation: c.generation}}}
		next := now.successor(v, 0, c.h)
		switch {
		case c.gone:
			require.Nil(t, next, name)
		case c.same:
			require.Same(t, c.h, next, name)
		default:
			require.NotSame(t, c.h, next, name)
			require.Equal(t, c.generation, next.generation, name)
			require.Same(t, c.core, next.core, name)
			require.False(t, next.serving.Load(), name)
			require.Same(t, c.h, next.before, name)
		}
	}
}

// scriptedStream gives one message and takes the answer.
type scriptedStream struct {
	body []byte
	sent int
}

func (s *scriptedStream) Recv() ([]byte, error) {
	if s.body == nil {
		return nil, io.EOF
	}
	b := s.body
	s.body = nil
	return b, nil
}

func (s *scriptedStream) Send(b *wire.Buffer) error {
	s.sent++
	b.Release()
	return nil
}

// The ownership is asked for under the shard's lock before the apply, and again
// before the answer: what it loses between is applied to a shard that nobody
// will ask any more, and not acknowledged.
func TestFencing(t *testing.T) {
	t.Parallel()
	parameters := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "w", Sparse: true, Dim: 1,
		Optimizer: job.OptimizerSettings{Type: job.OptimizerSGD, LearningRate: 1}, Reduction: job.ReductionSum, Divisor: 1}}}
	for name, c := range map[string]struct {
		alive   int // for so many questions
		applied int64
		sent    int
		err     error
	}{
		"lost before the push":   {alive: 1, applied: 0, sent: 1, err: io.EOF},
		"lost before the answer": {alive: 2, applied: 1, sent: 0, err: errFenced},
		"owned until after it":   {alive: 3, applied: 1, sent: 1, err: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testServer(t)
			core, err := NewShard(parameters, 0, 1, ShardOptions{})
			require.NoError(t, err)
			asked := 0
			h := &held{generation: 1, core: core, nudged: make(chan struct{}, 1)}
			h.ok = func() bool { asked++; return asked <= c.alive }
			h.serving.Store(true)
			s.table.Store(&[]*held{h})
			s.job = &job.Job{UUID: uuid.New()}

			var w wire.RequestWriter
			b := wire.NewPool(1).Get()
			w.Start(b, s.job.UUID, 1)
			w.Section(0, 1)
			w.Push(&wire.Meta{Token: 1, Records: 1}, 0)
			w.PushRows(0, []uint64{7}, []float32{-1})
			w.Finish()
			stream := &scriptedStream{body: b.Body()}
			x := &exchanger{Server: s, stream: stream, pool: wire.NewPool(1)}
			require.ErrorIs(t, x.serve(t.Context()), c.err)
			require.Equal(t, c.sent, stream.sent)
			require.Equal(t, c.applied, core.Stats().Total.Batches)
		})
	}
}

// Once its buffers have grown a stream allocates nothing for a message.
func TestExchangeDoesNotAllocate(t *testing.T) {
	s := testServer(t)
	parameters := job.Parameters{V: 1, Shards: 2, List: []job.Parameter{{Name: "w", Sparse: true, Dim: 4,
		Optimizer: job.OptimizerSettings{Type: job.OptimizerAdagrad, LearningRate: 1}, Reduction: job.ReductionSum, Divisor: 1}}}
	table := make([]*held, 2)
	keys := make([][]uint64, 2)
	for k := uint64(0); len(keys[0]) < 300 || len(keys[1]) < 300; k++ {
		shard := job.ShardOf(k, 2)
		keys[shard] = append(keys[shard], k)
	}
	for i := range table {
		core, err := NewShard(parameters, i, 1, ShardOptions{})
		require.NoError(t, err)
		table[i] = &held{shard: i, generation: 1, core: core, ok: func() bool { return true }}
		table[i].serving.Store(true)
	}
	s.table.Store(&table)
	s.job = &job.Job{UUID: uuid.New()}
	x := &exchanger{Server: s, pool: wire.NewPool(2), seen: map[*Shard]struct{}{}}
	bodies, pool := make([][]byte, 60), wire.NewPool(0)
	for n := range bodies {
		var w wire.RequestWriter
		b := pool.Get()
		w.Start(b, s.job.UUID, uint64(n))
		for i := range table {
			w.Section(i, 1)
			w.Push(&wire.Meta{Token: 1, N: int64(n), Records: 1}, 0)
			w.PushRows(0, keys[i], make([]float32, 4*len(keys[i])))
			w.PullKeys(0, keys[i], 4)
		}
		w.Finish()
		bodies[n] = b.Body()
	}
	n := 0
	once := func() {
		require.NoError(t, x.request.Decode(bodies[n]))
		x.answer(t.Context()).Release()
		n++
	}
	for range 5 {
		once()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(50, once), 0.5)
	require.EqualValues(t, n, table[1].core.Stats().Total.Batches)
}

// Saves are never closer together than the rhythm says, never further apart
// than the interval plus what a save takes, and what is left out is counted.
func TestRhythm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "interval")) * time.Millisecond
		now := time.Unix(0, 0)
		r := newRhythm(interval, now)
		pause := min(firstSave, interval)
		for range rapid.IntRange(1, 12).Draw(t, "saves") {
			require.False(t, r.due(now.Add(r.wait(now)-1)))
			now = now.Add(r.wait(now))
			require.True(t, r.due(now))
			pause = min(2*pause, interval)
			took := time.Duration(rapid.IntRange(0, 90_000).Draw(t, "took")) * time.Millisecond
			skipped := r.done(now, now.Add(took))
			require.Equal(t, int(took/pause), skipped)
			next := now.Add(took).Add(r.wait(now.Add(took)))
			require.Equal(t, now.Add(time.Duration(skipped+1)*pause), next)
			now = now.Add(took)
		}
	})
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code job.Code
	}{
		{nil, job.ExitOK},
		{errors.New("something"), job.ExitFailure},
		{store.ErrHistory, job.ExitFailure},
		{membership.ErrJobChanged, job.ExitFailure},
		{&membership.SupersededError{Name: "p"}, job.ExitSuperseded},
		{membership.ErrNameInUse, job.ExitUsage},
		{checkpoint.ErrForeign, job.ExitUsage},
		{checkpoint.ErrNoneLoads, job.ExitStateLost},
		{job.Exitf(job.ExitData, "as it is"), job.ExitData},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("wrapped: %w", err)
		}
		require.Equal(t, int(c.code), job.ExitCode(exit(err)), "%v", c.err)
	}
}

func TestRetryable(t *testing.T) {
	t.Parallel()
	for _, err := range []error{store.ErrHistory, membership.ErrJobChanged, membership.ErrVersion, etcdqueue.ErrFormat,
		etcdqueue.ErrNoQueue, &membership.SupersededError{}, checkpoint.ErrNotOwner} {
		require.False(t, retryable(fmt.Errorf("wrapped: %w", err)), "%v", err)
	}
	for _, err := range []error{errors.New("unavailable"), context.DeadlineExceeded, store.ErrCompacted, store.ErrLeaseNotFound} {
		require.True(t, retryable(err), "%v", err)
	}
}
