package wire

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pulled says how many values a drawn pull asks for; the layout does not care.
const (
	blockValues = 3
	rowDim      = 2
)

func writeRequest(b *Buffer, r *Request) {
	var w RequestWriter
	w.Start(b, r.Job, r.Seq)
	for _, s := range r.Shards {
		w.Section(s.Shard, s.Generation)
		if s.Barrier.Kind != NoBarrier {
			w.Barrier(s.Barrier)
		}
		if s.Push != nil {
			w.Push(&s.Push.Meta, s.Push.Part)
			for _, d := range s.Push.Dense {
				w.PushBlock(d.Param, d.Block, d.Values)
			}
			for _, d := range s.Push.Sparse {
				w.PushRows(d.Param, d.Keys, d.Values)
			}
			if s.Push.More {
				w.More()
			}
		}
		for _, d := range s.Dense {
			w.PullBlock(d.Param, d.Block, blockValues)
		}
		for _, d := range s.Sparse {
			w.PullKeys(d.Param, d.Keys, rowDim)
		}
	}
	w.Finish()
}

func writeResponse(b *Buffer, r *Response) {
	var w ResponseWriter
	w.Start(b, r.Seq)
	for _, s := range r.Shards {
		w.Section(s.Shard, s.Generation)
		half := len(s.Values) / 2
		copy(w.Values(half), s.Values[:half])
		copy(w.Values(len(s.Values)-half), s.Values[half:])
		w.Answer(s.Code, s.Finished, s.Next, s.Reason)
	}
	w.Finish()
}

var (
	params  = rapid.Uint16()
	u32     = rapid.Uint32()
	values  = rapid.SliceOfN(rapid.Float32(), 0, 9)
	keys    = rapid.SliceOfN(rapid.Uint64(), 0, 9)
	natural = rapid.Int64Min(0)
)

