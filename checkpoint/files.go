package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"starfish/internal/store"
)

// Remove deletes the files of records that Publish dropped. A file that is gone
// already is no error; one that stays is an orphan.
func Remove(fsys FS, dir string, dropped []Meta) error {
	var errs []error
	for _, m := range dropped {
		if err := checkPath(m); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := fsys.Remove(filepath.Join(dir, m.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("checkpoint: remove: %w", err)
	}
	return nil
}

// SetAside renames the files of records that were dropped because they did not
// load, so that they are kept for inspection and never taken for anything else.
func SetAside(fsys FS, dir string, skipped []Skipped) error {
	var errs []error
	for _, s := range skipped {
		if err := checkPath(s.Meta); err != nil {
			errs = append(errs, err)
			continue
		}
		name := filepath.Join(dir, s.Meta.Path)
		if err := fsys.Rename(name, name+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("checkpoint: set aside: %w", err)
	}
	return nil
}

// Erase removes all checkpoint files of a directory and then its marker, if the
// directory is the job's: for a job that was deleted. Other files stay, and the
// directory with them. It returns the number of files.
func Erase(fsys FS, dir string, job uuid.UUID) (int, error) {
	if err := CheckMarker(fsys, dir, job); err != nil {
		return 0, err
	}
	names, err := fsys.List(dir)
	if err != nil {
		return 0, fmt.Errorf("checkpoint: erase: %w", err)
	}
	n := 0
	for _, name := range names {
		if _, _, ok := parseName(strings.TrimSuffix(name, badSuffix)); !ok {
			continue
		}
		if err := fsys.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, fmt.Errorf("checkpoint: erase: %w", err)
		}
		n++
	}
	if err := fsys.Remove(filepath.Join(dir, markerName)); err != nil {
		return n, fmt.Errorf("checkpoint: erase: %w", err)
	}
	return n, nil
}

// Collect removes what crashes left of the owner's shard: temporary files, and
// files that no record lists. It must not run beside a save of the same shard.
//
// The directory is read before etcd. A file seen there whose generation is not
// above the owner's, and which is not listed while the owner still owns the
// shard, can never be listed any more: its saver was superseded, or was us. So
// an owner that does not know yet that it was superseded cannot remove a file
// of its successor.
func Collect(ctx context.Context, fsys FS, dir string, st store.Store, own Owner) (removed []string, err error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: collect: %w", err)
	}
	now, err := read(ctx, st, own)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: collect: %w", err)
	}
	if err := now.owned(own); err != nil {
		return nil, fmt.Errorf("checkpoint: collect: %w", err)
	}
	listed := make(map[string]bool, len(now.metas))
	for _, m := range now.metas {
		listed[m.Path] = true
	}
	var errs []error
	for _, name := range names {
		shard, generation, ok := parseName(name)
		if !ok || shard != own.Shard || generation > own.Generation || listed[name] {
			continue
		}
		if err := fsys.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("checkpoint: collect: %w", err)
	}
	return removed, nil
}
