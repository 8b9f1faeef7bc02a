package reader

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// pieces parses a stream as predictions do: piece by piece.
func pieces(t *testing.T, r io.Reader, rest []byte, l *Layout, o Options) (b Batch, flaws []Flaw) {
	t.Helper()
	p, text := NewPieces(r, rest, l, o), NewText(l, o)
	var buf []byte
	for {
		piece, err := p.Next(buf)
		if errors.Is(err, io.EOF) {
			return b, flaws
		}
		require.NoError(t, err)
		before := b.Records()
		n := len(flaws)
		flaws, err = text.Parse(piece, &b, flaws)
		require.NoError(t, err)
		for i := n; i < len(flaws); i++ {
			flaws[i].Good += before
		}
		buf = piece
	}
}

// TestTextIsAReader: records out of memory are those that a Reader finds in a
// file, and bad ones keep their place.
func TestTextIsAReader(t *testing.T) {
	t.Parallel()
	columns := Columns{Header: true, Label: "y", Weight: "w", Missing: []string{"?"}}
	lines := map[string][]string{
		Libsvm: {"1 3:0.5 7\n", "# nothing\n", "-1 qid:4 3:1e-3  9:2 # c\r\n", "\n", "x 1:1\n", "0 2:nan\n", "1\n", "1 5:1 5:2\n"},
		CSV:    {"1,a,2.5,1\n", "0,\"b, \"\"c\"\"\",?,0.5\r\n", "\n", "2,b,1,1\n", "1,b\n", "1,x,y,-1\n", "-1, d ,7,1\n"},
	}
	for format, some := range lines {
		rng := rand.New(rand.NewPCG(1, 2))
		var s strings.Builder
		if format == CSV {
			s.WriteString("\xef\xbb\xbfy,site,hours,w\n")
		}
		for range 3000 {
			s.WriteString(some[rng.IntN(len(some))])
		}
		s.WriteString(strings.TrimRight(some[0], "\n"))
		path := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.WriteFile(path, []byte(s.String()), 0o600))
		o := Options{Batch: math.MaxInt32, MaxBad: math.MaxInt, Bits: 30, Labels: LabelBinary, MaxValue: 100}
		plan, err := NewPlan([]string{path}, Libsvm, math.MaxInt64)
		if format == CSV {
			plan, err = NewColumnsPlan([]string{path}, CSV, math.MaxInt64, columns)
		}
		require.NoError(t, err)
		rd, err := plan.Open(t.Context(), 0, o)
		require.NoError(t, err)
		var want Batch
		require.NoError(t, rd.Next(&want))
		for name, r := range map[string]io.Reader{
			"at once": strings.NewReader(s.String()), "halves": iotest.HalfReader(strings.NewReader(s.String())),
			"the end with the last bytes": iotest.DataErrReader(strings.NewReader(s.String())),
		} {
			var l *Layout
			var head []byte
			if format == CSV {
				head = make([]byte, 100)
				_, err := io.ReadFull(r, head)
				require.NoError(t, err)
				var n int
				var ok bool
				l, n, ok, err = NewLayout(CSV, columns, head, false, false)
				require.NoError(t, err)
				require.True(t, ok && l.Labelled())
				head = head[n:]
			}
			got, flaws := pieces(t, r, head, l, o)
			require.Equal(t, want.Offsets, got.Offsets, name)
			require.Equal(t, want.Keys, got.Keys, name)
			require.Equal(t, want.Values, got.Values, name)
			require.Equal(t, want.Labels, got.Labels, name)
			require.Equal(t, want.Weights, got.Weights, name)
			require.Equal(t, want.Groups, got.Groups, name)
			require.Len(t, flaws, rd.Bad(), name)
			require.Equal(t, rd.BadRecords()[0].Reason, flaws[0].Reason)
		}
		require.NoError(t, rd.Close())
	}
}

func TestFlawsKeepTheirPlace(t *testing.T) {
	t.Parallel()
	var b Batch
	flaws, err := NewText(nil, Options{}).Parse([]byte("x\n1 1:1\n1 2:2\ny\nz\n1 3:3\n1 4:"), &b, nil)
	require.NoError(t, err)
	require.Equal(t, 3, b.Records())
	var at []string
	for _, f := range flaws {
		at = append(at, fmt.Sprint(f.Good, " ", f.Offset))
		require.NotEmpty(t, f.Reason)
	}
	require.Equal(t, []string{"0 0", "2 14", "2 16", "3 24"}, at)
}

func TestTextWithoutLabels(t *testing.T) {
	t.Parallel()
	var b Batch
	flaws, err := NewText(nil, Options{Labels: LabelNone}).Parse([]byte(" 3:2 4\n1 5:1\n# c\n7:1\n"), &b, nil)
	require.NoError(t, err)
	require.Equal(t, []uint64{3, 4, 7}, b.Keys)
	require.Equal(t, []float32{0, 0}, b.Labels)
	require.Len(t, flaws, 1)
	require.Contains(t, flaws[0].Reason, `"1", which could be a label`)
}