func drawPush(t *rapid.T) *PushData {
	p := &PushData{Meta: Meta{
		Pass: int(natural.Draw(t, "pass")), Rank: natural.Draw(t, "rank"), N: natural.Draw(t, "n"),
		Token: rapid.Int64().Draw(t, "token"), Last: rapid.Bool().Draw(t, "last"), Void: rapid.Bool().Draw(t, "void"), Gap: rapid.Bool().Draw(t, "gap"),
		Records: int(u32.Draw(t, "records")), Loss: rapid.Float64().Draw(t, "loss"), Weight: rapid.Float64().Draw(t, "weight"),
	}, Part: int(u32.Draw(t, "part")), More: rapid.Bool().Draw(t, "more")}
	for range rapid.IntRange(0, 3).Draw(t, "blocks") {
		p.Dense = append(p.Dense, DenseBlock{params.Draw(t, "p"), u32.Draw(t, "block"), values.Draw(t, "values")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "tables") {
		p.Sparse = append(p.Sparse, SparseRows{params.Draw(t, "p"), keys.Draw(t, "keys"), values.Draw(t, "values")})
	}
	return p
}

func drawBarrier(t *rapid.T, push bool) (b Barrier) {
	if !rapid.Bool().Draw(t, "barrier?") {
		return b
	}
	kinds := []BarrierKind{Await, Idle}
	if push {
		kinds = []BarrierKind{Arrive}
	}
	b.Kind, b.Step = rapid.SampledFrom(kinds).Draw(t, "kind"), natural.Draw(t, "step")
	copy(b.Trainer[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "trainer"))
	return b
}

func drawRequest(t *rapid.T) *Request {
	r := &Request{Seq: rapid.Uint64().Draw(t, "seq")}
	copy(r.Job[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "job"))
	for range rapid.IntRange(0, 4).Draw(t, "sections") {
		s := ShardRequest{Shard: int(u32.Draw(t, "shard")), Generation: rapid.Int64().Draw(t, "generation")}
		if rapid.Bool().Draw(t, "push?") {
			s.Push = drawPush(t)
		}
		s.Barrier = drawBarrier(t, s.Push != nil)
		for range rapid.IntRange(0, 3).Draw(t, "blocks") {
			s.Dense = append(s.Dense, BlockRef{params.Draw(t, "p"), u32.Draw(t, "block")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "tables") {
			s.Sparse = append(s.Sparse, KeyRef{params.Draw(t, "p"), keys.Draw(t, "keys")})
		}
		r.Shards = append(r.Shards, s)
	}
	return r
}

func drawResponse(t *rapid.T) *Response {
	r := &Response{Seq: rapid.Uint64().Draw(t, "seq")}
	for range rapid.IntRange(0, 4).Draw(t, "sections") {
		s := ShardResponse{
			Shard: int(u32.Draw(t, "shard")), Generation: rapid.Int64().Draw(t, "generation"),
			Code: Code(rapid.IntRange(0, int(codes)-1).Draw(t, "code")), Finished: rapid.Bool().Draw(t, "finished"),
			Next: rapid.Int64().Draw(t, "next"), Reason: rapid.StringN(0, 20, 100).Draw(t, "reason"),
		}
		if !s.Code.Refused() {
			s.Values = values.Draw(t, "values")
		}
		r.Shards = append(r.Shards, s)
	}
	return r
}

// text is how two messages are compared: nil and empty slices are the same.
func (r *Request) text() string {
	var b Buffer
	b.reset()
	writeRequest(&b, r)
	return hex.EncodeToString(b.Body())
}

func (r *Response) text() string {
	var b Buffer
	b.reset()
	writeResponse(&b, r)
	return hex.EncodeToString(b.Body())
}

// Two different messages after each other through the same buffer and the same
// destination: nothing of the first may shine through.
func TestRequestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pool := NewPool(1)
		var got Request
		for range 2 {
			want := drawRequest(t)
			b := pool.Get()
			writeRequest(b, want)
			require.NoError(t, got.Decode(b.Body()))
			requireRequest(t, want, &got)
			require.Equal(t, want.text(), got.text())
			b.Release()
		}
	})
}

func requireRequest(t require.TestingT, want, got *Request) {
	require.Equal(t, want.Job, got.Job)
	require.Equal(t, want.Seq, got.Seq)
	require.Len(t, got.Shards, len(want.Shards))
	for i := range want.Shards {
		w, g := &want.Shards[i], &got.Shards[i]
		require.Equal(t, w.Shard, g.Shard)
		require.Equal(t, w.Generation, g.Generation)
		require.Equal(t, w.Barrier, g.Barrier)
		require.Equal(t, w.Push == nil, g.Push == nil)
		if w.Push != nil {
			require.Equal(t, w.Push.Meta, g.Push.Meta)
			require.Equal(t, w.Push.Part, g.Push.Part)
			require.Equal(t, w.Push.More, g.Push.More)
			require.Len(t, g.Push.Dense, len(w.Push.Dense))
			for k, d := range w.Push.Dense {
				require.Equal(t, d.Param, g.Push.Dense[k].Param)
				require.Equal(t, d.Block, g.Push.Dense[k].Block)
				require.Equal(t, append([]float32{}, d.Values...), append([]float32{}, g.Push.Dense[k].Values...))
			}
			require.Len(t, g.Push.Sparse, len(w.Push.Sparse))
			for k, d := range w.Push.Sparse {
				require.Equal(t, d.Param, g.Push.Sparse[k].Param)
				require.Equal(t, append([]uint64{}, d.Keys...), append([]uint64{}, g.Push.Sparse[k].Keys...))
				require.Equal(t, append([]float32{}, d.Values...), append([]float32{}, g.Push.Sparse[k].Values...))
			}
		}
		require.Equal(t, append([]BlockRef{}, w.Dense...), append([]BlockRef{}, g.Dense...))
		require.Len(t, g.Sparse, len(w.Sparse))
		for k, d := range w.Sparse {
			require.Equal(t, d.Param, g.Sparse[k].Param)
			require.Equal(t, append([]uint64{}, d.Keys...), append([]uint64{}, g.Sparse[k].Keys...))
		}
	}
}

func TestResponseRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pool := NewPool(1)
		var got Response
		for range 2 {
			want := drawResponse(t)
			b := pool.Get()
			writeResponse(b, want)
			require.NoError(t, got.Decode(b.Body()))
			require.Equal(t, want.Seq, got.Seq)
			require.Len(t, got.Shards, len(want.Shards))
			for i, w := range want.Shards {
				g := got.Shards[i]
				g.Values, w.Values = append([]float32{}, g.Values...), append([]float32{}, w.Values...)
				require.Equal(t, w, g)
			}
			b.Release()
		}
	})
}

func TestRefusalDropsValues(t *testing.T) {
	t.Parallel()
	b := NewPool(1).Get()
	var w ResponseWriter
	w.Start(b, 1)
	w.Section(3, 9)
	clear(w.Values(5))
	w.Answer(Failed, false, 0, strings.Repeat("x", 2*maxReason))
	w.Section(4, 9)
	w.Answer(OK, false, 0, "")
	w.Finish()
	var r Response
	require.NoError(t, r.Decode(b.Body()))
	require.Empty(t, r.Shards[0].Values)
	require.Len(t, r.Shards[0].Reason, maxReason)
	require.Equal(t, OK, r.Shards[1].Code)
}

