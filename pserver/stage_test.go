package pserver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/pserver/ledger"
)

// parts are the parts of a push that counts total once and one key a part.
func parts(n int, meta wire.Meta) (out []*wire.PushData) {
	for i := range n {
		p := &wire.PushData{Meta: meta, Part: i, More: i < n-1, Sparse: []wire.SparseRows{rows(pSeen, []uint64{uint64(i)}, 1)}}
		if i == 0 {
			p.Dense = []wire.DenseBlock{block(pTotal, 0, 1)}
		}
		out = append(out, p)
	}
	return out
}

func TestPartsAreAppliedAtTheLast(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	for round := range int64(3) { // the second and third reuse the staging memory
		all := parts(4, wire.Meta{N: round, Token: 1, Records: 4})
		before := pullBlock(t, s, pTotal, 0)[0]
		for _, p := range all[:3] {
			out := mustPush(t, s, p)
			require.Equal(t, wire.Staged, out.Code())
			p.Sparse[0].Values[0], p.Sparse[0].Keys[0] = 99, 99 // the message's memory is reused
			require.Equal(t, before, pullBlock(t, s, pTotal, 0)[0])
		}
		require.EqualValues(t, 3*12+4, s.stage.Held())
		require.Equal(t, Outcome{Verdict: ledger.Applied, Next: round + 1}, mustPush(t, s, all[3]))
		require.Zero(t, s.stage.Held())
		require.Equal(t, before+1, pullBlock(t, s, pTotal, 0)[0])
		n := float32(round + 1)
		require.Equal(t, []float32{n, n, n, n, 0}, pullRows(t, s, pSeen, 0, 1, 2, 3, 99))
	}
	require.Equal(t, ledger.Sums{Batches: 3, Records: 12}, totals(s))
}

func TestSourcesDoNotMix(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	a, b := parts(2, wire.Meta{Rank: 1, Token: 1}), parts(2, wire.Meta{Rank: 2, Token: 1})
	for _, x := range []struct {
		source uint64
		p      *wire.PushData
	}{{1, a[0]}, {2, b[0]}, {2, b[1]}, {1, a[1]}} {
		_, err := s.Push(x.source, x.p, nil)
		require.NoError(t, err)
	}
	require.Equal(t, []float32{2}, pullBlock(t, s, pTotal, 0))
}

// Two trainers stage the same batch; one of them is applied.
func TestSameBatchStagedTwice(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	push := func(source uint64, p *wire.PushData) Outcome {
		out, err := s.Push(source, p, nil)
		require.NoError(t, err)
		return out
	}
	a, b := parts(2, wire.Meta{Token: 1}), parts(2, wire.Meta{Token: 2})
	push(1, a[0])
	push(2, b[0])
	require.Equal(t, ledger.Applied, push(2, b[1]).Verdict)
	require.Equal(t, ledger.Stale, push(1, a[1]).Verdict)
	require.Equal(t, []float32{1}, pullBlock(t, s, pTotal, 0))
}

func TestPartsOutOfOrder(t *testing.T) {
	t.Parallel()
	all := parts(3, wire.Meta{Token: 1})
	other := parts(3, wire.Meta{Rank: 1, Token: 1})
	for name, order := range map[string][]*wire.PushData{
		"not from the first": {all[1]},
		"last only":          {all[2]},
		"a hole":             {all[0], all[2]},
		"twice":              {all[0], all[1], all[1]},
		"of another batch":   {all[0], other[1]},
		"negative":           {{Part: -1}},
		"negative with more": {all[0], {Part: -1, More: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := theShard(t)
			before := dump(t, s)
			for i, p := range order {
				_, err := s.Push(1, p, nil)
				if i < len(order)-1 {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrParts)
				}
			}
			require.Zero(t, s.stage.Held())
			require.Equal(t, before, dump(t, s))
			for _, p := range all {
				mustPush(t, s, p)
			}
			require.Equal(t, []float32{1}, pullBlock(t, s, pTotal, 0))
		})
	}
}

// A push that begins anew, whole or in parts, replaces what was staged before.
func TestNewPushReplacesStagedParts(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	all := parts(2, wire.Meta{Token: 1})
	mustPush(t, s, all[0])
	mustPush(t, s, all[0])
	mustPush(t, s, all[1])
	require.Equal(t, []float32{1}, pullBlock(t, s, pTotal, 0))

	mustPush(t, s, parts(2, wire.Meta{N: 1, Token: 1})[0])
	mustPush(t, s, &wire.PushData{Meta: wire.Meta{N: 1, Token: 1}})
	require.Zero(t, s.stage.Held())
	require.Equal(t, []float32{1}, pullBlock(t, s, pTotal, 0))
}

