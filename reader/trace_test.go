package reader

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// TestTrace: the lines of a batch, and of the values that were asked for.
func TestTrace(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("y,a,b\n")
	for i := range 20 {
		if i == 3 {
			text.WriteString("\nbroken\n") // lines 5 and 6
		}
		fmt.Fprintf(&text, "1,%d,%d\n", i, 100+i)
	}
	name := filepath.Join(t.TempDir(), "d.csv.gz")
	f, err := os.Create(name)
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	_, err = z.Write([]byte(text.String()))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	a, b := xxhash.Sum64String("a"), xxhash.Sum64String("b")
	for name, p := range map[string]*Plan{
		"plain":      withColumns(t, 1<<20, plain, write(t, text.String())...),
		"compressed": withColumns(t, 1<<20, plain, name),
	} {
		got, err := p.Trace(t.Context(), 0, 1, Options{Batch: 4}, []Value{{a, 5}, {b, 106}, {a, 7}, {a, 8}, {77, 1}})
		require.NoError(t, err, name)
		require.Equal(t, &Trace{File: p.Files[0].Path, First: 8, Last: 11,
			Lines: []int64{9, 10, 11, 0, 0}, Columns: []string{"a", "b", "a", "a", ""}}, got, name)
		got, err = p.Trace(t.Context(), 0, 4, Options{Batch: 4, Shuffle: true}, []Value{{a, 2}, {a, 19}})
		require.NoError(t, err, name)
		require.EqualValues(t, 2, got.First, name)
		require.EqualValues(t, 23, got.Last, name)
		require.Equal(t, []int64{4, 23}, got.Lines, name)
	}
	// The second chunk of a file without header, with keys that are folded.
	p := plan(t, 8, write(t, "1 3:1\n1 4:2\n0 5:7\n0 6:1")...)
	got, err := p.Trace(t.Context(), 1, 0, Options{Batch: 64, Bits: 2}, []Value{{1, 7}})
	require.NoError(t, err)
	require.Equal(t, &Trace{File: p.Files[0].Path, First: 3, Last: 3, Lines: []int64{3}, Columns: []string{""}}, got)
	_, err = p.Trace(t.Context(), 99, 0, Options{Batch: 64}, nil)
	require.Error(t, err)
	require.NoError(t, os.Remove(p.Files[0].Path))
	_, err = p.Trace(t.Context(), 0, 0, Options{Batch: 64}, nil)
	require.ErrorIs(t, err, ErrData)
}
