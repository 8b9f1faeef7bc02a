package checkpoint

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// FS is what the package needs of a file system. OS is the real one; tests use
// a twin in memory that can crash and fail at every step.
//
// Errors are those of package io/fs: a missing file is fs.ErrNotExist, an
// existing one fs.ErrExist.
type FS interface {
	// MkdirAll makes a directory and its parents.
	MkdirAll(dir string) error
	// Create makes a new, empty file; it fails if the name is taken.
	Create(name string) (Writer, error)
	// Open reads a file from its start.
	Open(name string) (io.ReadCloser, error)
	// Size is the length of a file in bytes.
	Size(name string) (int64, error)
	// Rename moves a file, over an existing one too.
	Rename(from, to string) error
	// RenameNew moves a file and fails with fs.ErrExist if the name is taken,
	// atomically: of two processes that try, one succeeds.
	RenameNew(from, to string) error
	// Remove deletes a file.
	Remove(name string) error
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
	// List names the entries of dir.
	List(dir string) ([]string, error)
}

// Writer is a file that is being written.
type Writer interface {
	io.Writer
	// Sync makes what was written durable.
	Sync() error
	Close() error
}

// OS is the machine's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o755) }

func (osFS) Create(name string) (Writer, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFS) Open(name string) (io.ReadCloser, error) { return os.Open(name) }

func (osFS) Size(name string) (int64, error) {
	st, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	if !st.Mode().IsRegular() {
		return 0, &fs.PathError{Op: "size", Path: name, Err: errors.New("not a regular file")}
	}
	return st.Size(), nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

// RenameNew links the new name and removes the old one, because a rename would
// overwrite. Where hard links do not exist the check is not atomic; such a
// directory must not be given to two jobs at the same instant.
func (osFS) RenameNew(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil:
		return os.Remove(from)
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, statErr := os.Lstat(to); !errors.Is(statErr, fs.ErrNotExist) {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
