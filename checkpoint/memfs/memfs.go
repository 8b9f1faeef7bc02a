// Package memfs is the in-memory twin of the checkpoint package's file system.
//
// It knows the difference between what was written and what is durable: the
// bytes of a file are durable once Sync returned, and a creation, a rename or a
// removal once SyncDir of its directory returned. Crash makes a copy as the
// disk may look after a power cut. A hook sees every operation and can make it
// fail before it does anything, which also is how a test stops a program at
// its n-th step.
package memfs

import (
	"bytes"
	"io"
	"io/fs"
	"path/filepath"
	"sort"
	"sync"

	"starfish/checkpoint"
)

// Hook is called before each operation: op is the name of the method in small
// letters ("create", "write", "sync", "close", "open", "read", "size",
// "rename", "renamenew", "remove", "syncdir", "list", "mkdirall"). An error
// becomes the operation's.
type Hook func(op, name string) error

// Keep says how much of what was not durable survives a crash.
type Keep int

// What survives.
const (
	// Durable: nothing else does.
	Durable Keep = iota
	// Names: every creation, rename and removal does, and no unsynced byte.
	// This is what turns a rename without a sync into an empty file.
	Names
	// All does, as after a kill of the process alone.
	All
)

// FS is the file system. Safe for concurrent use.
type FS struct {
	mu      sync.Mutex
	hook    Hook
	dirs    map[string]bool
	files   map[string]*file
	durable map[string]*file
}

type file struct {
	data   []byte
	synced int
}

var _ checkpoint.FS = (*FS)(nil)

// New makes an empty file system.
func New() *FS {
	return &FS{dirs: map[string]bool{}, files: map[string]*file{}, durable: map[string]*file{}}
}

// SetHook replaces the hook; nil removes it.
func (m *FS) SetHook(h Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = h
}

// before runs the hook without the lock, so that it may look at the FS.
func (m *FS) before(op, name string) error {
	m.mu.Lock()
	h := m.hook
	m.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := h(op, name); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// Crash returns what a crash at this moment leaves, without a hook.
func (m *FS) Crash(keep Keep) *FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := m.durable
	if keep != Durable {
		names = m.files
	}
	c := New()
	for d := range m.dirs {
		c.dirs[d] = true
	}
	for name, f := range names {
		n := f.synced
		if keep == All {
			n = len(f.data)
		}
		left := &file{data: bytes.Clone(f.data[:n]), synced: n}
		c.files[name], c.durable[name] = left, left
	}
	return c
}

// Corrupt changes a file in place, durable at once.
func (m *FS) Corrupt(name string, change func([]byte) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.files[filepath.Clean(name)]; f != nil {
		f.data = change(bytes.Clone(f.data))
		f.synced = len(f.data)
	}
}

// Names lists all files, sorted.
func (m *FS) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.files))
	for name := range m.files {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ReadFile returns a copy of a file's bytes.
func (m *FS) ReadFile(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[filepath.Clean(name)]
	if f == nil {
		return nil, missing("read", name)
	}
	return bytes.Clone(f.data), nil
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }
func taken(op, name string) error   { return &fs.PathError{Op: op, Path: name, Err: fs.ErrExist} }

// MkdirAll implements checkpoint.FS; directories are durable at once.
func (m *FS) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	if err := m.before("mkdirall", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; !m.dirs[dir]; dir = filepath.Dir(dir) {
		m.dirs[dir] = true
	}
	return nil
}

// Create implements checkpoint.FS.
func (m *FS) Create(name string) (checkpoint.Writer, error) {
	name = filepath.Clean(name)
	if err := m.before("create", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[filepath.Dir(name)] {
		return nil, missing("create", name)
	}
	if m.files[name] != nil {
		return nil, taken("create", name)
	}
	f := &file{}
	m.files[name] = f
	return &writer{fs: m, name: name, file: f}, nil
}

// Open implements checkpoint.FS.
func (m *FS) Open(name string) (io.ReadCloser, error) {
	name = filepath.Clean(name)
	if err := m.before("open", name); err != nil {
		return nil, err
	}
	data, err := m.ReadFile(name)
	if err != nil {
		return nil, missing("open", name)
	}
	return &reader{fs: m, name: name, r: bytes.NewReader(data)}, nil
}

// Size implements checkpoint.FS.
func (m *FS) Size(name string) (int64, error) {
	name = filepath.Clean(name)
	if err := m.before("size", name); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[name]
	if f == nil {
		return 0, missing("size", name)
	}
	return int64(len(f.data)), nil
}

// Rename implements checkpoint.FS.
func (m *FS) Rename(from, to string) error { return m.rename("rename", from, to) }

// RenameNew implements checkpoint.FS.
func (m *FS) RenameNew(from, to string) error { return m.rename("renamenew", from, to) }

func (m *FS) rename(op, from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	if err := m.before(op, to); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[from]
	if f == nil {
		return missing(op, from)
	}
	if op == "renamenew" && m.files[to] != nil {
		return taken(op, to)
	}
	delete(m.files, from)
	m.files[to] = f
	return nil
}

// Remove implements checkpoint.FS.
func (m *FS) Remove(name string) error {
	name = filepath.Clean(name)
	if err := m.before("remove", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[name] == nil {
		return missing("remove", name)
	}
	delete(m.files, name)
	return nil
}

// SyncDir implements checkpoint.FS.
func (m *FS) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	if err := m.before("syncdir", dir); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.durable {
		if filepath.Dir(name) == dir {
			delete(m.durable, name)
		}
	}
	for name, f := range m.files {
		if filepath.Dir(name) == dir {
			m.durable[name] = f
		}
	}
	return nil
}

// List implements checkpoint.FS.
func (m *FS) List(dir string) ([]string, error) {
	dir = filepath.Clean(dir)
	if err := m.before("list", dir); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return nil, missing("list", dir)
	}
	var names []string
	for name := range m.files {
		if filepath.Dir(name) == dir {
			names = append(names, filepath.Base(name))
		}
	}
	sort.Strings(names)
	return names, nil
}

type writer struct {
	fs   *FS
	name string
	file *file
}

func (w *writer) Write(p []byte) (int, error) {
	if err := w.fs.before("write", w.name); err != nil {
		return 0, err
	}
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	w.file.data = append(w.file.data, p...)
	return len(p), nil
}

func (w *writer) Sync() error {
	if err := w.fs.before("sync", w.name); err != nil {
		return err
	}
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	w.file.synced = len(w.file.data)
	return nil
}

func (w *writer) Close() error { return w.fs.before("close", w.name) }

type reader struct {
	fs   *FS
	name string
	r    *bytes.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.fs.before("read", r.name); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func (r *reader) Close() error { return nil }
