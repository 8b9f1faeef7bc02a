package reader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/permute"
)

// write puts files with the given contents into a new directory.
func write(tb testing.TB, contents ...string) []string {
	tb.Helper()
	dir := tb.TempDir()
	var paths []string
	for i, c := range contents {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("f%02d", i)))
		require.NoError(tb, os.WriteFile(paths[i], []byte(c), 0o600))
	}
	return paths
}

func plan(tb testing.TB, chunk int64, paths ...string) *Plan {
	tb.Helper()
	p, err := NewPlan(paths, Libsvm, chunk)
	require.NoError(tb, err)
	return p
}

// records reads a chunk to its end and gives each record as text. It checks
// what holds for every chunk: all batches but the last are full, and exactly
// the last is marked.
func records(p *Plan, chunk int64, o Options, skip int64) (list []string, batches int, err error) {
	r, err := p.Open(context.Background(), chunk, o)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	r.SkipTo(skip)
	var b Batch
	last := false
	for {
		err := r.Next(&b)
		switch {
		case errors.Is(err, io.EOF) && (last || skip > 0):
			return list, batches, nil
		case err != nil:
			return list, batches, err
		case last:
			return nil, 0, errors.New("a batch follows the last one")
		case !b.Last && b.Records() != o.Batch, b.Records() > o.Batch:
			return nil, 0, fmt.Errorf("a batch of %d records", b.Records())
		case b.Last && b.Records() == 0 && batches+int(skip) > 0:
			return nil, 0, errors.New("an empty batch after a full one")
		case len(b.Labels) != b.Records(), len(b.Keys) != len(b.Values), b.LabelWidth != 1:
			return nil, 0, errors.New("columns of different lengths")
		case b.Groups != nil && len(b.Groups) != b.Records():
			return nil, 0, errors.New("groups of a different length")
		}
		last = b.Last
		batches++
		for i := range b.Records() {
			list = append(list, text(&b, i))
		}
	}
}

func text(b *Batch, i int) string {
	var s strings.Builder
	fmt.Fprint(&s, b.Labels[i])
	if b.Groups != nil {
		fmt.Fprintf(&s, " qid:%d", b.Groups[i])
	}
	keys, values := b.Record(i)
	for k := range keys {
		fmt.Fprintf(&s, " %d:%v", keys[k], values[k])
	}
	return s.String()
}

// all reads all chunks of a plan.
func all(p *Plan, o Options) (list []string, err error) {
	for c := range p.Chunks() {
		got, _, err := records(p, c, o, 0)
		if err != nil {
			return nil, fmt.Errorf("chunk %d: %w", c, err)
		}
		list = append(list, got...)
	}
	return list, nil
}

// expected is the records of texts, found line by line in the plainest way.
func expected(texts ...string) (list []string) {
	for _, t := range texts {
		for line := range strings.Lines(t) {
			if line = strings.TrimSpace(line); line != "" {
				list = append(list, line)
			}
		}
	}
	return list
}

// numbered is n records that tell where they come from, with some variety in
// their length.
func numbered(file, n int, end string) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "%d %d:1 %d:0.5", i%2, file*1000+i, i)
		for k := range i % 3 {
			fmt.Fprintf(&s, " %d:1", 100+k)
		}
		s.WriteString(end)
	}
	return s.String()
}

// TestChunkEdges: the records of all chunks are those of the files, in order,
// for every chunk size from one byte up to beyond the largest file.
func TestChunkEdges(t *testing.T) {
	t.Parallel()
	long := "1" + strings.Repeat(" 77:1", 60)
	for name, texts := range map[string][]string{
		"one byte":                     {"1"},
		"one record":                   {"1 5:1\n"},
		"no final newline":             {numbered(1, 7, "\n") + "0 9:1"},
		"final newline":                {numbered(1, 8, "\n")},
		"CRLF":                         {numbered(1, 7, "\r\n")},
		"CRLF, last without LF":        {numbered(1, 5, "\r\n") + "1 3:1\r"},
		"CRLF, last without both":      {numbered(1, 5, "\r\n") + "1 3:1"},
		"blank lines":                  {"\n\n" + numbered(1, 3, "\n\n \n\t\n") + "\r\n\r\n"},
		"only blank lines":             {"\n\n  \n\r\n"},
		"a record longer than a chunk": {"0 1:1\n" + long + "\n0 2:1\n", long, long + "\n" + long + "\n"},
		"several files, one of them empty": {numbered(1, 5, "\n"), "", numbered(2, 4, "\r\n") + "1 8:1", "\n",
			numbered(3, 1, "\n")},
		"trailing blanks": {numbered(1, 6, "  \n"), numbered(1, 3, " \t\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paths := write(t, texts...)
			want := expected(texts...)
			largest := len(slices.MaxFunc(texts, func(a, b string) int { return len(a) - len(b) }))
			for chunk := 1; chunk <= largest+2; chunk++ {
				p := plan(t, int64(chunk), paths...)
				for _, o := range []Options{{Batch: 1}, {Batch: 3}, {Batch: 100, Shuffle: true, Seed: 4}} {
					got, err := all(p, o)
					require.NoError(t, err, "chunk %d", chunk)
					if o.Shuffle {
						require.ElementsMatch(t, want, got, "chunk %d", chunk)
						continue
					}
					require.Equal(t, want, got, "chunk %d, batch %d", chunk, o.Batch)
				}
			}
		})
	}
}

