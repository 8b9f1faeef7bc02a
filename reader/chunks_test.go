package reader

import (
	"bytes"
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
)

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
	long := "1" + strings.Repeat(" 77:1", 24)
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
			if want[i] != got[i] { // too long to be printed
				t.Fatalf("chunk %d: record %d differs", chunk, i)
			}
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