// TestColumnsThatMayBeMissing: label, weight and group are optional where
// nobody learns, and never features.
func TestColumnsThatMayBeMissing(t *testing.T) {
	t.Parallel()
	auto := Columns{Header: true, Label: "y", Weight: "w", Optional: true}
	named := Columns{Names: []string{"a", "y", "b"}, Label: "y", Optional: true}
	unlabelled := func(c Columns) Columns {
		c.Unlabelled = true
		return c
	}
	for name, tc := range map[string]struct {
		c        Columns
		text     string
		labelled bool
		label    float32
	}{
		"all there":                  {auto, "b,y,a,w\n2,1,1,3\n", true, 1},
		"no label, no weight":        {auto, "b,a\n2,1\n", false, 0},
		"not to be read":             {unlabelled(auto), "b,y,a,w\n2,what,1,-7\n", false, 0},
		"not there, not to be read":  {unlabelled(auto), "b,a\n2,1\n", false, 0},
		"no header":                  {named, "1,1,2\n", true, 1},
		"no header, no label":        {named, "1,2\n", false, 0},
		"no header, not to be read":  {unlabelled(named), "1,what,2\n", false, 0},
		"no header, neither, unread": {unlabelled(named), "1,2\n", false, 0},
	} {
		l, start, ok, err := NewLayout(CSV, tc.c, []byte(tc.text), true, false)
		require.NoError(t, err, name)
		require.True(t, ok, name)
		require.Equal(t, tc.labelled, l.Labelled(), name)
		var b Batch
		flaws, err := NewText(l, Options{}).Parse([]byte(tc.text)[start:], &b, nil)
		require.NoError(t, err, name)
		require.Empty(t, flaws, name)
		require.Equal(t, []float32{tc.label}, b.Labels, name)
		got := map[uint64]float32{}
		for i, k := range b.Keys {
			got[k] = b.Values[i]
		}
		require.Equal(t, map[uint64]float32{xxhash.Sum64String("a"): 1, xxhash.Sum64String("b"): 2}, got, name)
	}
	_, _, _, err := NewLayout(CSV, Columns{Header: true, Optional: true, Label: "y", Features: []Feature{{Name: "c"}}}, []byte("a,b\n"), true, false)
	require.ErrorIs(t, err, ErrColumns)
	_, _, ok, err := NewLayout(CSV, auto, []byte("a,b"), false, false)
	require.NoError(t, err)
	require.False(t, ok, "the line does not end there")
}

func TestLineBreaksInPieces(t *testing.T) {
	t.Parallel()
	c := Columns{Header: true}
	text := "a,b\n\"x\ny\",1\n\"p\"\"\nq\nr\",2\nz,3\n"
	l, n, ok, err := NewLayout(CSV, c, []byte(text), true, true)
	require.NoError(t, err)
	require.True(t, ok)
	b, flaws := pieces(t, iotest.OneByteReader(strings.NewReader(text[n:])), nil, l, Options{})
	require.Empty(t, flaws)
	require.Equal(t, 3, b.Records())
	_, err = NewText(l, Options{}).Parse([]byte("\"x\ny,1\n"), &b, nil)
	require.ErrorIs(t, err, ErrBadData)
}

// TestPiecesDoNotWait: what is there is delivered although more may follow.
func TestPiecesDoNotWait(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	p := NewPieces(r, nil, nil, Options{})
	go func() {
		_, _ = w.Write([]byte("1 1:1\n0 2:"))
		_, _ = w.Write([]byte("1\n"))
		_ = w.CloseWithError(errors.New("torn"))
	}()
	for _, want := range []string{"1 1:1\n", "0 2:1\n"} {
		piece, err := p.Next(nil)
		require.NoError(t, err)
		require.Equal(t, want, string(piece))
	}
	_, err := p.Next(nil)
	require.ErrorContains(t, err, "torn")
}

func TestPiecesPassOverWhatIsTooLong(t *testing.T) {
	t.Parallel()
	p := NewPieces(strings.NewReader("1 1:1\n"+strings.Repeat("9", 3*block)+"\n1 2:1"), nil, nil, Options{})
	p.long = block
	var got []string
	for {
		piece, err := p.Next(nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, ErrTooLong) {
			piece = []byte("long")
		} else {
			require.NoError(t, err)
		}
		got = append(got, string(piece))
	}
	require.Equal(t, []string{"1 1:1\n", "long", "1 2:1"}, got)
}

func TestContent(t *testing.T) {
	t.Parallel()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, _ = w.Write(bytes.Repeat([]byte("1 1:1\n"), 1000))
	require.NoError(t, w.Close())
	all, err := io.ReadAll(Content("a.gz", bytes.NewReader(z.Bytes()), int64(z.Len())))
	require.NoError(t, err)
	require.Len(t, all, 6000)
	r := Content("a.gz", bytes.NewReader(z.Bytes()[:z.Len()/2]), int64(z.Len()/2))
	_, err = io.ReadAll(r)
	require.ErrorIs(t, err, ErrBadData)
	require.NoError(t, r.Close())
	all, err = io.ReadAll(Content("a", strings.NewReader("x"), 1))
	require.NoError(t, err)
	require.Equal(t, "x", string(all))
}

// FuzzText: whatever comes, Parse neither crashes nor loses a line.
func FuzzText(f *testing.F) {
	f.Add([]byte("1 1:1\nx\n"), true)
	f.Add([]byte("a,\"b\nc\",1\n"), false)
	f.Fuzz(func(t *testing.T, text []byte, libsvm bool) {
		var l *Layout
		if !libsvm {
			var err error
			if l, err = NamedLayout(CSV, Columns{}, []string{"a", "b", "c"}); err != nil {
				t.Fatal(err)
			}
		}
		var b Batch
		flaws, err := NewText(l, Options{}).Parse(text, &b, nil)
		if err != nil || b.Records()+len(flaws) > bytes.Count(text, []byte{'\n'})+1 {
			t.Fatal(err, b.Records(), flaws)
		}
	})
}