// TestChunkSizes: files of k·c−1, k·c and k·c+1 bytes, and of that many
// records.
func TestChunkSizes(t *testing.T) {
	t.Parallel()
	const line = "1 23:1\n" // seven bytes
	for _, c := range []int{1, 2, 6, 7, 8, 13, 14, 15, 49, 64} {
		for k := range 4 {
			for _, d := range []int{-1, 0, 1} {
				if n := k*c + d; n > 0 {
					bytesFile := strings.Repeat(line, n/7+1)[:n] // cut anywhere
					if tail := bytesFile[n/7*7:]; tail != "" && tail != "1" && !strings.HasPrefix(tail, "1 2") {
						bytesFile = bytesFile[:n/7*7] + strings.Repeat("\n", n%7)
					}
					if strings.HasSuffix(bytesFile, ":") { // a value is missing there
						bytesFile = bytesFile[:n-1] + " "
					}
					paths := write(t, bytesFile, strings.Repeat(line, n))
					for size, path := range map[int64]string{int64(c): paths[0], int64(7 * c): paths[1]} {
						p := plan(t, size, path)
						info, err := os.Stat(path)
						require.NoError(t, err)
						require.Equal(t, (info.Size()+size-1)/size, p.Chunks())
						raw, err := os.ReadFile(path)
						require.NoError(t, err)
						got, err := all(p, Options{Batch: 2})
						require.NoError(t, err)
						require.Len(t, got, len(expected(string(raw))), "%q in chunks of %d", raw, size)
					}
				}
			}
		}
	}
}

// TestLast: where the count divides evenly the mark is on the full batch; an
// empty chunk has one empty batch; broken records at the end add no batch.
func TestLast(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text  string
		sizes []int
	}{
		"divides evenly":        {numbered(1, 6, "\n"), []int{3, 3}},
		"does not":              {numbered(1, 7, "\n"), []int{3, 3, 1}},
		"fewer than one batch":  {numbered(1, 2, "\n"), []int{2}},
		"nothing":               {"\n\n\n", []int{0}},
		"nothing good":          {"x\ny\n", []int{0}},
		"broken at the end":     {numbered(1, 6, "\n") + "x\ny\n", []int{3, 3}},
		"blank at the end":      {numbered(1, 3, "\n") + "\n \n#\n", []int{3}},
		"broken in the middle":  {numbered(1, 3, "\n") + "x\n" + numbered(1, 3, "\n"), []int{3, 3}},
		"broken at the start":   {"x\n" + numbered(1, 4, "\n"), []int{3, 1}},
		"one record, no end":    {"1", []int{1}},
		"batches of everything": {numbered(1, 3, "\n"), []int{3}},
	} {
		for _, shuffle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shuffle %v", name, shuffle), func(t *testing.T) {
				t.Parallel()
				p := plan(t, 1<<20, write(t, tc.text)...)
				r, err := p.Open(t.Context(), 0, Options{Batch: 3, MaxBad: 2, Shuffle: shuffle})
				require.NoError(t, err)
				defer r.Close()
				var b Batch
				for i, size := range tc.sizes {
					require.NoError(t, r.Next(&b))
					require.Equal(t, size, b.Records())
					require.Equal(t, i == len(tc.sizes)-1, b.Last)
				}
				require.ErrorIs(t, r.Next(&b), io.EOF)
				require.ErrorIs(t, r.Next(&b), io.EOF)
			})
		}
	}
}

