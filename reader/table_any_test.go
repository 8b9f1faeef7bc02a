package reader

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCSVChunkEdges: for every chunk size from one byte on, the chunks of
// several files together have the records of the files, in order, and the
// header is none of them; whole files may have line breaks in quotes too.
func TestCSVChunkEdges(t *testing.T) {
	t.Parallel()
	file := func(header string, n int, end string) string {
		var s strings.Builder
		s.WriteString(header + end)
		for i := range n {
			fmt.Fprintf(&s, "%d, %s,\"q \"\"%d\"\"\"%s", i%2, strings.Repeat("x", i%7), i, end)
		}
		return s.String()
	}
	for name, texts := range map[string][]string{
		"one file":             {file("y,a,b", 9, "\n")},
		"several":              {file("y,a,b", 5, "\n"), file("y,b,a", 6, "\r\n"), "", file("y, a ,\"b\"", 3, "\n")},
		"only a header":        {"y,a,b\n", file("y,a,b", 3, "\n"), "y,a,b"},
		"blank lines, no end":  {"\n\ny,a,b\n\n1,2,3\n \n0,5,6", "\xef\xbb\xbfy,a,b\n1,7,8"},
		"a header like a data": {"y,0,1\n1,2,3\n0,4,5\n"},
		"a long header":        {"y," + strings.Repeat("n", 100) + "\n1,2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			paths := write(t, texts...)
			whole := withColumns(t, math.MaxInt64, plain, paths...)
			want, err := all(whole, Options{Batch: 1000})
			require.NoError(t, err)
			require.Equal(t, want, reference(t, texts))
			largest := len(slices.MaxFunc(texts, func(a, b string) int { return len(a) - len(b) }))
			for chunk := 1; chunk <= largest+2; chunk++ {
				p := withColumns(t, int64(chunk), plain, paths...)
				got, err := all(p, Options{Batch: 2})
				require.NoError(t, err, "chunk %d", chunk)
				require.Equal(t, want, got, "chunk %d", chunk)
			}
		})
	}
}

// reference reads files with a header and a label y by way of encoding/csv.
func reference(t require.TestingT, texts []string) (list []string) {
	for _, text := range texts {
		var lines []string
		for line := range strings.Lines(strings.TrimPrefix(text, "\xef\xbb\xbf")) {
			if strings.TrimSpace(line) != "" {
				lines = append(lines, strings.TrimRight(line, "\r\n"))
			}
		}
		r := csv.NewReader(strings.NewReader(strings.Join(lines, "\n")))
		r.TrimLeadingSpace = true
		rows, err := r.ReadAll()
		require.NoError(t, err)
		for i, row := range rows {
			if i == 0 {
				continue
			}
			var rest strings.Builder
			label := ""
			for k, cell := range row {
				name := strings.TrimSpace(rows[0][k])
				switch v, err := strconv.ParseFloat(cell, 32); {
				case name == "y":
					label = cell
				case cell == "":
				case err == nil:
					fmt.Fprintf(&rest, " %d:%v", xxhash.Sum64String(name), float32(v))
				default:
					fmt.Fprintf(&rest, " %d:1", xxhash.Sum64String(name+"="+cell))
				}
			}
			list = append(list, label+rest.String())
		}
	}
	return list
}

// TestAnyCSV: arbitrary fields, written by encoding/csv, are read as they are.
func TestAnyCSV(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cell := rapid.OneOf(rapid.StringMatching(`[a-z0-9.,"\n é\t-]{0,9}`), rapid.SampledFrom([]string{"1", "-0.5", "1e3", `""`, `"`, ","}))
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		width := rapid.IntRange(1, 4).Draw(t, "width")
		f, err := os.Create(path)
		require.NoError(t, err)
		w := csv.NewWriter(f)
		header := []string{"y"}
		for k := range width {
			header = append(header, fmt.Sprintf("f%d", k))
		}
		require.NoError(t, w.Write(header))
		var want []string
		for range rapid.IntRange(1, 30).Draw(t, "records") {
			row := []string{rapid.SampledFrom([]string{"0", "1"}).Draw(t, "label")}
			line := row[0]
			for k := range width {
				c := rapid.Custom(func(t *rapid.T) string { return cell.Draw(t, "cell") }).Draw(t, "c")
				if !strings.ContainsAny(c, "\",\n") { // it stands without quotes
					c = strings.Trim(c, " \t")
				}
				row = append(row, c)
				if v, err := strconv.ParseFloat(c, 32); err == nil && !strings.ContainsAny(c, "xn") {
					line += fmt.Sprintf(" %d:%v", xxhash.Sum64String(header[k+1]), float32(v))
				} else if c != "" {
					line += fmt.Sprintf(" %d:1", xxhash.Sum64String(header[k+1]+"="+c))
				}
			}
			require.NoError(t, w.Write(row))
			want = append(want, line)
		}
		w.Flush()
		require.NoError(t, f.Close())
		p, err := NewColumnsPlan([]string{path}, CSV, math.MaxInt64, plain)
		require.NoError(t, err)
		got, err := all(p, Options{Batch: rapid.IntRange(1, 9).Draw(t, "batch")})
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, os.Remove(path))
	})
}

