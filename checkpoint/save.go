package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"starfish/internal/failpoint"
)

// File is what Save wrote.
type File struct {
	UUID string
	Path string // relative to the directory
	MD5  string // of the file's bytes, in hex
	Size int64  // bytes
}

// Save writes one file into dir, which must exist, and makes it durable. It
// lists nothing. After an error no file of that name is complete; what is left
// of it is an orphan.
//
// The context is looked at between blocks, so that a save that nobody waits for
// any more ends early.
func Save(ctx context.Context, fsys FS, dir string, h Header, write func(Emit) error) (File, error) {
	h.Version = FormatVersion
	id := uuid.New()
	name := fileName(h.Shard, h.Generation, id)
	tmp := filepath.Join(dir, name+tmpSuffix)
	w, err := writeTemp(ctx, fsys, tmp, h, write)
	if err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: %w", name, err)
	}
	failpoint.Hit(failpoint.SaveWritten)
	if err := fsys.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: %w", name, errors.Join(err, fsys.Remove(tmp)))
	}
	failpoint.Hit(failpoint.SaveRenamed)
	if err := fsys.SyncDir(dir); err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: sync directory: %w", name, err)
	}
	failpoint.Hit(failpoint.SaveSynced)
	return File{UUID: id.String(), Path: name, MD5: w.hex(), Size: w.size}, nil
}

// writeTemp leaves a complete, synced file under the temporary name, or none.
// The writer that it returns knows digest and size.
func writeTemp(ctx context.Context, fsys FS, tmp string, h Header, write func(Emit) error) (*writer, error) {
	f, err := fsys.Create(tmp)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SaveBegun)
	w := newWriter(f)
	err = encode(w, h, func(emit Emit) error {
		return write(func(section string, data []byte) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			return emit(section, data)
		})
	})
	// What the disk says is the cause of what the encoder says, if it does.
	if failed := w.Close(); failed != nil {
		err = failed
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		// The space matters: the disk may be full. Collect gets what stays.
		return nil, errors.Join(err, fsys.Remove(tmp))
	}
	return w, nil
}