// sample is the message of docs/wire.md.
func sample() *Request {
	return &Request{Job: [16]byte{0xAA, 15: 0xBB}, Seq: 7, Shards: []ShardRequest{{
		Shard: 2, Generation: 5,
		Push: &PushData{
			Meta:   Meta{Pass: 1, Rank: 33, N: 4, Token: 1000, Last: true, Records: 64, Loss: 1.5, Weight: 32.5},
			Dense:  []DenseBlock{{Param: 0, Block: 0, Values: []float32{1}}},
			Sparse: []SparseRows{{Param: 1, Keys: []uint64{10, 20}, Values: []float32{0.5, -0.5}}},
		},
		Dense:  []BlockRef{{Param: 0, Block: 0}},
		Sparse: []KeyRef{{Param: 1, Keys: []uint64{30}}},
	}}}
}

// The layout is a format: other programs write it.
func TestLayoutIsPinned(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.Join([]string{
		"0200010001000000", "aa00000000000000", "00000000000000bb", "0700000000000000", // header
		"0200000005000000", "0500000000000000", "0100000001000000", "0100000001000000", "c000000000000000", // section
		"0100000000000000", "2100000000000000", "0400000000000000", "e803000000000000", // push
		"000000000000f83f", "0000000000404040", "4000000000000000",
		"0000000000000000", "0100000000000000", "0000803f00000000", // pushed block
		"0100000002000000", "0200000000000000", "0a00000000000000", "1400000000000000", "0000003f000000bf", // pushed rows
		"0000000000000000",                                         // pulled block
		"0100000001000000", "0000000000000000", "1e00000000000000", // pulled keys
	}, ""), sample().text())

	answer := Response{Seq: 7, Shards: []ShardResponse{{
		Shard: 2, Generation: 5, Code: Applied, Finished: true, Next: 5, Values: []float32{1, 2, 3},
	}}}
	require.Equal(t, strings.Join([]string{
		"0200020001000000", "0700000000000000", // header
		"0200000002010000", "0500000000000000", "0500000000000000", "0300000000000000", // section
		"0000803f00000040", "0000404000000000", // values
	}, ""), answer.text())
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	whole, err := hex.DecodeString(sample().text())
	require.NoError(t, err)
	cases := map[string]struct {
		at int
		to byte
	}{
		"another version":         {0, 1},
		"a response":              {2, kindResponse},
		"too many sections":       {4, 2},
		"too few sections":        {4, 0},
		"an unknown flag":         {32 + 5, 0x01},
		"a push that awaits":      {32 + 4, 0x65},
		"a push that is idle":     {32 + 4, 0xa5},
		"an await of no step":     {32 + 4, 0x40},
		"a part without a push":   {32 + 4, 0x42},
		"values without a push":   {32 + 4, 0},
		"too many pushed blocks":  {32 + 16, 9},
		"too many pushed rows":    {32 + 20, 2},
		"too many pulled blocks":  {32 + 24, 2},
		"too few pulled keys":     {32 + 28, 0},
		"a section too long":      {32 + 32, 0xf0},
		"a section too short":     {32 + 32, 0x18},
		"a section of odd length": {32 + 32, 0xbf},
		"a negative pass":         {72 + 7, 0x80},
		"a negative rank":         {80 + 7, 0x80},
		"a negative batch":        {88 + 7, 0x80},
		"parameter 65536":         {128 + 2, 1},
		"a block of 2^31 values":  {136 + 3, 0x80},
		"padding that is not 0":   {144 + 4, 1},
		"2^31 pushed keys":        {152 + 7, 0x80},
		"2^32 row values":         {160 + 4, 1},
		"pulled parameter 65536":  {192 + 2, 1},
		"2^31 pulled keys":        {200 + 7, 0x80},
		"values of pulled keys":   {208, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := Aligned(len(whole))
			copy(body, whole)
			require.NotEqual(t, c.to, body[c.at])
			body[c.at] = c.to
			var r Request
			require.ErrorIs(t, r.Decode(body), ErrFormat)
		})
	}
	t.Run("cut anywhere", func(t *testing.T) {
		t.Parallel()
		var r Request
		for n := range len(whole) {
			body := Aligned(n)
			copy(body, whole)
			require.ErrorIs(t, r.Decode(body), ErrFormat, "%d bytes", n)
		}
	})
	t.Run("not aligned", func(t *testing.T) {
		t.Parallel()
		body := Aligned(len(whole) + 4)[4:]
		copy(body, whole)
		var r Request
		require.ErrorIs(t, r.Decode(body), ErrFormat)
	})
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		var r Response
		require.ErrorIs(t, r.Decode(make([]byte, MaxMessage+8)), ErrFormat)
	})
}

