package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Temporary directories are removed by the run that made them. One that is
// killed leaves its directory behind, with a lock file in it that nobody holds
// any more; the next run that makes one removes it.
const (
	temporaryName = "starfish-run-"
	temporaryLock = "running.lock"
)

// errTaken: another run has taken the directory for an abandoned one, between
// its making and its locking.
var errTaken = errors.New("the temporary directory was removed by another run")

// makeTemporary makes a temporary directory and locks it.
func makeTemporary() (path string, lock *os.File, err error) {
	for range 10 {
		if path, err = os.MkdirTemp("", temporaryName); err != nil {
			return "", nil, err
		}
		lock, err = hold(filepath.Join(path, temporaryLock), os.O_CREATE)
		if err == nil {
			return path, lock, nil
		}
		os.RemoveAll(path)
		if !errors.Is(err, errTaken) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return "", nil, err
}

// hold opens a file and locks it, until it is closed or this process ends:
// errTaken if another process holds it or has removed it.
func hold(file string, flags int) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errTaken
	}
	if err == nil {
		var held, named os.FileInfo
		if held, err = f.Stat(); err == nil {
			named, err = os.Stat(file)
		}
		if err == nil && !os.SameFile(held, named) {
			err = errTaken
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// removeAbandoned removes the temporary directories of runs that were killed.
// What cannot be removed is somebody else's.
func removeAbandoned(in string) {
	locks, _ := filepath.Glob(filepath.Join(in, temporaryName+"*", temporaryLock))
	for _, file := range locks {
		if f, err := hold(file, 0); err == nil {
			os.RemoveAll(filepath.Dir(file))
			f.Close()
		}
	}
}
