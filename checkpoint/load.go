package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"starfish/internal/clock"
)

// ErrNoneLoads: there are listed checkpoints and none of them loads. Its text
// names every file that was looked for and what was wrong with it.
var ErrNoneLoads = errors.New("checkpoint: no listed checkpoint loads")

// Skipped is a listed checkpoint that did not load, and why.
type Skipped struct {
	Meta Meta
	Err  error
}

// Loader reads the files of one job.
type Loader struct {
	FS    FS // nil: OS
	Dir   string
	Job   uuid.UUID
	Clock clock.Clock // nil: clock.System
	// Retries is how often a file that could not be read is tried again, and
	// Pause the time between. A file that is absent, short or wrong is not
	// tried again, and neither is one whose content was refused. Zero: 3
	// retries, half a second apart.
	Retries int
	Pause   time.Duration
}

// Sink takes what a file holds. An error of its methods counts as an error of
// the file. What is added may come from a broken file until Finish is called.
type Sink interface {
	// Reset throws away what was added: another attempt begins.
	Reset()
	// Add takes the next block of a section; data is valid during the call only.
	Add(section string, data []byte) error
	// Finish is called once the whole file was added and found sound.
	Finish() error
}

// Load gives the first of metas (newest first) that is sound to the sink.
//
// It returns the record that was loaded and those that were passed over on the
// way; the caller must Drop these before it serves. With no metas at all it
// returns a zero Meta and no error: there is nothing that could be lost.
func (l Loader) Load(ctx context.Context, metas []Meta, into Sink) (Meta, []Skipped, error) {
	if len(metas) == 0 {
		return Meta{}, nil, nil
	}
	var skipped []Skipped
	for _, m := range metas {
		err := l.loadOne(ctx, m, into)
		if err == nil {
			return m, skipped, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return Meta{}, nil, cause
		}
		skipped = append(skipped, Skipped{Meta: m, Err: err})
	}
	return Meta{}, skipped, noneLoads(l.Dir, skipped)
}

// Verify reads a listed file as Load would and keeps nothing.
func (l Loader) Verify(ctx context.Context, m Meta) error {
	return l.loadOne(ctx, m, discard{})
}

func noneLoads(dir string, skipped []Skipped) error {
	var b strings.Builder
	for i, s := range skipped {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %v", filepath.Join(dir, s.Meta.Path), s.Err)
	}
	return fmt.Errorf("%w for shard %d: %s", ErrNoneLoads, skipped[0].Meta.Shard, b.String())
}

func (l Loader) loadOne(ctx context.Context, m Meta, into Sink) error {
	retries, pause := l.Retries, l.Pause
	if retries == 0 {
		retries = 3
	}
	if pause == 0 {
		pause = 500 * time.Millisecond
	}
	clk := l.Clock
	if clk == nil {
		clk = clock.System
	}
	if err := checkPath(m); err != nil {
		return err
	}
	for try := 0; ; try++ {
		into.Reset()
		err := l.attempt(ctx, m, into)
		var read *readError
		if err == nil || !errors.As(err, &read) || try == retries {
			return err
		}
		if err := clock.Sleep(ctx, clk, pause); err != nil {
			return err
		}
	}
}

// attempt reads the file once: its digest is taken while it is decoded, and
// what was decoded counts, by Finish, when the digest is right.
func (l Loader) attempt(ctx context.Context, m Meta, into Sink) error {
	fsys := l.FS
	if fsys == nil {
		fsys = OS
	}
	name := filepath.Join(l.Dir, m.Path)
	size, err := fsys.Size(name)
	if err != nil {
		return openError(err)
	}
	if size != m.Size {
		return fmt.Errorf("%w: %d bytes long, its record says %d", ErrFormat, size, m.Size)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return openError(err)
	}
	r := newReader(f, func() error { return context.Cause(ctx) })
	decoded := decode(r, l.header(m), into.Add)
	if err = errors.Join(r.Close(), f.Close()); err != nil {
		return &readError{err}
	}
	// In a file that is not what was written, whatever the decoder or the sink
	// has stumbled over is a consequence.
	if sum := r.hex(); r.size != m.Size || !strings.EqualFold(sum, m.MD5) {
		return fmt.Errorf("%w: MD5 %s over %d bytes, its record says %s over %d", ErrFormat, sum, r.size, m.MD5, m.Size)
	}
	if decoded != nil {
		return decoded
	}
	return into.Finish()
}

// header checks that a file is what its record says.
func (l Loader) header(m Meta) func(Header) error {
	return func(h Header) error {
		if h.JobUUID != l.Job.String() || h.Shard != m.Shard || h.Generation != m.Generation {
			return fmt.Errorf("%w: its header says job %s shard %d generation %d", ErrFormat,
				h.JobUUID, h.Shard, h.Generation)
		}
		return nil
	}
}

type discard struct{}

func (discard) Reset()                   {}
func (discard) Add(string, []byte) error { return nil }
func (discard) Finish() error            { return nil }

// openError makes every error but "it is not there" one that is tried again.
func openError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the file is missing: %w", err)
	}
	return &readError{err}
}