// TestMultilineAcrossBlocks: a record of many lines is longer than what is read
// at once.
func TestMultilineAcrossBlocks(t *testing.T) {
	t.Parallel()
	cell := strings.Repeat("line\n", block/2)
	text := "y,a\n1,x\n0,\"" + cell + "\"\n1,x\n"
	p := withColumns(t, math.MaxInt64, plain, write(t, text)...)
	got, err := all(p, Options{Batch: 10})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("0 %d:1", xxhash.Sum64String("a="+cell)), got[1])
	require.Len(t, got, 3)
}

// FuzzCSV: whatever a file holds, reading it ends without a crash, and in small
// chunks gives what one chunk gives.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{"y,a\n1,2\n", "y,a\n1,\"x\"\"y\"\n0,\"", "\xef\xbb\xbfy,a,b\r\n1,,?\r\n", "y,a\n\"1\" ,\"a\"b\n",
		"y\n1\n\n0", "y,a\n1,1e400\n1,-.5e-3\n", "y,l\n1,a|b||c\n", ",\n,\n", "y,a\r1,2\r", "y,a\n1,\"x\ny\"\n"} {
		f.Add([]byte(s), uint16(3))
	}
	features := []Feature{{Name: "l", Column: "c2", Kind: List, Separator: "|", PoolMean: true},
		{Name: "c2", Kind: Categorical, Missing: "m"}, {Name: "x", Kind: Cross, Parts: []string{"c1", "c2"}}}
	f.Fuzz(func(t *testing.T, data []byte, chunk uint16) {
		if len(data) == 0 || len(data) > 1<<12 {
			return
		}
		for _, c := range []Columns{plain, {Header: true}, {}, {Features: features, Missing: []string{"?"}}} {
			for _, format := range []string{CSV, TSV} {
				path := write(t, string(data))
				o := Options{Batch: 3, MaxBad: 1 << 20}
				if p, err := NewColumnsPlan(path, format, math.MaxInt64, c); err == nil {
					if _, err := all(p, o); err != nil {
						require.ErrorContains(t, err, "a quote is opened")
					}
				}
				p, err := NewColumnsPlan(path, format, 1<<40, c)
				if errors.Is(err, ErrNoData) || errors.Is(err, ErrColumns) {
					continue
				}
				require.NoError(t, err)
				whole, err := all(p, o)
				require.NoError(t, err)
				small, err := NewColumnsPlan(path, format, int64(chunk)+1, c)
				require.NoError(t, err)
				parts, err := all(small, o)
				require.NoError(t, err)
				require.Equal(t, whole, parts)
			}
		}
	})
}

// FuzzTable: a text in memory that ends as the source's does, where reading one
// byte too far is a crash; each step goes forward.
func FuzzTable(f *testing.F) {
	for _, s := range []string{"1,2\n", "1,\"x\"\"y\"\n0,\"", "\"1\" ,\"a\"b\n", "1,1e400\n1,-.5e-3\n", "1,a|b||c\n", ",\n,\n", "1\r2\r",
		"1,\"x\ny\"\n", "1,-", "1,+.", "\"\"\"\",1", "1,\"5\"\"\""} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	features := []Feature{{Name: "b", Kind: Numeric}, {Name: "l", Column: "b", Kind: Numeric, Transform: Log1p}, {Name: "b"},
		{Name: "s", Column: "b", Kind: List, Separator: "||", PoolMean: true}, {Name: "x", Kind: Cross, Parts: []string{"b", "q"}},
		{Name: "q", Column: "b", Kind: Numeric, Transform: Bucket, Bounds: []float64{0, 1}}}
	f.Fuzz(func(t *testing.T, data []byte, multiline bool) {
		for _, format := range []string{CSV, TSV} {
			for k := range len(features) + 1 { // a bad number would hide the others
				c, err := Columns{Names: []string{"a", "b"}, Label: "a", Weight: "a", Group: "b", Comment: "#"}.prepared(format)
				require.NoError(t, err)
				c.Features = features[max(k-1, 0):k]
				if k > 0 && features[k-1].Kind == Cross {
					c.Features = features[k-1:]
				}
				l, err := c.layout(c.Names)
				require.NoError(t, err)
				text := append(make([]byte, 0, len(data)+1+slack), data...)
				text = append(append(text, '\n'), make([]byte, slack)...)
				table := newTable(c, l, &parser{mask: math.MaxUint64})
				table.multiline = multiline
				keys, values := make([]uint64, 10), make([]float32, 10)
				for i := 0; i <= len(data); {
					next, n, st := table.record(text, i, len(data)+1, keys, values, 0)
					if st == unclosed || st == full {
						break
					}
					require.Greater(t, next, i)
					require.LessOrEqual(t, n, len(keys))
					if st == bad {
						require.NotEmpty(t, table.reason())
					}
					for _, v := range values[:n] {
						require.False(t, math.IsNaN(float64(v)) || math.IsInf(float64(v), 0))
					}
					i = next
				}
			}
		}
	})
}