func TestInvalidParts(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	before := dump(t, s)
	for _, bad := range []*wire.PushData{
		{More: true, Meta: wire.Meta{N: -1}},
		{More: true, Sparse: []wire.SparseRows{rows(pBias, nil)}},
		{More: true, Dense: []wire.DenseBlock{block(77, 0)}},
	} {
		_, err := s.Push(1, bad, nil)
		require.ErrorIs(t, err, ErrInvalid)
	}
	// Found only when all is there: a block that comes in two parts.
	all := parts(2, wire.Meta{})
	all[1].Dense = all[0].Dense
	mustPush(t, s, all[0])
	_, err := s.Push(1, all[1], nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.Zero(t, s.stage.Held())
	require.Equal(t, before, dump(t, s))
}

func TestUnwantedPartsAreNotKept(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	for _, p := range parts(2, wire.Meta{N: 0, Token: 1}) {
		mustPush(t, s, p)
	}
	again := parts(2, wire.Meta{N: 0, Token: 1})
	require.True(t, mustPush(t, s, again[0]).Staged)
	require.Zero(t, s.stage.Held())
	require.Equal(t, Outcome{Verdict: ledger.Duplicate, Next: 1}, mustPush(t, s, again[1]))

	// Batch 2 comes too early, but when its last part comes batch 1 is there.
	early := parts(2, wire.Meta{N: 2, Token: 1})
	require.True(t, mustPush(t, s, early[0]).Staged)
	_, err := s.Push(2, &wire.PushData{Meta: wire.Meta{N: 1, Token: 1}}, nil)
	require.NoError(t, err)
	require.Equal(t, Outcome{Verdict: ledger.GoBack, Next: 2}, mustPush(t, s, early[1]))
	for _, p := range early {
		mustPush(t, s, p)
	}
	require.Equal(t, []float32{2}, pullBlock(t, s, pTotal, 0))
}

func TestDropSource(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	all := parts(2, wire.Meta{Token: 1})
	mustPush(t, s, all[0])
	s.DropSource(2)
	require.NotZero(t, s.stage.Held())
	s.DropSource(1)
	require.Zero(t, s.stage.Held())
	_, err := s.Push(1, all[1], nil)
	require.ErrorIs(t, err, ErrParts)
}

func TestLoadDropsStagedParts(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	mustPush(t, s, parts(2, wire.Meta{Token: 1})[0])
	require.NoError(t, load(s.NewLoader(), sections(t, theShard(t))))
	require.Zero(t, s.stage.Held())
}

func TestPushLargerThanTheStage(t *testing.T) {
	t.Parallel()
	s, err := NewShard(testParameters(1), 0, testLanes, ShardOptions{Stage: NewStage(100)})
	require.NoError(t, err)
	keys := make([]uint64, 30_000)
	for i := range keys {
		keys[i] = uint64(i)
	}
	p := &wire.PushData{More: true, Sparse: []wire.SparseRows{rows(pSeen, keys, make([]float32, len(keys))...)}}
	_, err = s.Push(1, p, nil)
	require.ErrorIs(t, err, ErrTooLarge)
	require.Zero(t, s.stage.Held())
	p.More = false
	mustPush(t, s, p) // in one piece it takes no room
}

func TestStageMakesOthersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st, ctx := NewStage(100), t.Context()
		require.NoError(t, st.Wait(ctx, 1))
		st.add(1, 80)
		require.NoError(t, st.Wait(ctx, 2), "within the limit")
		st.add(2, 80)
		require.NoError(t, st.Wait(ctx, 1), "the oldest may always go on")

		released := make(chan uint64, 3)
		for _, source := range []uint64{2, 3} {
			go func() {
				if st.Wait(ctx, source) == nil {
					released <- source
				}
			}()
		}
		synctest.Wait()
		require.Empty(t, released)
		st.add(1, 500)
		st.add(1, -580)
		synctest.Wait()
		require.Len(t, released, 2)
		require.EqualValues(t, 80, st.Held())
	})
}

func TestStageWaitEnds(t *testing.T) {
	t.Parallel()
	st := NewStage(1)
	st.add(1, 5)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("stream gone")
	cancel(gone)
	require.ErrorIs(t, st.Wait(ctx, 2), gone)
}