// TestSkipTo: batch n is the same whether those before it were delivered.
func TestSkipTo(t *testing.T) {
	t.Parallel()
	text := strings.Replace(numbered(1, 40, "\n"), "\n", "\nbroken\n", 5)
	p := plan(t, 1<<20, write(t, text)...)
	for _, shuffle := range []bool{false, true} {
		for _, batch := range []int{1, 3, 8, 40, 64} {
			o := Options{Batch: batch, Shuffle: shuffle, Seed: 5, MaxBad: 10}
			want, n, err := records(p, 0, o, 0)
			require.NoError(t, err)
			for skip := range n + 3 {
				got, rest, err := records(p, 0, o, int64(skip))
				require.NoError(t, err)
				require.Equal(t, max(0, n-skip), rest)
				require.Equal(t, want[min(skip*batch, len(want)):], append([]string{}, got...))
			}
		}
	}
}

// TestWindows: beyond 16,384 records there is more than one window; each is
// permuted within itself, as documented.
func TestWindows(t *testing.T) {
	t.Parallel()
	const n = 2*Window + 700
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "0 %d:1\n", i)
	}
	p := plan(t, 300000, write(t, s.String())...)
	require.Equal(t, int64(2), p.Chunks())
	o := Options{Batch: 1000, Shuffle: true, Seed: 9, Pass: 3}
	plain := o
	plain.Shuffle = false
	for c := range p.Chunks() {
		got, batches, err := records(p, c, o, 0)
		require.NoError(t, err)
		inOrder, _, err := records(p, c, plain, 0)
		require.NoError(t, err)
		require.False(t, slices.Equal(inOrder, got))
		var want []string
		for window := range slices.Chunk(inOrder, Window) {
			perm := permute.New(int64(len(window)), 9, 3, uint64(c))
			for i := range window {
				want = append(want, window[perm.At(int64(i))])
			}
		}
		require.True(t, slices.Equal(want, got))
		for skip := int64(15); skip < 19 && skip < int64(batches); skip++ {
			rest, _, err := records(p, c, o, skip)
			require.NoError(t, err)
			require.True(t, slices.Equal(want[skip*1000:], rest))
		}
	}
	for name, other := range map[string]Options{
		"seed": {Batch: 1000, Shuffle: true, Seed: 10, Pass: 3}, "pass": {Batch: 1000, Shuffle: true, Seed: 9, Pass: 4}} {
		a, _, err := records(p, 0, o, 0)
		require.NoError(t, err)
		b, _, err := records(p, 0, other, 0)
		require.NoError(t, err)
		require.False(t, slices.Equal(a, b), name)
		slices.Sort(a)
		slices.Sort(b)
		require.True(t, slices.Equal(a, b), name)
	}
}

// TestGolden pins the content of shuffled batches: it is part of the formats.
func TestGolden(t *testing.T) {
	t.Parallel()
	p := plan(t, 1<<20, write(t, "0 0:1\n0 1:1\n0 2:1\n0 3:1\n0 4:1\n0 5:1\n0 6:1\n0 7:1\n")...)
	got, _, err := records(p, 0, Options{Batch: 8, Shuffle: true, Seed: 1, Pass: 2}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 4:1", "0 2:1", "0 5:1", "0 0:1", "0 3:1", "0 7:1", "0 1:1", "0 6:1"}, got)
}

func TestKeysAndGroups(t *testing.T) {
	t.Parallel()
	text := "0 16777217:1 5:2\n0 18446744073709551615:1 0:1\n1 qid:7 3:1\n0 4:1\n0 qid:18446744073709551615 4:1 4:1\n"
	p := plan(t, 1<<20, write(t, text)...)
	want := []string{"0 qid:0 16777217:1 5:2", "0 qid:0 18446744073709551615:1 0:1", "1 qid:7 3:1", "0 qid:0 4:1",
		"0 qid:18446744073709551615 4:1 4:1"}
	for _, shuffle := range []bool{false, true} {
		got, _, err := records(p, 0, Options{Batch: 5, Shuffle: shuffle}, 0)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got)
	}
	got, _, err := records(p, 0, Options{Batch: 5, Bits: 24}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 qid:0 1:1 5:2", "0 qid:0 16777215:1 0:1"}, got[:2])
	got, _, err = records(p, 0, Options{Batch: 2}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 16777217:1 5:2", "1 qid:7 3:1", "0 qid:18446744073709551615 4:1 4:1"},
		[]string{got[0], got[2], got[4]}, "a batch without groups has none, later ones have")
}

// TestNoAllocations: in steady state neither reading nor shuffling allocates,
// whatever the values look like.
func TestNoAllocations(t *testing.T) {
	for name, line := range map[string]string{
		"ones":   "1 12345678:1 123456:1 17:1 16777215:1\n",
		"values": "0.5 1:0.25 2:1e-3 3:-17.123456789 4:3 5 6:0.1234567890123456789012\n",
		"groups": "1 qid:3 1:1\n",
	} {
		for _, shuffle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shuffle %v", name, shuffle), func(t *testing.T) {
				p := plan(t, 1<<40, write(t, strings.Repeat(line, 5*Window))...)
				r, err := p.Open(t.Context(), 0, Options{Batch: 256, Shuffle: shuffle})
				require.NoError(t, err)
				defer r.Close()
				var b Batch
				for range 2 * Window / 256 {
					require.NoError(t, r.Next(&b))
				}
				require.Zero(t, testing.AllocsPerRun(2*Window/256, func() {
					if r.Next(&b) != nil {
						panic("the file is too short for the test")
					}
				}))
			})
		}
	}
}

