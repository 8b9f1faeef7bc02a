package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

var (
	// ErrForeign: the directory belongs to another job.
	ErrForeign = errors.New("checkpoint: the directory belongs to another job")
	// ErrNoMarker: the directory has never been used by this job, so whoever
	// looks at it does not see the job's checkpoints.
	ErrNoMarker = errors.New("checkpoint: the directory does not belong to the job yet")
)

// CheckMarker tells whether dir belongs to the job: nil, ErrNoMarker (nobody's,
// or no such directory) or ErrForeign.
func CheckMarker(fsys FS, dir string, job uuid.UUID) error {
	name := filepath.Join(dir, markerName)
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is missing", ErrNoMarker, name)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: read marker: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, 256))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("checkpoint: read marker: %w", err)
	}
	if owner := strings.TrimSpace(string(text)); owner != job.String() {
		return fmt.Errorf("%w: %s names job %.40q, this job is %s", ErrForeign, name, owner, job)
	}
	return nil
}

// Mark makes dir, if need be, and makes it the job's. Of several processes that
// mark a directory at once, for one job or for different ones, one decides.
func Mark(fsys FS, dir string, job uuid.UUID) error {
	if err := CheckMarker(fsys, dir, job); !errors.Is(err, ErrNoMarker) {
		return err
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return fmt.Errorf("checkpoint: make directory: %w", err)
	}
	tmp := filepath.Join(dir, markerName+"-"+uuid.NewString()+tmpSuffix)
	err := writeSmall(fsys, tmp, job.String()+"\n")
	if err == nil {
		err = fsys.RenameNew(tmp, filepath.Join(dir, markerName))
	}
	if errors.Is(err, fs.ErrExist) {
		return errors.Join(fsys.Remove(tmp), CheckMarker(fsys, dir, job))
	}
	if err != nil {
		return fmt.Errorf("checkpoint: write marker: %w", errors.Join(err, fsys.Remove(tmp)))
	}
	// The parent too: the directory itself may be new.
	if err := errors.Join(fsys.SyncDir(dir), fsys.SyncDir(filepath.Dir(filepath.Clean(dir)))); err != nil {
		return fmt.Errorf("checkpoint: write marker: %w", err)
	}
	return nil
}

func writeSmall(fsys FS, name, text string) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
