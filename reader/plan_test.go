package reader

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tree makes files below a directory; a name that ends in "/" is a directory.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.MkdirAll(path, 0o750))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte("1 1:1\n"), 0o600))
	}
	return dir
}

// names are the planned files relative to dir.
func names(dir string, list []string) []string {
	out := make([]string, len(list))
	for i, path := range list {
		out[i] = strings.TrimPrefix(path, dir+"/")
	}
	return out
}

func planned(p *Plan) (paths []string) {
	for _, f := range p.Files {
		paths = append(paths, f.Path)
	}
	return paths
}

func TestExpand(t *testing.T) {
	t.Parallel()
	dir := tree(t, "z", "a", "B", "d/2", "d/10", "d/1", "d/sub/x", "d/sub-1", "d/_SUCCESS", "d/.hidden", "d/_tmp/y", "d/sub/.z",
		"day-1.txt", "day-2.txt", ".day-3.txt", "e/")
	require.NoError(t, os.Symlink(filepath.Join(dir, "a"), filepath.Join(dir, "d", "link")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "d", "sub"), filepath.Join(dir, "d", "linked")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	for name, tc := range map[string]struct{ entries, want, skipped []string }{
		"entries keep their order": {entries: []string{"z", "a", "B"}, want: []string{"z", "a", "B"}},
		"one twice":                {entries: []string{"a", "a"}, want: []string{"a", "a"}},
		"a directory, bytewise": {entries: []string{"d", "a"},
			want:    []string{"d/1", "d/10", "d/2", "d/link", "d/linked/x", "d/sub-1", "d/sub/x", "a"},
			skipped: []string{"d/.hidden", "d/_SUCCESS", "d/_tmp", "d/linked/.z", "d/sub/.z"}},
		"a glob":                {entries: []string{"*day*.txt"}, want: []string{"day-1.txt", "day-2.txt"}, skipped: []string{".day-3.txt"}},
		"a glob for dots":       {entries: []string{".day*"}, want: []string{".day-3.txt"}},
		"a glob of directories": {entries: []string{"d/su?"}, want: []string{"d/sub/x"}, skipped: []string{"d/sub/.z"}},
		"a named hidden file":   {entries: []string{"d/.hidden", "d/_SUCCESS"}, want: []string{"d/.hidden", "d/_SUCCESS"}},
		"an empty file":         {entries: []string{"empty", "a", "empty"}, want: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var entries []string
			for _, e := range tc.entries {
				entries = append(entries, filepath.Join(dir, e))
			}
			p := plan(t, 4, entries...)
			require.Equal(t, tc.want, names(dir, planned(p)))
			require.Len(t, p.Skipped, len(tc.skipped))
			require.ElementsMatch(t, tc.skipped, names(dir, p.Skipped))
			require.Equal(t, int64(2*len(tc.want)), p.Chunks())
		})
	}
}

func TestNothingToRead(t *testing.T) {
	t.Parallel()
	dir := tree(t, "e/", "hidden/_a", "nested/x/y/", "z.bz2", "zs/part.XZ", "a")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empties"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empties", "empty"), nil, 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "loop"), 0o750))
	require.NoError(t, os.Symlink(filepath.Join(dir, "loop"), filepath.Join(dir, "loop", "again")))
	for entry, want := range map[string]string{
		"gone":          "gone: no data: no such file or directory",
		"gone/x":        "gone/x: no data: no such file or directory",
		"x*":            "x*: no data: nothing matches",
		"e":             "e: no data: the directory has no data files",
		"hidden":        "hidden: no data: the directory has no data files",
		"nested":        "nested: no data: the directory has no data files",
		"empty":         "empty: no data: every file is empty",
		"empties":       "empties: no data: every file is empty",
		"pipe":          "pipe: no data: not a regular file",
		"z.bz2":         "z.bz2: no data: files compressed as .bz2 are not implemented in this version; .gz and .zst are",
		"zs":            "part.XZ: no data: files compressed as .xz are not implemented in this version; .gz and .zst are",
		"loop":          "is there a loop of links?",
		"a/b":           "a/b: no data: stat",
		"/s3://bucket/": "s3:/bucket: no data: no such file or directory",
	} {
		_, err := NewPlan([]string{filepath.Join(dir, entry)}, Libsvm, 100)
		require.ErrorIs(t, err, ErrNoData, entry)
		require.ErrorContains(t, err, want)
		require.NotErrorIs(t, err, ErrData)
	}
	_, err := NewPlan([]string{"s3://bucket/x"}, Libsvm, 100)
	require.EqualError(t, err, "reader: s3://bucket/x: no data: object storage is not implemented in this version")
	_, err = NewPlan([]string{filepath.Join(dir, "gone"), filepath.Join(dir, "e"), filepath.Join(dir, "a")}, Libsvm, 100)
	require.Len(t, strings.Split(err.Error(), "\n"), 2, "all errors at once")
	_, err = NewPlan(nil, Libsvm, 100)
	require.ErrorIs(t, err, ErrNoData)
	_, err = NewPlan([]string{filepath.Join(dir, "a")}, "csv", 100)
	require.ErrorContains(t, err, `the format "csv" is not known, or has columns`)
	_, err = NewPlan([]string{filepath.Join(dir, "a")}, Libsvm, 0)
	require.ErrorContains(t, err, "a chunk of 0 bytes")
}