// TestChunksShareMemory: the second and later chunks need little new memory.
func TestChunksShareMemory(t *testing.T) {
	p := plan(t, 64<<10, write(t, strings.Repeat("1 12345678:1 123456:1 17:1\n", 50000))...)
	var b Batch
	c := int64(0)
	pass := func() {
		r, err := p.Open(context.Background(), c, Options{Batch: 128, Shuffle: true})
		if err != nil {
			panic(err)
		}
		for r.Next(&b) == nil {
		}
		_ = r.Close()
		c = (c + 1) % p.Chunks()
	}
	for range p.Chunks() {
		pass()
	}
	require.Less(t, testing.AllocsPerRun(20, pass), 20.0)
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := plan(t, 1<<20, write(t, numbered(1, 9, "\n"))...)
	r, err := p.Open(t.Context(), 0, Options{Batch: 2})
	require.NoError(t, err)
	var b Batch
	require.NoError(t, r.Next(&b))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Next(&b), os.ErrClosed)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	_, err = p.Open(ctx, 0, Options{Batch: 2})
	require.ErrorIs(t, err, io.ErrNoProgress)
	for _, c := range []int64{-1, 1} {
		_, err = p.Open(t.Context(), c, Options{Batch: 2})
		require.ErrorContains(t, err, fmt.Sprintf("there is no chunk %d among 1", c))
	}
	_, err = p.Open(t.Context(), 0, Options{})
	require.ErrorContains(t, err, "batch 0")
}

// TestAnyFile: for arbitrary lines, chunk and batch sizes the chunks together
// deliver what a plain reading finds, in order.
func TestAnyFile(t *testing.T) {
	t.Parallel()
	lines := rapid.SampledFrom([]string{"1 5:1", "0 7:0.5 8:1", "", " ", "\r", "# c", "0", "1 5:1 #c", "1 5:1\r",
		"-1 999999999999:1 ", "0 1:1" + strings.Repeat(" 2:1", 40)})
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		text := strings.Join(rapid.SliceOfN(lines, 1, 60).Draw(t, "lines"), "\n") + "\n" +
			rapid.SampledFrom([]string{"", "0 3:1", "\n"}).Draw(t, "end")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		p, err := NewPlan([]string{path}, Libsvm, int64(rapid.IntRange(1, len(text)+1).Draw(t, "chunk")))
		require.NoError(t, err)
		got, err := all(p, Options{Batch: rapid.IntRange(1, 9).Draw(t, "batch")})
		require.NoError(t, err)
		var want []string
		for _, line := range expected(text) {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line != "" {
				want = append(want, line)
			}
		}
		require.Equal(t, want, got)
		require.NoError(t, os.Remove(path))
	})
}

// TestBlocks: records that straddle the blocks in which a file is read, and
// records longer than a block.
func TestBlocks(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	for i := range 40 {
		fmt.Fprintf(&s, "%d", i%2)
		for k := range (i * i * 531) % 9000 {
			fmt.Fprintf(&s, " %d:1", k)
		}
		s.WriteString("\n")
	}
	s.WriteString("1" + strings.Repeat(" 123456:1", block/4) + "\n0 1:1")
	paths := write(t, s.String())
	want := expected(s.String())
	for _, chunk := range []int64{1000, 65536, block - 1, block, block + 1, 1 << 30} {
		got, err := all(plan(t, chunk, paths...), Options{Batch: 7})
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.True(t, want[i] == got[i], "chunk %d, record %d", chunk, i)
		}
	}
}

