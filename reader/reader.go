package reader

import (
	"context"
	"encoding/json"
	"errors"
)

// Labels is what a model accepts as a label.
type Labels int

// The kinds of label.
const (
	// LabelAny is any finite number.
	LabelAny Labels = iota
	// LabelBinary is 1, 0 or -1; -1 becomes 0.
	LabelBinary
	// LabelReal is any finite number.
	LabelReal
)

var (
	// ErrNoData: an entry is missing or there is nothing to read in it (exit 2).
	ErrNoData = errors.New("reader: no data")
	// ErrData: a planned file vanished, changed or became unreadable (exit 6).
	ErrData = errors.New("reader: data changed")
)

// File is one planned file.
type File struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	// Digest is the xxh64 of the file's head and tail, in hex.
	Digest string `json:"digest"`
}

// Plan is a list of files and how they are cut into chunks.
type Plan struct {
	Files   []File
	Skipped []string
}

// Options of reading a chunk.
type Options struct {
	// Batch is the number of records of a batch.
	Batch int
	// Shuffle permutes the records within windows.
	Shuffle bool
	Seed    uint64
	Pass    int
	// MaxBad is how many bad records a chunk may have.
	MaxBad int
	// Bits: keys are taken modulo 2^Bits; 0: as they are.
	Bits   int
	Labels Labels
}

// NewPlan plans the files of paths.
func NewPlan(paths []string, format string, chunk int64) (*Plan, error) { return nil, ErrNoData }

// ParseManifest reads a stored manifest.
func ParseManifest(m json.RawMessage) (*Plan, error) { return nil, ErrNoData }

// Manifest is the plan's stored form.
func (p *Plan) Manifest() json.RawMessage { return nil }

// Chunks is the number of chunks.
func (p *Plan) Chunks() int64 { return 0 }

// Fingerprint identifies the plan.
func (p *Plan) Fingerprint() string { return "" }

// Diff is the first difference to a stored manifest, empty if there is none.
func (p *Plan) Diff(m json.RawMessage) string { return "" }

// Open opens a chunk.
func (p *Plan) Open(ctx context.Context, chunk int64, o Options) (*Reader, error) {
	return nil, ErrNoData
}

// Reader reads one chunk.
type Reader struct{}

// Next fills b with the next batch; io.EOF after the batch with Last.
func (r *Reader) Next(b *Batch) error { return ErrNoData }

// SkipTo makes batch n the next one.
func (r *Reader) SkipTo(n int) {}

// Bad is the number of bad records so far.
func (r *Reader) Bad() int { return 0 }

// Close releases the file and the memory; it may be called at any time and twice.
func (r *Reader) Close() error { return nil }
