package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"starfish/internal/cli"
	"starfish/internal/clock"
)

// workdir is the directory of a run: what `--dir` keeps.
type workdir struct {
	path string
	temp bool
	lock *os.File // of a temporary one, see temporary.go
}

// openWorkdir makes the directory if it does not exist; without a path it makes
// a temporary one, and removes those that killed runs have left.
func openWorkdir(path string) (workdir, error) {
	w := workdir{path: path}
	var err error
	if path == "" {
		removeAbandoned(os.TempDir())
		w.temp = true
		w.path, w.lock, err = makeTemporary()
	} else {
		w.path, err = filepath.Abs(path)
	}
	if err != nil {
		return w, cli.Usage("--dir: %w", err)
	}
	for _, sub := range []string{w.logs(), w.checkpoints()} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return w, cli.Usage("--dir: %w", err)
		}
	}
	return w, nil
}

// close removes a temporary directory. It may be called twice, also while
// something still writes there.
func (w workdir) close() {
	if !w.temp {
		return
	}
	for range 100 {
		if os.RemoveAll(w.path) == nil {
			break
		}
		if clock.Sleep(context.Background(), clock.System, 10*time.Millisecond) != nil {
			break
		}
	}
	if w.lock != nil {
		w.lock.Close()
	}
}

func (w workdir) etcd() string        { return filepath.Join(w.path, "etcd") }
func (w workdir) checkpoints() string { return filepath.Join(w.path, "checkpoints") }
func (w workdir) logs() string        { return filepath.Join(w.path, "logs") }
func (w workdir) spec() string        { return filepath.Join(w.path, "spec.json") }
func (w workdir) log(process string) string {
	return filepath.Join(w.logs(), process+".log")
}

// runFile says what the directory's last run was, so that other commands find
// the job.
type runFile struct {
	V         int      `json:"v"`
	Job       string   `json:"job"`
	Endpoints []string `json:"endpoints"`
	Embedded  bool     `json:"embedded"` // the endpoints are those of an etcd in this directory
}

const runFileVersion = 1

func (w workdir) runPath() string { return filepath.Join(w.path, "run.json") }

func (w workdir) writeRun(r runFile) error {
	r.V = runFileVersion
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return writeWhole(w.runPath(), func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}

// checkJob refuses a job in the directory of another one.
func (w workdir) checkJob(name string) error {
	if _, err := os.Stat(w.runPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	r, err := w.readRun()
	if err != nil {
		return err
	}
	if r.Job != name {
		return cli.Usage("--dir %s is of job %q, and the spec of job %q: a directory holds one job", w.path, r.Job, name)
	}
	return nil
}

func (w workdir) readRun() (runFile, error) {
	var r runFile
	b, err := os.ReadFile(w.runPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r, cli.Usage("--dir %s: there was no run here (no run.json)", w.path)
	case err != nil:
		return r, cli.Usage("--dir: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, cli.Usage("--dir: %s: %w", w.runPath(), err)
	}
	if r.V != runFileVersion {
		return r, cli.Usage("--dir: %s has version %d; this program knows version %d", w.runPath(), r.V, runFileVersion)
	}
	return r, nil
}

// writeWhole writes a file so that it is there whole or not at all.
func writeWhole(file string, write func(*os.File) error) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return writeInto(file, write)
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	var path *fs.PathError
	if errors.As(err, &path) { // its name is that of the moment
		err = path.Err
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer os.Remove(f.Name())
	err = write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	return unwritten(file, f.Name(), err)
}

// unwritten explains an error of a file that is called temp while it is
// written. Errors that are about something else, such as what was to be written,
// stay as they are.
func unwritten(file, temp string, err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path) && path.Path == temp:
		return fmt.Errorf("write %s: %w", file, path.Err)
	case errors.As(err, &link) && link.Old == temp:
		return fmt.Errorf("write %s: %w", file, link.Err)
	}
	return err
}

// writeInto writes to what is no file, like /dev/null, and stays what it is.
func writeInto(file string, write func(*os.File) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		err = errors.Join(write(f), f.Close())
	}
	return unwritten(file, file, err)
}
