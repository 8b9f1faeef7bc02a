package pserver

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/modelfile"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

type section struct {
	name string
	data []byte
}

func sections(t testing.TB, s *Shard) (out []section) {
	t.Helper()
	c, err := s.Cut()
	require.NoError(t, err)
	require.NoError(t, c.WriteTo(func(name string, data []byte) error {
		require.NotEmpty(t, data)
		require.LessOrEqual(t, len(data), BlockBytes)
		out = append(out, section{name, bytes.Clone(data)})
		return nil
	}))
	return out
}

func load(l *Loader, from []section) error {
	for _, b := range from {
		if err := l.Add(b.name, b.data); err != nil {
			return err
		}
	}
	return l.Finish()
}

// reload returns a new shard of the same place with the content of a cut.
func reload(t testing.TB, s *Shard) *Shard {
	t.Helper()
	r, err := NewShard(s.job, s.number, s.lanes, ShardOptions{Policy: s.policy})
	require.NoError(t, err)
	require.NoError(t, load(r.NewLoader(), sections(t, s)))
	return r
}

// train pushes random batches to every parameter; from is the first batch.
func train(t testing.TB, s *Shard, b *batches, rng *rand.Rand, times int) {
	t.Helper()
	for range times {
		keys := keysOn(s.number, s.job.Shards, 1+rng.IntN(40), rng.Uint64N(2000))
		grad, three, ones := make([]float32, len(keys)), make([]float32, 3*len(keys)), make([]float32, len(keys))
		for i := range keys {
			grad[i], three[3*i], ones[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64()), 1
		}
		var dense []wire.DenseBlock
		for _, p := range s.params {
			for _, block := range p.blocks {
				v := make([]float32, p.blockLen(block))
				v[rng.IntN(len(v))] = 1
				dense = append(dense, wire.DenseBlock{Param: uint16(p.number), Block: block, Values: v})
			}
		}
		mustPush(t, s, b.next(dense, rows(pWeights, keys, grad...), rows(pEmbedding, keys, three...), rows(pSeen, keys, ones...)))
	}
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		s, b := newTestShard(t, shards-1, shards), &batches{}
		rng := rand.New(rand.NewPCG(2, 3))
		train(t, s, b, rng, 35)
		r := reload(t, s)
		require.Equal(t, dump(t, s), dump(t, r))

		// Both go on the same way: the optimizer's state has come along.
		b2 := *b
		train(t, s, b, rand.New(rand.NewPCG(9, 9)), 10)
		train(t, r, &b2, rand.New(rand.NewPCG(9, 9)), 10)
		require.Equal(t, dump(t, s), dump(t, r))
	}
}

// A cut is a moment: pushes after it are not in it.
func TestCutIsIsolated(t *testing.T) {
	t.Parallel()
	s, b, rng := theShard(t), &batches{}, rand.New(rand.NewPCG(2, 3))
	train(t, s, b, rng, 5)
	want := dump(t, s)
	c, err := s.Cut()
	require.NoError(t, err)
	require.EqualValues(t, 5, c.Ledger().Sums[0].Batches)
	train(t, s, b, rng, 5)
	r := theShard(t)
	l := r.NewLoader()
	require.NoError(t, c.WriteTo(l.Add))
	require.NoError(t, l.Finish())
	require.Equal(t, want, dump(t, r))
}

// Exactly once across a restore: an older cut is loaded, the trainers are told
// to go back, and in the end the model is the one without the fault, bit by bit.
func TestReplayAfterRestore(t *testing.T) {
	t.Parallel()
	pushAll := func(s *Shard, from, to int64) {
		for n := from; n < to; n++ {
			p := &wire.PushData{
				Meta:   wire.Meta{N: n, Token: 1, Records: 4, Last: n == 9},
				Dense:  []wire.DenseBlock{block(pTotal, 0, 1), block(pBias, 0, float32(n)-3)},
				Sparse: []wire.SparseRows{rows(pWeights, []uint64{uint64(n % 3)}, float32(n))},
			}
			mustPush(t, s, p)
		}
	}
	calm, s := theShard(t), theShard(t)
	pushAll(calm, 0, 10)
	pushAll(s, 0, 4)
	cut := sections(t, s)
	pushAll(s, 4, 7) // lost
	r := theShard(t)
	require.NoError(t, load(r.NewLoader(), cut))
	out := mustPush(t, r, &wire.PushData{Meta: wire.Meta{N: 7, Token: 1}})
	require.Equal(t, Outcome{Verdict: ledger.GoBack, Next: 4}, out)
	pushAll(r, 2, 10) // another trainer begins even earlier
	require.Equal(t, []float32{10}, pullBlock(t, r, pTotal, 0))
	require.Equal(t, pullBlock(t, calm, pBias, 0), pullBlock(t, r, pBias, 0))
	require.Equal(t, pullRows(t, calm, pWeights, 0, 1, 2), pullRows(t, r, pWeights, 0, 1, 2))
	require.Equal(t, totals(calm), totals(r))
	require.EqualValues(t, 3, r.Stats().Summary.Replayed)
	require.EqualValues(t, 2, r.Stats().Summary.Duplicates)
}