// A message of nothing but claims must not make the decoder allocate them.
func TestDecodeAllocatesNoClaims(t *testing.T) {
	claims := Aligned(requestHeader + requestSection)
	le.PutUint16(claims, Version)
	le.PutUint16(claims[2:], kindRequest)
	for _, at := range []int{4, 32 + 16, 32 + 20, 32 + 24, 32 + 28} {
		body := Aligned(len(claims))
		copy(body, claims)
		le.PutUint32(body[4:], 1)
		le.PutUint32(body[32+4:], flagPush)
		le.PutUint64(body[32+32:], requestSection)
		le.PutUint32(body[at:], math.MaxUint32)
		var r Request
		require.Error(t, r.Decode(body))
		require.LessOrEqual(t, cap(r.Shards), 1)
		for _, s := range r.Shards[:cap(r.Shards)] {
			require.Zero(t, cap(s.Dense)+cap(s.Sparse)+cap(s.push.Dense)+cap(s.push.Sparse))
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	pool := NewPool(1)
	want := sample()
	var w RequestWriter
	var a ResponseWriter
	var r Request
	var q Response
	var n int
	allocs := testing.AllocsPerRun(100, func() {
		b := pool.Get()
		s := &want.Shards[0]
		w.Start(b, want.Job, want.Seq)
		w.Section(s.Shard, s.Generation)
		w.Push(&s.Push.Meta, 0)
		w.PushRows(1, s.Push.Sparse[0].Keys, s.Push.Sparse[0].Values)
		w.PullKeys(1, s.Sparse[0].Keys, 1)
		w.Finish()
		if r.Decode(b.Body()) != nil {
			panic("decode")
		}
		b.Release()
		b = pool.Get()
		a.Start(b, 1)
		a.Section(1, 1)
		clear(a.Values(100))
		a.Answer(Applied, false, 1, "")
		a.Finish()
		if q.Decode(b.Body()) != nil {
			panic("decode")
		}
		n += len(q.Shards[0].Values) + len(r.Shards[0].Push.Sparse)
		b.Release()
	})
	require.Zero(t, allocs)
	require.NotZero(t, n)
}

func TestBufferKeepsAlignmentAndContents(t *testing.T) {
	t.Parallel()
	b := NewPool(1).Get()
	var want []byte
	for i := range 300 {
		chunk := bytes.Repeat([]byte{byte(i)}, i)
		copy(b.Extend(len(chunk)), chunk)
		want = append(want, chunk...)
		require.True(t, aligned(b.Body()))
	}
	require.Equal(t, want, b.Body())
	require.Len(t, b.Frame(5), len(want)+5)
	require.Equal(t, want, b.Frame(5)[5:])
}

func TestPoolForgetsHugeBuffers(t *testing.T) {
	t.Parallel()
	p := NewPool(1)
	huge := p.Get()
	huge.Extend(kept + 1)
	huge.Release()
	require.Empty(t, p.free)
	small := p.Get()
	small.Release()
	require.Same(t, small, p.Get())
}

func TestCodes(t *testing.T) {
	t.Parallel()
	require.Len(t, codeNames, int(codes))
	for c := range codes {
		require.NotEmpty(t, c.String())
		require.Equal(t, c >= GoBack, c.Refused())
	}
	require.Equal(t, "code(200)", Code(200).String())
}

func FuzzRequest(f *testing.F) {
	whole, _ := hex.DecodeString(sample().text())
	f.Add(whole)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	f.Add(make([]byte, requestHeader))
	f.Fuzz(func(t *testing.T, data []byte) {
		body := Aligned(len(data))
		copy(body, data)
		var r Request
		if r.Decode(body) == nil {
			require.Equal(t, hex.EncodeToString(body), r.text(), "one message, two encodings")
		}
	})
}

func FuzzResponse(f *testing.F) {
	answer := Response{Seq: 7, Shards: []ShardResponse{
		{Shard: 2, Generation: 5, Code: Applied, Finished: true, Next: 5, Values: []float32{1, 2, 3}},
		{Shard: 3, Generation: 5, Code: GoBack, Next: 5, Reason: "wants batch 5"},
	}}
	whole, _ := hex.DecodeString(answer.text())
	f.Add(whole)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		body := Aligned(len(data))
		copy(body, data)
		var r Response
		if r.Decode(body) != nil {
			return
		}
		for _, s := range r.Shards {
			if s.Code.Refused() && len(s.Values) != 0 || len(s.Reason) > maxReason {
				return // readable, but never written so
			}
		}
		require.Equal(t, hex.EncodeToString(body), r.text(), "one message, two encodings")
	})
}
