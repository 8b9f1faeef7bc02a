package reader

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// squeeze compresses parts, each as a member (a frame) of its own.
func squeeze(t testing.TB, suffix string, parts ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, part := range parts {
		var w io.WriteCloser = gzip.NewWriter(&b)
		if suffix == ".zst" {
			z, err := zstd.NewWriter(&b)
			require.NoError(t, err)
			w = z
		}
		_, err := io.WriteString(w, part)
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	return b.Bytes()
}

func put(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

// noise is libsvm text that does not compress well.
func noise(records int) string {
	rnd := rand.New(rand.NewPCG(7, 7))
	var s strings.Builder
	for i := range records {
		fmt.Fprintf(&s, "%d %d:1 %d:0.5\n", i%2, rnd.Uint64(), rnd.Uint64())
	}
	return s.String()
}

// TestCompressed: a compressed file is one chunk with the records of its
// content, whatever the chunk size and in whatever pieces it was compressed.
func TestCompressed(t *testing.T) {
	t.Parallel()
	text := noise(30000) // more than is read at once
	want := expected(text)
	for _, suffix := range []string{".gz", ".zst", ".GZ"} {
		for name, parts := range map[string][]string{
			"one":     {text},
			"several": {text[:100], "", text[100:500001], text[500001:]},
			"no end":  {text[:len(text)-1]},
		} {
			path := put(t, "f"+suffix, squeeze(t, strings.ToLower(suffix), parts...))
			p := plan(t, 1000, path)
			require.EqualValues(t, 1, p.Chunks())
			got, err := all(p, Options{Batch: 1000})
			require.NoError(t, err)
			require.Len(t, got, len(want), "%s %s", name, suffix)
			require.Equal(t, want[12345], got[12345])
			rest, _, err := records(p, 0, Options{Batch: 1000}, 29)
			require.NoError(t, err)
			require.Equal(t, want[29000:], rest)
		}
	}
	none, err := all(plan(t, 10, put(t, "f.gz", squeeze(t, ".gz", ""))), Options{Batch: 4})
	require.NoError(t, err)
	require.Empty(t, none)
	mixed := plan(t, 7, write(t, "1 1:1\n0 2:1\n")[0], put(t, "f.zst", squeeze(t, ".zst", "1 3:1\n")))
	got, err := all(mixed, Options{Batch: 4})
	require.NoError(t, err)
	require.Equal(t, []string{"1 1:1", "0 2:1", "1 3:1"}, got)
	require.EqualValues(t, 3, mixed.Chunks())
}

// TestCompressedCSV: headers of their own; line breaks in quotes are allowed,
// since the file is one chunk anyway; lines are counted in the content.
func TestCompressedCSV(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{".gz", ".zst"} {
		path := put(t, "f.csv"+suffix, squeeze(t, suffix, "\xef\xbb\xbfy,a\n1,5\n", "0,6\n"))
		got, err := all(withColumns(t, 3, Columns{Header: true, Label: "y"}, path, path), Options{Batch: 4})
		require.NoError(t, err)
		require.Len(t, got, 4)
		headers := put(t, "g.csv"+suffix, squeeze(t, suffix, "y,a"))
		got, err = all(withColumns(t, 3, Columns{Header: true, Label: "y"}, headers), Options{Batch: 4})
		require.NoError(t, err)
		require.Empty(t, got)
		lines := put(t, "h.csv"+suffix, squeeze(t, suffix, "y,a\n1,\"x\ny\"\n0,6\nz,6\n"))
		p := withColumns(t, 3, Columns{Header: true, Label: "y"}, lines)
		got, err = all(p, Options{Batch: 4, MaxBad: 1})
		require.NoError(t, err)
		require.Len(t, got, 2)
		_, err = all(p, Options{Batch: 4})
		require.ErrorContains(t, err, lines+":5: the label")
	}
}

// TestDamaged: a compressed file that is cut short or altered fails its chunk,
// naming the file and about where, however many bad records are allowed.
func TestDamaged(t *testing.T) {
	t.Parallel()
	text := noise(3000)
	for _, suffix := range []string{".gz", ".zst"} {
		whole := squeeze(t, suffix, text)
		require.Greater(t, len(whole), 50000)
		for name, content := range map[string][]byte{
			"in the head":       whole[:5],
			"in the middle":     whole[:len(whole)/2],
			"in the checksum":   whole[:len(whole)-2],
			"no such format":    []byte(text),
			"altered":           append(append(bytes.Clone(whole[:30000]), "starfish"...), whole[30008:]...),
			"the second of two": append(bytes.Clone(whole), whole[:len(whole)/2]...),
			"something behind":  append(bytes.Clone(whole), "and more"...),
		} {
			path := put(t, "f"+suffix, content)
			_, err := all(plan(t, 1000, path), Options{Batch: 64, MaxBad: 1 << 20})
			var bad *BadDataError
			require.ErrorAs(t, err, &bad, "%s %s", suffix, name)
			require.NotErrorIs(t, err, ErrData)
			require.Equal(t, path, bad.File)
			require.ErrorContains(t, err, path+": byte ", "%s %s", suffix, name)
			require.LessOrEqual(t, bad.Offset, int64(len(content)))
			if cut := strings.HasPrefix(name, "in the "); cut && (name != "in the head" || suffix == ".gz") {
				require.ErrorContains(t, err, "the compressed file is truncated", "%s %s", suffix, name)
				require.Greater(t, bad.Offset, int64(len(content))-70000)
			}
			// A damaged file costs its own chunk, and hides no other's columns.
			p := withColumns(t, 1000, Columns{Label: "c1"}, put(t, "g"+suffix, content))
			require.EqualValues(t, 1, p.Chunks())
			_, err = all(p, Options{Batch: 64, MaxBad: 1 << 20})
			require.ErrorIs(t, err, ErrBadData)
		}
	}
}

// TestUnreadableIsNoDamage: what the system says about a file is its own kind
// of error.
func TestUnreadableIsNoDamage(t *testing.T) {
	t.Parallel()
	s := newStream("x.gz", broken{}, 100)
	_, err := s.ReadAt(make([]byte, 10), 0)
	var d *damage
	require.NotErrorAs(t, err, &d)
	require.ErrorIs(t, err, os.ErrPermission)
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) {
	return 0, &os.PathError{Op: "read", Path: "x.gz", Err: os.ErrPermission}
}

// FuzzCompressed: no content makes the reader crash.
func FuzzCompressed(f *testing.F) {
	for _, suffix := range []string{".gz", ".zst"} {
		f.Add(squeeze(f, suffix, "1 1:1\n", "0 2:1"), suffix == ".zst")
		f.Add(squeeze(f, suffix, noise(20))[:100], suffix == ".zst")
	}
	f.Add([]byte("\x1f\x8b\x08"), false)
	f.Fuzz(func(t *testing.T, data []byte, zst bool) {
		if len(data) == 0 || len(data) > 1<<14 {
			return
		}
		name := "f.gz"
		if zst {
			name = "f.zst"
		}
		if _, err := all(plan(t, 9, put(t, name, data)), Options{Batch: 3, MaxBad: 1 << 20}); err != nil {
			require.ErrorIs(t, err, ErrBadData)
		}
	})
}