func TestLargeSections(t *testing.T) {
	t.Parallel()
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
		{Name: "wide", Sparse: true, Dim: 150_000, Optimizer: adagrad(), Divisor: 1}, // rows larger than a block
		{Name: "dense", Shape: []int{700_000}, Optimizer: adagrad(), Divisor: 1},
	}}
	s, err := NewShard(p, 0, 1, ShardOptions{})
	require.NoError(t, err)
	v := make([]float32, 2*150_000)
	for i := range v {
		v[i] = float32(i)
	}
	mustPush(t, s, &wire.PushData{
		Dense:  []wire.DenseBlock{{Param: 1, Block: 42, Values: v[:700_000-42*job.BlockSize]}, {Param: 1, Block: 3, Values: v[:job.BlockSize]}},
		Sparse: []wire.SparseRows{{Param: 0, Keys: []uint64{3, 0}, Values: v}},
	})
	full := 0
	for _, b := range sections(t, s) {
		if len(b.data) == BlockBytes {
			full++
		}
	}
	require.Equal(t, 2, full, "a large row comes in several blocks")
	require.Equal(t, dump(t, s), dump(t, reload(t, s)))

	// Blocks of any other size load as well.
	r, err := NewShard(p, 0, 1, ShardOptions{})
	require.NoError(t, err)
	l := r.NewLoader()
	for _, b := range sections(t, s) {
		for len(b.data) > 0 {
			n := min(len(b.data), 40_004)
			require.NoError(t, l.Add(b.name, b.data[:n]))
			b.data = b.data[n:]
		}
	}
	require.NoError(t, l.Finish())
	require.Equal(t, dump(t, s), dump(t, r))
}

