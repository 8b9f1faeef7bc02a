package reader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Libsvm is the name of the libsvm text format.
const Libsvm = "libsvm"

// sample is how much of a file's head and of its tail its digest covers.
const sample = 4 << 10

// File is one planned file.
type File struct {
	Path string `json:"path"`
	// Size in bytes. The file is cut at this size.
	Size int64 `json:"size"`
	// Digest is the xxh64 of the file's first and last 4 KiB, in hex.
	Digest string `json:"digest"`
}

// Plan is a list of files and their chunks. It is safe for concurrent use.
type Plan struct {
	// Format of all files.
	Format string
	// Chunk is the size of a chunk in bytes.
	Chunk int64
	// Files in their order, without empty ones.
	Files []File
	// Skipped are the names in directories that were passed over because they
	// start with "_" or ".": something to log once.
	Skipped []string

	first []int64        // first[i] is the first chunk of file i; one more at the end
	seen  []atomic.Int64 // the modification time at which file i had its digest
	pool  sync.Pool      // of *memory

	columns *Columns                 // of formats that have some
	layouts []atomic.Pointer[layout] // of each file, once it is known
}

// NewPlan lists the files of paths (files, directories, globs) and cuts them
// into chunks of that many bytes; chunk math.MaxInt64 makes each file one. Its
// errors are ErrNoData: missing files, directories without data, nothing but
// empty files. A file whose name ends in .gz or .zst is one chunk.
func NewPlan(paths []string, format string, chunk int64) (*Plan, error) {
	if format != Libsvm {
		return nil, fmt.Errorf("reader: the format %q is not known, or has columns", format)
	}
	return newPlan(paths, format, chunk)
}

// NewColumnsPlan is NewPlan for CSV and TSV. It reads the first line of each
// file; files that lack columns are ErrColumns.
func NewColumnsPlan(paths []string, format string, chunk int64, columns Columns) (*Plan, error) {
	if format != CSV && format != TSV {
		return nil, fmt.Errorf("reader: the format %q is not known, or has no columns", format)
	}
	c, err := columns.prepared(format)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(paths, format, chunk)
	if err != nil {
		return nil, err
	}
	p.columns = c
	p.layouts = make([]atomic.Pointer[layout], len(p.Files))
	records := false
	for i := range p.Files {
		if err := p.lookAtColumns(i); err != nil {
			return nil, err
		}
		l := p.layouts[i].Load()
		records = records || l == nil || Compressed(p.Files[i].Path) || l.start < p.Files[i].Size
	}
	if !records {
		return nil, fmt.Errorf("reader: %s: %w: every file has nothing but its header", strings.Join(paths, ", "), ErrNoData)
	}
	return p, nil
}

// lookAtColumns finds the layout of file i. A file that is damaged is left to
// whoever reads it: it costs its own chunk only.
func (p *Plan) lookAtColumns(i int) error {
	path := p.Files[i].Path
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reader: %w: %w", ErrNoData, err)
	}
	defer file.Close()
	var f io.ReaderAt = file
	if Compressed(path) {
		s := newStream(path, file, p.Files[i].Size)
		defer s.close()
		f = s
	}
	_, err = p.layoutOf(i, f)
	var d *damage
	switch {
	case err == nil || errors.As(err, &d):
		return nil
	case errors.Is(err, ErrColumns):
		if what := looksLike(p.Format, p.columns.Delimiter, headOf(f)); what != "" {
			return fmt.Errorf("reader: %s: %w; the file %s", path, err, what)
		}
		return fmt.Errorf("reader: %s: %w", path, err)
	default:
		return fmt.Errorf("reader: %w: %w", ErrNoData, err)
	}
}

func newPlan(paths []string, format string, chunk int64) (*Plan, error) {
	if chunk < 1 {
		return nil, fmt.Errorf("reader: a chunk of %d bytes", chunk)
	}
	var x expansion
	for _, path := range paths {
		x.entry(path)
	}
	if err := x.err(); err != nil {
		return nil, err
	}
	p := &Plan{Format: format, Chunk: chunk, Skipped: x.skipped}
	var times []int64
	for _, path := range x.files {
		f, modified, err := look(path)
		if err != nil {
			return nil, err
		}
		if f.Size > 0 {
			p.Files = append(p.Files, f)
			times = append(times, modified)
		}
	}
	if len(p.Files) == 0 {
		return nil, fmt.Errorf("reader: %s: %w: every file is empty", strings.Join(paths, ", "), ErrNoData)
	}
	p.cut()
	for i, t := range times {
		p.seen[i].Store(t)
	}
	return p, nil
}

