package pserver

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

func memoryShard(t testing.TB, m *Memory, shard, shards int) *Shard {
	t.Helper()
	s, err := NewShard(testParameters(shards), shard, testLanes, ShardOptions{Memory: m, Stage: m.stage})
	require.NoError(t, err)
	return s
}

// What is accounted for is what the tables take, after each push; and what is
// reserved for a push is never less than what it takes.
func TestMemoryIsExact(t *testing.T) {
	t.Parallel()
	m := NewMemory(0, nil)
	r := rand.New(rand.NewPCG(1, 2))
	shards := []*Shard{memoryShard(t, m, 0, 2), memoryShard(t, m, 1, 2)}
	sum := func() (n int64) {
		for _, s := range shards {
			n += s.Stats().Bytes
		}
		return n
	}
	require.Equal(t, sum(), m.Used())
	for i, s := range shards {
		fresh, err := MemoryOf(testParameters(2), i, 0)
		require.NoError(t, err)
		require.Equal(t, s.Stats().Bytes, fresh)
	}
	for i, b := range []*batches{{}, {rank: 1}} {
		for range 60 {
			n := 1 + r.IntN(1<<r.IntN(13))
			keys := keysOn(i, 2, n, r.Uint64N(1<<20))
			p := b.next(nil, rows(pWeights, keys, make([]float32, n)...), rows(pEmbedding, keys, make([]float32, 3*n)...))
			s := shards[i]
			s.mu.Lock()
			_, err := s.check(p)
			require.NoError(t, err)
			reserved, err := s.grow(p)
			require.NoError(t, err)
			before := s.bytes()
			require.NoError(t, s.apply(p, moment{}))
			require.LessOrEqual(t, s.bytes()-before, reserved)
			s.account(reserved)
			s.mu.Unlock()
			require.Equal(t, sum(), m.Used())
		}
	}
	require.Greater(t, shards[0].Stats().Rows, int64(10000), "some thousand rows, and indexes that have grown")
	shards[0].Release()
	require.Equal(t, shards[1].Stats().Bytes, m.Used())
	shards[1].Release()
	require.Zero(t, m.Used())
}

// At the limit a push that would make rows is refused and changes nothing, others
// go on; when there is room the same push is applied once.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	m := NewMemory(limit, NewStage(0))
	s, other := memoryShard(t, m, 0, 2), memoryShard(t, m, 1, 2)
	fill := keysOn(1, 2, 20000, 0)
	mustPush(t, other, (&batches{}).next(nil, rows(pWeights, fill, make([]float32, len(fill))...)))
	b, from := &batches{}, uint64(0)
	var refused *wire.PushData
	for refused == nil {
		keys := keysOn(0, 2, 1000, from)
		from = keys[len(keys)-1] + 1
		p := b.next(nil, rows(pSeen, keys, make([]float32, len(keys))...))
		p.Sparse[0].Values[0] = 1
		before := dump(t, s)
		_, err := s.Push(1, p, nil)
		if err == nil {
			continue
		}
		var full *MemoryError
		require.ErrorAs(t, err, &full)
		require.ErrorIs(t, err, ErrMemory)
		require.EqualValues(t, limit, full.Limit)
		require.Equal(t, before, dump(t, s))
		refused = p
	}
	require.LessOrEqual(t, m.Used(), int64(limit))
	require.Greater(t, m.Used(), int64(limit/2))

	// Rows that are there are updated, and what is not there is pulled.
	_, err := s.Push(2, &wire.PushData{Meta: wire.Meta{Rank: 1000, Token: 1}, Sparse: []wire.SparseRows{rows(pSeen, keysOn(0, 2, 1, 0), 1)}}, nil)
	require.NoError(t, err)
	require.Equal(t, []float32{0}, pullRows(t, s, pSeen, refused.Sparse[0].Keys[0]))

	other.Release()
	require.Equal(t, ledger.Applied, mustPush(t, s, refused).Verdict)
	require.Equal(t, ledger.Duplicate, mustPush(t, s, refused).Verdict)
	require.Equal(t, []float32{1}, pullRows(t, s, pSeen, refused.Sparse[0].Keys[0]))
	require.Equal(t, s.Stats().Bytes, m.Used())
}

// Parts that are staged count as well, and go back when the push is refused.
func TestMemoryCountsParts(t *testing.T) {
	t.Parallel()
	m := NewMemory(2<<20, NewStage(0))
	s := memoryShard(t, m, 0, 1)
	before, part, refused := m.Used(), make([]float32, job.BlockSize-1), false
	for i := range 40 {
		p := &wire.PushData{Meta: wire.Meta{Token: 1}, Part: i, More: true, Dense: []wire.DenseBlock{block(pMatrix, 0, part...)}}
		_, err := s.Push(1, p, nil)
		require.LessOrEqual(t, m.Used(), int64(2<<20))
		if refused = errors.Is(err, ErrMemory); refused {
			break
		}
		require.NoError(t, err)
		require.Greater(t, m.Used(), before)
	}
	require.True(t, refused)
	require.Equal(t, before, m.Used())
}