func TestLoaderRefuses(t *testing.T) {
	t.Parallel()
	s := newTestShard(t, 1, 2)
	train(t, s, &batches{}, rand.New(rand.NewPCG(2, 3)), 5)
	good, whole := sections(t, s), dump(t, s)
	find := func(name string) int {
		for i := range good {
			if good[i].name == name {
				return i
			}
		}
		t.Fatal(name)
		return 0
	}
	edit := func(name string, f func([]byte) []byte) func([]section) []section {
		return func(in []section) []section {
			i := find(name)
			in[i].data = f(bytes.Clone(in[i].data))
			return in
		}
	}
	without := func(name string) func([]section) []section {
		return func(in []section) []section { i := find(name); return append(in[:i:i], in[i+1:]...) }
	}
	gobOf := func(v any) []byte {
		var b bytes.Buffer
		require.NoError(t, gob.NewEncoder(&b).Encode(v))
		return b.Bytes()
	}
	meta := func(f func(*cutMeta)) func([]section) []section {
		return edit(sectionMeta, func(data []byte) []byte {
			var m cutMeta
			require.NoError(t, gob.NewDecoder(bytes.NewReader(data)).Decode(&m))
			f(&m)
			return gobOf(&m)
		})
	}
	for name, c := range map[string]struct {
		spoil func([]section) []section
		want  error
	}{
		"nothing":            {func([]section) []section { return nil }, ErrCorrupt},
		"meta only":          {func(in []section) []section { return in[:1] }, ErrCorrupt},
		"no meta":            {without(sectionMeta), ErrCorrupt},
		"no ledger":          {without(sectionLedger), ErrCorrupt},
		"no table":           {without("sparse/weights"), ErrCorrupt},
		"no block":           {without("dense/matrix"), ErrCorrupt},
		"unknown section":    {func(in []section) []section { return append(in, section{"more", nil}) }, ErrCorrupt},
		"sections reordered": {func(in []section) []section { in[0], in[1] = in[1], in[0]; return in }, ErrCorrupt},
		"meta is no gob":     {edit(sectionMeta, func(b []byte) []byte { return b[:7] }), ErrCorrupt},
		"ledger is no gob":   {edit(sectionLedger, func(b []byte) []byte { return b[:9] }), ErrCorrupt},
		"ledger of another":  {edit(sectionLedger, func([]byte) []byte { return gobOf(ledger.New(9, 0).Snapshot()) }), ErrCorrupt},
		"row cut off":        {edit("sparse/weights", func(b []byte) []byte { return b[:len(b)-4] }), ErrCorrupt},
		"byte cut off":       {edit("sparse/weights", func(b []byte) []byte { return b[:len(b)-1] }), ErrCorrupt},
		"rows missing":       {edit("sparse/weights", func(b []byte) []byte { return b[:len(b)-16] }), ErrCorrupt},
		"row twice":          {edit("sparse/weights", func(b []byte) []byte { copy(b[16:32], b); return b }), ErrCorrupt},
		"row of another":     {edit("sparse/weights", func(b []byte) []byte { b[7] ^= 0x55; b[3] ^= 0x5a; b[0] ^= 1; return flipToOther(b) }), ErrCorrupt},
		"element too many":   {edit("dense/matrix", func(b []byte) []byte { return append(b, 0, 0, 0, 0) }), ErrCorrupt},
		"element too few":    {edit("dense/matrix", func(b []byte) []byte { return b[:4] }), ErrCorrupt},
		"version":            {meta(func(m *cutMeta) { m.V = 2 }), ErrMismatch},
		"shard":              {meta(func(m *cutMeta) { m.Shard = 0 }), ErrMismatch},
		"lanes":              {meta(func(m *cutMeta) { m.Lanes = 5 }), ErrMismatch},
		"sizes":              {meta(func(m *cutMeta) { m.Words = nil }), ErrCorrupt},
		"parameters":         {meta(func(m *cutMeta) { m.Parameters = []byte("{") }), ErrCorrupt},
		"another seed": {meta(func(m *cutMeta) {
			m.Parameters = bytes.Replace(m.Parameters, []byte(`"seed":7`), []byte(`"seed":8`), 1)
		}), ErrMismatch},
		"another name":      {meta(func(m *cutMeta) { m.Parameters = bytes.Replace(m.Parameters, []byte(`"bias"`), []byte(`"base"`), 1) }), ErrMismatch},
		"another optimizer": {meta(func(m *cutMeta) { m.Parameters = bytes.Replace(m.Parameters, []byte(`adagrad`), []byte(`adam`), 1) }), ErrMismatch},
		"a parameter less":  {meta(func(m *cutMeta) { m.Parameters = []byte(`{"v":1,"seed":7,"shards":2}`) }), ErrMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			into := newTestShard(t, 1, 2)
			before := dump(t, into)
			l := into.NewLoader()
			err := load(l, c.spoil(append([]section(nil), good...)))
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, dump(t, into), "a failed load changes nothing")
			l.Reset()
			require.NoError(t, load(l, good))
			require.Equal(t, whole, dump(t, into))
		})
	}
}

// A blank shard answers nothing until it has values: a checkpoint's, or the
// initial ones. A checkpoint without a parameter's words does not count as one.
func TestBlankShard(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	blank := func() *Shard {
		b, err := NewShard(s.job, s.number, s.lanes, ShardOptions{Blank: true})
		require.NoError(t, err)
		return b
	}
	b := blank()
	_, err := b.Push(1, &wire.PushData{Meta: wire.Meta{Token: 1}}, nil)
	require.ErrorIs(t, err, ErrBlank)
	require.ErrorIs(t, b.Pull([]wire.BlockRef{{Param: pBias}}, nil, &values{}, nil), ErrBlank)
	_, err = b.Cut()
	require.ErrorIs(t, err, ErrBlank)
	require.ErrorIs(t, b.Err(), ErrBlank)
	b.Fill()
	require.Equal(t, dump(t, s), dump(t, b))

	train(t, s, &batches{}, rand.New(rand.NewPCG(5, 6)), 3)
	b = blank()
	require.NoError(t, load(b.NewLoader(), sections(t, s)))
	require.Equal(t, dump(t, s), dump(t, b))
	b.Fill()
	require.Equal(t, dump(t, s), dump(t, b), "what is loaded stays")

	var without []section
	for _, x := range sections(t, s) {
		if x.name == sectionMeta {
			var m cutMeta
			require.NoError(t, gob.NewDecoder(bytes.NewReader(x.data)).Decode(&m))
			m.Words[pMatrix] = 0
			var edited bytes.Buffer
			require.NoError(t, gob.NewEncoder(&edited).Encode(m))
			x.data = edited.Bytes()
		}
		if x.name != "dense/matrix" {
			without = append(without, x)
		}
	}
	b = blank()
	require.ErrorIs(t, load(b.NewLoader(), without), ErrCorrupt)
	require.ErrorIs(t, b.Err(), ErrBlank)
}

