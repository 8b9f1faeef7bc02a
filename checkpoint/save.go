package checkpoint

import (
	"bufio"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path/filepath"

	"github.com/google/uuid"
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
	sum := &digest{hash: md5.New()}
	if err := writeTemp(ctx, fsys, tmp, sum, h, write); err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: %w", name, err)
	}
	if err := fsys.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: %w", name, errors.Join(err, fsys.Remove(tmp)))
	}
	if err := fsys.SyncDir(dir); err != nil {
		return File{}, fmt.Errorf("checkpoint: save %s: sync directory: %w", name, err)
	}
	return File{UUID: id.String(), Path: name, MD5: sum.hex(), Size: sum.size}, nil
}

// writeTemp leaves a complete, synced file under the temporary name, or none.
func writeTemp(ctx context.Context, fsys FS, tmp string, sum *digest, h Header, write func(Emit) error) error {
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	sum.to = bufio.NewWriterSize(f, 256<<10)
	err = encode(sum, h, func(emit Emit) error {
		return write(func(section string, data []byte) error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			return emit(section, data)
		})
	})
	if err == nil {
		err = sum.to.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		// The space matters: the disk may be full. Collect gets what stays.
		return errors.Join(err, fsys.Remove(tmp))
	}
	return nil
}

// digest takes MD5 and size of exactly the bytes that go to the file.
type digest struct {
	to   *bufio.Writer
	hash hash.Hash
	size int64
}

func (d *digest) Write(p []byte) (int, error) {
	n, err := d.to.Write(p)
	d.hash.Write(p[:n])
	d.size += int64(n)
	return n, err
}

func (d *digest) hex() string { return hex.EncodeToString(d.hash.Sum(nil)) }

// digestOf reads a file to its end.
func digestOf(ctx context.Context, r io.Reader) (sum string, size int64, err error) {
	h := md5.New()
	buf := make([]byte, 256<<10)
	for {
		if err := context.Cause(ctx); err != nil {
			return "", size, err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		size += int64(n)
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", size, err
		}
	}
}