func TestSpans(t *testing.T) {
	t.Parallel()
	paths := write(t, strings.Repeat("1\n", 5), "1\n", strings.Repeat("1\n", 4))
	p := plan(t, 4, paths...)
	var got []string
	for c := range p.Chunks() {
		s, err := p.Span(c)
		require.NoError(t, err)
		got = append(got, fmt.Sprintf("%s %d-%d", filepath.Base(s.File), s.Start, s.End))
	}
	require.Equal(t, []string{"f00 0-4", "f00 4-8", "f00 8-10", "f01 0-2", "f02 0-4", "f02 4-8"}, got)
	_, err := p.Span(6)
	require.Error(t, err)
	p = plan(t, math.MaxInt64, paths...)
	require.Equal(t, int64(3), p.Chunks(), "the chunk size `file`")
	list, err := all(p, Options{Batch: 2})
	require.NoError(t, err)
	require.Len(t, list, 10)
}

func TestManifest(t *testing.T) {
	t.Parallel()
	paths := write(t, numbered(1, 3000, "\n"), numbered(2, 10, "\n"))
	p := plan(t, 1000, paths...)
	back, err := ParseManifest(p.Manifest())
	require.NoError(t, err)
	require.Equal(t, p.Files, back.Files)
	require.Equal(t, p.Chunks(), back.Chunks())
	require.Equal(t, p.Fingerprint(), back.Fingerprint())
	require.Empty(t, p.Diff(back.Manifest()))
	want, err := all(p, Options{Batch: 9, Shuffle: true})
	require.NoError(t, err)
	got, err := all(back, Options{Batch: 9, Shuffle: true})
	require.NoError(t, err)
	require.Equal(t, want, got, "another process reads the same from the manifest")

	var fields map[string]any
	require.NoError(t, json.Unmarshal(p.Manifest(), &fields))
	for name, change := range map[string]func(){
		"no format":   func() { fields["format"] = "" },
		"no chunk":    func() { fields["chunk"] = 0 },
		"no files":    func() { delete(fields, "files") },
		"other files": func() { fields["files"].([]any)[0].(map[string]any)["size"] = 7 },
		"no size":     func() { fields["files"].([]any)[0].(map[string]any)["size"] = 0 },
	} {
		require.NoError(t, json.Unmarshal(p.Manifest(), &fields))
		change()
		broken, err := json.Marshal(fields)
		require.NoError(t, err)
		_, err = ParseManifest(broken)
		require.Error(t, err, name)
	}
	_, err = ParseManifest([]byte("{"))
	require.Error(t, err)
	require.Contains(t, p.Diff([]byte("{")), "the job's manifest cannot be read")
}

// TestDiff: a process with another view of the files is told the first
// difference.
func TestDiff(t *testing.T) {
	t.Parallel()
	paths := write(t, numbered(1, 100, "\n"), numbered(2, 10, "\n"), numbered(3, 10, "\n"))
	p := plan(t, 1000, paths...)
	for want, other := range map[string]*Plan{
		"":                                 plan(t, 1000, paths...),
		"chunk: 999 in the job, 1000 here": plan(t, 999, paths...),
		"2 files in the job, 3 here; " + paths[2] + " is only here":    plan(t, 1000, paths[:2]...),
		"4 files in the job, 3 here; " + paths[0] + " is missing here": plan(t, 1000, append(paths, paths[0])...),
		"file 2: " + paths[2] + " in the job, " + paths[1] + " here":   plan(t, 1000, paths[0], paths[2]),
	} {
		require.Equal(t, want, p.Diff(other.Manifest()))
	}
	before := p.Manifest()
	change := func(text string) string {
		require.NoError(t, os.WriteFile(paths[1], []byte(text), 0o600))
		return plan(t, 1000, paths...).Diff(before)
	}
	size := len(numbered(2, 10, "\n"))
	require.Equal(t, fmt.Sprintf("file 2: %s: %d bytes in the job, 6 here", paths[1], size), change("1 1:1\n"))
	require.Equal(t, "file 2: "+paths[1]+": another content in the job than here", change(strings.Repeat("1", size)))
	require.Empty(t, change(numbered(2, 10, "\n")))
}