// TestTooLong: a record beyond the limit is a bad one and the next is found,
// without holding it in memory.
func TestTooLong(t *testing.T) {
	t.Parallel()
	const limit = 1000
	text := "0 1:1\n1" + strings.Repeat(" 5:1", 300000) + "\n0 2:1\n1" + strings.Repeat(" 5:1", 300000)
	for _, chunk := range []int64{int64(len(text)), 600, 5000, 1 << 19} {
		var s source
		found := 0
		long := 0
		for start := int64(0); start < int64(len(text)); start += chunk {
			s.reset(strings.NewReader(text), start, min(start+chunk, int64(len(text))), int64(len(text)), limit)
			for {
				ok, err := s.next()
				if errors.Is(err, errTooLong) {
					long++
					continue
				}
				require.NoError(t, err)
				if !ok {
					break
				}
				found++
				s.pos += bytes.IndexByte(s.buf[s.pos:], '\n') + 1
			}
		}
		if chunk < 1000 {
			require.Equal(t, 2, found)
			require.Equal(t, 2, long)
		}
		require.Equal(t, 4, found+long, "chunk %d", chunk)
		require.Less(t, len(s.buf), 4*block)
	}
}

// FuzzReader: whatever a file holds, reading it in small chunks ends without a
// crash, and gives the same records as reading it in one.
func FuzzReader(f *testing.F) {
	for _, s := range []string{"1 1:1\n0 2:2\n", "\x00\xff\xfe", "1 1:nan\n", "1 18446744073709551616:1", "1 1:1\r\n\r\n0\r",
		"1 -5:1\n1 5:1e400\n1 qid:x\n", "qid:1\n", "1 5:\n1 :5\n1:2\n", "+1 1:1#x\n#\n 1\n", "1 1:0x1p-2\n1 1:1_0\n"} {
		f.Add([]byte(s), uint16(3), uint8(2))
	}
	f.Fuzz(func(t *testing.T, data []byte, chunk uint16, batch uint8) {
		if len(data) == 0 || len(data) > 1<<12 {
			return
		}
		path := write(t, string(data))
		o := Options{Batch: int(batch) + 1, MaxBad: 1 << 20}
		whole, _, err := records(plan(t, 1<<40, path...), 0, o, 0)
		require.NoError(t, err)
		parts, err := all(plan(t, int64(chunk)+1, path...), o)
		require.NoError(t, err)
		if !slices.ContainsFunc(append(whole, parts...), func(s string) bool { return strings.Contains(s, "qid") }) {
			require.Equal(t, whole, parts)
		}
		require.Len(t, parts, len(whole))
	})
}

// TestReadsAreAligned: reads begin at multiples of a page in the file, and
// bytes lie at the same place modulo 64 in memory.
func TestReadsAreAligned(t *testing.T) {
	t.Parallel()
	text := numbered(1, 200000, "\n")
	f := &recorder{ReaderAt: strings.NewReader(text), t: t}
	var s source
	for start := int64(0); start < int64(len(text)); start += 777777 {
		s.reset(f, start, min(start+777777, int64(len(text))), int64(len(text)), MaxRecord)
		f.source = &s
		for {
			ok, err := s.next()
			require.NoError(t, err)
			if !ok {
				break
			}
			s.pos += bytes.IndexByte(s.buf[s.pos:], '\n') + 1
		}
	}
	require.Positive(t, f.reads)
}

type recorder struct {
	io.ReaderAt
	t      *testing.T
	source *source
	reads  int
}

func (r *recorder) ReadAt(b []byte, at int64) (int, error) {
	r.reads++
	require.Zero(r.t, at%alignment)
	require.Equal(r.t, at, r.source.base+int64(r.source.n))
	require.Zero(r.t, r.source.base%alignment)
	return r.ReaderAt.ReadAt(b, at)
}

// TestLoadsStayInside: eight bytes are read at once, also at the end of text.
func TestLoadsStayInside(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, slack, binary.Size(uint64(0))+binary.Size(uint32(0)))
}
