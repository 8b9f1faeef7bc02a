package reader

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInspectColumns: the numbers of a profile are those of the file.
func TestInspectColumns(t *testing.T) {
	t.Parallel()
	text := "a,b,c\n1,x,\n2.5,?,007\n-4,\"x|y\",3\nshort\n"
	for name, path := range map[string]string{"plain": put(t, "f.csv", []byte(text)), "gz": put(t, "f.csv.gz", squeeze(t, ".gz", text))} {
		p, err := Inspect(t.Context(), path, InspectOptions{})
		require.NoError(t, err, name)
		require.Equal(t, CSV, p.Format)
		require.True(t, p.Header)
		require.EqualValues(t, 3, p.Records)
		require.EqualValues(t, 1, p.Bad)
		require.Contains(t, p.FirstBad, path+":5: 1 fields instead of 3")
		require.Equal(t, []string{"?"}, p.Missing)
		a, b, c := p.Columns[0], p.Columns[1], p.Columns[2]
		require.True(t, a.Numeric())
		require.False(t, a.Whole)
		require.Equal(t, []float64{-4, 2.5}, []float64{a.Min, a.Max})
		require.InDelta(t, -1.0/6, a.Mean, 1e-12)
		require.InDelta(t, math.Sqrt((1+6.25+16)/3-1.0/36), a.Stddev, 1e-12)
		require.EqualValues(t, 1, b.Missing)
		require.EqualValues(t, 2, b.Texts)
		require.Equal(t, 2, b.Distinct)
		require.EqualValues(t, 1, b.Parts)
		require.Equal(t, "|", b.Separator)
		require.False(t, c.Numeric())
		require.Equal(t, []ValueCount{{"007", 1}, {"3", 1}}, c.Values)
	}
}

// TestInspectGuesses of format, delimiter and header.
func TestInspectGuesses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text, format, delimiter string
		header                  bool
	}{
		"f":          {"1 2:1 3:1\n", Libsvm, "", false},
		"f.svm":      {"1\n", Libsvm, "", false},
		"g":          {"y\ta\n1\t2\n", TSV, "\t", true},
		"h":          {"y;a,b;c\n1;2;3\n", CSV, ";", true},
		"i.csv":      {"1,a\n0,b\n", CSV, ",", false},
		"j.tsv":      {"x y\tz\n1\t2\n", TSV, "\t", true},
		"k.csv":      {"u,u\nv,w\n", CSV, ",", false},
		"l.csv":      {"?,u\nv,w\n", CSV, ",", false},
		"one column": {"y\n1\n", CSV, ",", true},
	} {
		p, err := Inspect(t.Context(), put(t, name, []byte(tc.text)), InspectOptions{})
		require.NoError(t, err, name)
		require.Equal(t, tc.format, p.Format, name)
		require.Equal(t, tc.delimiter, p.Delimiter, name)
		require.Equal(t, tc.header, p.Header, name)
	}
	no := false
	p, err := Inspect(t.Context(), put(t, "a.csv", []byte("y,a\n#z\n1,2\n")), InspectOptions{Header: &no, Comment: "#"})
	require.NoError(t, err)
	require.EqualValues(t, 2, p.Records)
	_, err = Inspect(t.Context(), t.TempDir(), InspectOptions{})
	require.ErrorIs(t, err, ErrNoData)
	_, err = Inspect(t.Context(), put(t, "b.csv.gz", []byte("this is no gzip at all")), InspectOptions{})
	require.ErrorContains(t, err, "not compressed as its name says")
}

// TestInspectLarge: many values are not all kept, and a limit is kept.
func TestInspectLarge(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	for i := range MaxDistinct + 5000 {
		fmt.Fprintf(&s, "%d,n%d\n", i, i)
	}
	path := put(t, "f.csv", []byte(s.String()))
	p, err := Inspect(t.Context(), path, InspectOptions{})
	require.NoError(t, err)
	require.Equal(t, MaxDistinct+1, p.Columns[1].Distinct)
	require.Empty(t, p.Columns[1].Values)
	require.True(t, p.Columns[0].Counts)
	p, err = Inspect(t.Context(), path, InspectOptions{Records: 1000})
	require.NoError(t, err)
	require.False(t, p.Complete)
	require.Equal(t, int64(1024), p.Records)
}