// TestLongList: a manifest of many files has only their fingerprint, so that
// it stays small.
func TestLongList(t *testing.T) {
	t.Parallel()
	p := &Plan{Format: Libsvm, Chunk: 10}
	for i := range 5000 {
		p.Files = append(p.Files, File{Path: fmt.Sprintf("/data/some/long/directory/part-%05d", i), Size: 15, Digest: "0123456789abcdef"})
	}
	p.cut()
	require.Less(t, len(p.Manifest()), 300)
	require.Empty(t, p.Diff(p.Manifest()))
	_, err := ParseManifest(p.Manifest())
	require.ErrorContains(t, err, "incomplete")
	before := p.Manifest()
	p.Files[4999].Size++
	require.Contains(t, p.Diff(before), "fingerprint: ")
	p.Files = p.Files[:4998]
	p.cut()
	require.Equal(t, "5000 files in the job, 4998 here", p.Diff(before))
}

// TestChangedFiles: a file that is not any more what was planned is noticed
// before it is trained on, and is not taken for bad data.
func TestChangedFiles(t *testing.T) {
	t.Parallel()
	text := numbered(1, 2000, "\n")
	later := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		change func(t *testing.T, path string)
		want   string
	}{
		"vanished": {func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, "vanished"},
		"shrank": {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 100)) },
			fmt.Sprintf("has 100 bytes now, %d when the job was planned", len(text))},
		"grew": {func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte(text+"1\n"), 0o600)) },
			fmt.Sprintf("has %d bytes now, %d when the job was planned", len(text)+2, len(text))},
		"was rewritten in the same size": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("0" + text[1:] + " ")[:len(text)], 0o600))
			require.NoError(t, os.WriteFile(path, []byte("1"+text[1:]), 0o600))
			require.NoError(t, os.Chtimes(path, later, later))
		}, "has another content than when the job was planned"},
		"was replaced in the same size": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+"2", []byte(text[:len(text)-2]+"2\n"), 0o600))
			require.NoError(t, os.Chtimes(path+"2", later, later))
			require.NoError(t, os.Rename(path+"2", path))
		}, "has another content than when the job was planned"},
		"became a directory": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o750))
		}, "bytes now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, text)[0]
			p := plan(t, 1000, path)
			fromManifest, err := ParseManifest(p.Manifest())
			require.NoError(t, err)
			tc.change(t, path)
			for _, p := range []*Plan{p, fromManifest} {
				_, err := p.Open(t.Context(), 1, Options{Batch: 10})
				require.ErrorIs(t, err, ErrData)
				require.NotErrorIs(t, err, ErrBadData)
				require.ErrorContains(t, err, path+": ")
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
	path := write(t, text)[0]
	p := plan(t, 1000, path)
	require.NoError(t, os.Chtimes(path, later, later))
	_, err := all(p, Options{Batch: 10})
	require.NoError(t, err, "touching a file, or copying it back, is no change")
}

// TestChangedWhileReading: also while a chunk is being read.
func TestChangedWhileReading(t *testing.T) {
	t.Parallel()
	text := numbered(1, 60000, "\n")
	for name, tc := range map[string]struct {
		change func(path string) error
		want   string
	}{
		"shrank": {func(path string) error { return os.Truncate(path, 1000) }, "is shorter than when the job was planned"},
		"turned to garbage": {func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("x\n", len(text)/2+1))[:len(text)], 0o600)
		}, "changed while it was read"},
		"was touched": {func(path string) error { return os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)) },
			"changed while it was read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, text)[0]
			p := plan(t, 1<<40, path)
			r, err := p.Open(t.Context(), 0, Options{Batch: 10})
			require.NoError(t, err)
			defer r.Close()
			var b Batch
			require.NoError(t, r.Next(&b))
			require.NoError(t, tc.change(path))
			for err == nil {
				err = r.Next(&b)
			}
			var changed *DataError
			require.ErrorAs(t, err, &changed)
			require.ErrorIs(t, err, ErrData)
			require.NotErrorIs(t, err, ErrBadData, "a file that is being rewritten is no bad record")
			require.Contains(t, err.Error(), path)
			require.Contains(t, err.Error(), tc.want)
			require.Equal(t, err, r.Next(&b), "an error is final")
		})
	}
}

// TestUnreadable: an error of the file system is none of the data.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	path := write(t, numbered(1, 5, "\n"))[0]
	p := plan(t, 1000, path)
	r, err := p.Open(t.Context(), 0, Options{Batch: 10})
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, r.file.Close())
	var b Batch
	err = r.Next(&b)
	require.ErrorIs(t, err, ErrData)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "cannot be read")
	require.Equal(t, []error{ErrData, nil}, (&DataError{}).Unwrap())
	require.NotErrorIs(t, &DataError{}, errors.ErrUnsupported)
}