// Chunks is the number of chunks of all files.
func (p *Plan) Chunks() int64 { return p.first[len(p.Files)] }

// cut numbers the chunks.
func (p *Plan) cut() {
	p.first = make([]int64, len(p.Files)+1)
	p.seen = make([]atomic.Int64, len(p.Files))
	for i, f := range p.Files {
		p.seen[i].Store(math.MinInt64)
		p.first[i+1] = p.first[i] + 1
		if !p.oneChunk(i) {
			p.first[i+1] += (f.Size - 1) / p.Chunk
		}
	}
}

// Unsplit are the files that are one chunk because they are compressed.
func (p *Plan) Unsplit() []File {
	var files []File
	for _, f := range p.Files {
		if Compressed(f.Path) {
			files = append(files, f)
		}
	}
	return files
}

// oneChunk tells whether file i is one chunk, whatever its size.
func (p *Plan) oneChunk(i int) bool {
	return p.Chunk == math.MaxInt64 || Compressed(p.Files[i].Path)
}

// Span is where a chunk lies: bytes [Start, End) of File.
type Span struct {
	File       string
	Start, End int64
}

// Span tells where a chunk lies.
func (p *Plan) Span(chunk int64) (Span, error) {
	i, start, end, err := p.locate(chunk)
	if err != nil {
		return Span{}, err
	}
	return Span{File: p.Files[i].Path, Start: start, End: end}, nil
}

func (p *Plan) locate(chunk int64) (file int, start, end int64, err error) {
	if chunk < 0 || chunk >= p.Chunks() {
		return 0, 0, 0, fmt.Errorf("reader: there is no chunk %d among %d", chunk, p.Chunks())
	}
	file = sort.Search(len(p.Files), func(i int) bool { return p.first[i+1] > chunk })
	start = (chunk - p.first[file]) * p.Chunk
	end = p.Files[file].Size
	if end-start > p.Chunk && !p.oneChunk(file) {
		end = start + p.Chunk
	}
	return file, start, end, nil
}