// flipToOther changes the first row's key to one of the other shard of two.
func flipToOther(b []byte) []byte {
	for k := byte(0); ; k++ {
		copy(b, make([]byte, 8))
		b[0] = k
		if job.ShardOf(uint64(k), 2) == 0 {
			return b
		}
	}
}

func TestWriteToStopsOnAnError(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	train(t, s, &batches{}, rand.New(rand.NewPCG(2, 3)), 2)
	total := len(sections(t, s))
	for at := range total {
		c, err := s.Cut()
		require.NoError(t, err)
		calls, full := 0, fmt.Errorf("disk full")
		err = c.WriteTo(func(string, []byte) error {
			if calls++; calls == at+1 {
				return full
			}
			return nil
		})
		require.ErrorIs(t, err, full)
		require.Equal(t, at+1, calls)
	}
}

func TestExport(t *testing.T) {
	t.Parallel()
	s := theShard(t)
	mustPush(t, s, (&batches{}).next([]wire.DenseBlock{block(pTotal, 0, 12345678)},
		rows(pSeen, []uint64{9, 1 << 63, 2}, 3, 1, 1<<24), rows(pEmbedding, []uint64{4}, 0, 0, 0)))
	all := func(param int) (out []modelfile.Run) {
		for r := range s.Export(param) {
			out = append(out, modelfile.Run{First: r.First, Keys: slices.Clone(r.Keys), Floats: slices.Clone(r.Floats), Counts: slices.Clone(r.Counts)})
		}
		return out
	}
	require.Equal(t, []modelfile.Run{{Counts: []uint64{12345678}}}, all(pTotal))
	require.Equal(t, []modelfile.Run{{Floats: []float32{0}}}, all(pBias))
	require.Equal(t, []modelfile.Run{{Keys: []uint64{2, 9, 1 << 63}, Counts: []uint64{1 << 24, 3, 1}}}, all(pSeen))
	require.EqualValues(t, 3, s.Rows(pSeen))
	require.Equal(t, []modelfile.Run{{Keys: []uint64{4}, Floats: pullRows(t, s, pEmbedding, 4)}}, all(pEmbedding))
	elements := 0
	for _, r := range all(pMatrix) {
		require.Zero(t, r.First%job.BlockSize)
		elements += len(r.Floats)
	}
	require.Equal(t, 5*(job.BlockSize-1), elements)
	require.Zero(t, s.Rows(pMatrix))
	for range s.Export(pSeen) {
		break
	}
	for range s.Export(pMatrix) {
		break
	}
}

func FuzzLoader(f *testing.F) {
	small := testParameters(2)
	small.List[pMatrix].Shape = []int{10}
	fresh := func(t testing.TB) *Shard {
		s, err := NewShard(small, 1, testLanes, ShardOptions{})
		require.NoError(t, err)
		return s
	}
	s := fresh(f)
	train(f, s, &batches{}, rand.New(rand.NewPCG(2, 3)), 2)
	good := sections(f, s)
	f.Add(uint8(0), good[0].data)
	f.Add(uint8(1), good[1].data)
	f.Add(uint8(len(good)-1), good[len(good)-1].data[:32])
	f.Add(uint8(3), []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		into := fresh(t)
		blocks := append([]section(nil), good...)
		blocks[int(at)%len(blocks)].data = data
		if err := load(into.NewLoader(), blocks); err == nil {
			mustPush(t, into, &wire.PushData{Meta: wire.Meta{Pass: 1000, Token: 1 << 60}})
			into.Stats()
		}
	})
}