// open opens file i and checks that it still is what was planned. Its digest is
// read again only when its modification time has moved.
func (p *Plan) open(i int) (*os.File, os.FileInfo, error) {
	planned := p.Files[i]
	f, err := os.Open(planned.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, &DataError{File: planned.Path, Reason: "vanished", Err: err}
	}
	if err != nil {
		return nil, nil, &DataError{File: planned.Path, Reason: "cannot be opened", Err: err}
	}
	info, err := p.verify(i, f)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (p *Plan) verify(i int, f *os.File) (os.FileInfo, error) {
	planned := p.Files[i]
	info, err := f.Stat()
	if err != nil {
		return nil, &DataError{File: planned.Path, Reason: "cannot be read", Err: err}
	}
	if info.Size() != planned.Size {
		return nil, &DataError{File: planned.Path, Reason: fmt.Sprintf(
			"has %d bytes now, %d when the job was planned", info.Size(), planned.Size)}
	}
	modified := info.ModTime().UnixNano()
	if p.seen[i].Load() == modified {
		return info, nil
	}
	digest, err := digest(f, planned.Size)
	if err != nil {
		return nil, &DataError{File: planned.Path, Reason: "cannot be read", Err: err}
	}
	if digest != planned.Digest {
		return nil, &DataError{File: planned.Path, Reason: "has another content than when the job was planned"}
	}
	p.seen[i].Store(modified)
	return info, nil
}

// look reads what the plan needs of a file, and its modification time.
func look(path string) (File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, 0, fmt.Errorf("reader: %w: %w", ErrNoData, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, 0, fmt.Errorf("reader: %w: %w", ErrNoData, err)
	}
	d, err := digest(f, info.Size())
	if err != nil {
		return File{}, 0, fmt.Errorf("reader: %s: %w: %w", path, ErrNoData, err)
	}
	return File{Path: path, Size: info.Size(), Digest: d}, info.ModTime().UnixNano(), nil
}

// digest is the xxh64 of a file's head and tail.
func digest(f io.ReaderAt, size int64) (string, error) {
	h := xxhash.New()
	parts := [][2]int64{{0, min(size, sample)}, {max(size-sample, min(size, sample)), size}}
	for _, part := range parts {
		if _, err := io.Copy(h, io.NewSectionReader(f, part[0], part[1]-part[0])); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// manifest is the stored form of a plan.
type manifest struct {
	Format      string `json:"format"`
	Chunk       int64  `json:"chunk"`
	Chunks      int64  `json:"chunks"`
	Count       int    `json:"count"`
	Fingerprint string `json:"fingerprint"`
	// Files is left out when the list is long; the fingerprint stands for it.
	Files []File `json:"files,omitempty"`
}

// longList is the size in bytes from which on a manifest leaves out its list.
const longList = 256 << 10

// Fingerprint identifies the list of files and how it is cut: the xxh64 of
// format, chunk size, and the names, sizes and digests of all files.
func (p *Plan) Fingerprint() string {
	h := xxhash.New()
	_, _ = fmt.Fprintf(h, "%s %d\n", p.Format, p.Chunk)
	for _, f := range p.Files {
		_, _ = fmt.Fprintf(h, "%q %d %s\n", f.Path, f.Size, f.Digest)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

// Manifest is the plan's stored form, as JSON.
func (p *Plan) Manifest() json.RawMessage {
	m := p.manifest()
	b, err := json.Marshal(m)
	if err == nil && len(b) > longList {
		m.Files = nil
		b, err = json.Marshal(m)
	}
	if err != nil {
		panic(fmt.Sprintf("reader: a manifest of strings and numbers: %v", err))
	}
	return b
}

func (p *Plan) manifest() manifest {
	return manifest{Format: p.Format, Chunk: p.Chunk, Chunks: p.Chunks(), Count: len(p.Files),
		Fingerprint: p.Fingerprint(), Files: p.Files}
}

// ParseManifest makes a plan of a stored manifest that has its list of files. Of
// a format with columns, which a manifest does not know, it says where chunks
// lie and opens none.
func ParseManifest(stored json.RawMessage) (*Plan, error) {
	var m manifest
	if err := json.Unmarshal(stored, &m); err != nil {
		return nil, fmt.Errorf("reader: manifest: %w", err)
	}
	p := &Plan{Format: m.Format, Chunk: m.Chunk, Files: m.Files}
	if m.Format == "" || m.Chunk < 1 || len(m.Files) == 0 || len(m.Files) != m.Count {
		return nil, errors.New("reader: the manifest is incomplete or of another version")
	}
	for _, f := range m.Files {
		if f.Size < 1 {
			return nil, fmt.Errorf("reader: manifest: %s has %d bytes", f.Path, f.Size)
		}
	}
	p.cut()
	if p.Fingerprint() != m.Fingerprint || p.Chunks() != m.Chunks {
		return nil, errors.New("reader: the manifest contradicts its own fingerprint")
	}
	return p, nil
}

// Diff is the first difference between the manifest with which the job was
// planned and this plan, in words; empty if there is none.
func (p *Plan) Diff(stored json.RawMessage) string {
	var m manifest
	if err := json.Unmarshal(stored, &m); err != nil {
		return fmt.Sprintf("the job's manifest cannot be read: %v", err)
	}
	mine := p.manifest()
	switch {
	case mine.Fingerprint == m.Fingerprint:
		return ""
	case mine.Format != m.Format:
		return fmt.Sprintf("format: %s in the job, %s here", m.Format, mine.Format)
	case mine.Chunk != m.Chunk:
		return fmt.Sprintf("chunk: %d in the job, %d here", m.Chunk, mine.Chunk)
	}
	for i := range min(len(mine.Files), len(m.Files)) {
		if d := diffFile(m.Files[i], mine.Files[i]); d != "" {
			return fmt.Sprintf("file %d: %s", i+1, d)
		}
	}
	if mine.Count != m.Count {
		return fmt.Sprintf("%d files in the job, %d here%s", m.Count, mine.Count, extra(m.Files, mine.Files))
	}
	return fmt.Sprintf("fingerprint: %s in the job, %s here", m.Fingerprint, mine.Fingerprint)
}

func diffFile(have, mine File) string {
	switch {
	case have.Path != mine.Path:
		return fmt.Sprintf("%s in the job, %s here", have.Path, mine.Path)
	case have.Size != mine.Size:
		return fmt.Sprintf("%s: %d bytes in the job, %d here", mine.Path, have.Size, mine.Size)
	case have.Digest != mine.Digest:
		return fmt.Sprintf("%s: another content in the job than here", mine.Path)
	}
	return ""
}

// extra names the first file that only the longer list has.
func extra(have, mine []File) string {
	switch {
	case len(have) == 0 || len(have) == len(mine):
		return ""
	case len(have) > len(mine):
		return fmt.Sprintf("; %s is missing here", have[len(mine)].Path)
	default:
		return fmt.Sprintf("; %s is only here", mine[len(have)].Path)
	}
}
