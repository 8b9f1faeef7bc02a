package reader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// maxDepth bounds how deep directories nest, so that a loop of links ends.
const maxDepth = 32

// expansion collects the files behind the entries of a list, and everything
// that is wrong with them.
type expansion struct {
	files    []string
	skipped  []string
	problems []error
}

func (x *expansion) err() error { return errors.Join(x.problems...) }

func (x *expansion) fail(path, why string) {
	x.problems = append(x.problems, fmt.Errorf("reader: %s: %w: %s", path, ErrNoData, why))
}

// entry adds what one entry of the list stands for.
func (x *expansion) entry(path string) {
	if strings.Contains(path, "://") {
		x.fail(path, "object storage is not implemented in this version")
		return
	}
	info, err := os.Stat(path)
	switch {
	case err == nil:
		x.found(path, info)
	case errors.Is(err, os.ErrNotExist) && strings.ContainsAny(path, "*?["):
		x.glob(path)
	case errors.Is(err, os.ErrNotExist):
		x.fail(path, "no such file or directory")
	default:
		x.fail(path, err.Error())
	}
}

// found adds a file, or all files of a directory.
func (x *expansion) found(path string, info os.FileInfo) {
	if !info.IsDir() {
		x.file(path, info)
		return
	}
	var inside expansion
	inside.walk(path, 0)
	if len(inside.files) == 0 && len(inside.problems) == 0 {
		x.fail(path, "the directory has no data files")
	}
	sort.Strings(inside.files)
	sort.Strings(inside.skipped)
	x.files = append(x.files, inside.files...)
	x.skipped = append(x.skipped, inside.skipped...)
	x.problems = append(x.problems, inside.problems...)
}

func (x *expansion) glob(pattern string) {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		x.fail(pattern, err.Error())
		return
	}
	sort.Strings(matches)
	last := filepath.Base(pattern)
	found := false
	for _, path := range matches {
		if name := filepath.Base(path); hidden(name) && name[0] != last[0] {
			x.skipped = append(x.skipped, path)
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			x.fail(path, err.Error())
			continue
		}
		found = true
		x.found(path, info)
	}
	if !found {
		x.fail(pattern, "nothing matches")
	}
}

func (x *expansion) walk(dir string, depth int) {
	if depth > maxDepth {
		x.fail(dir, fmt.Sprintf("directories nest more than %d deep; is there a loop of links?", maxDepth))
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		x.fail(dir, err.Error())
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if hidden(e.Name()) {
			x.skipped = append(x.skipped, path)
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			x.fail(path, err.Error())
		case info.IsDir():
			x.walk(path, depth+1)
		default:
			x.file(path, info)
		}
	}
}

func (x *expansion) file(path string, info os.FileInfo) {
	switch suffix := strings.ToLower(filepath.Ext(path)); {
	case !info.Mode().IsRegular():
		x.fail(path, "not a regular file")
	case suffix == ".bz2" || suffix == ".xz":
		x.fail(path, "files compressed as "+suffix+" are not implemented in this version; .gz and .zst are")
	default:
		x.files = append(x.files, path)
	}
}

// hidden tells names that directories keep for themselves.
func hidden(name string) bool { return name[0] == '_' || name[0] == '.' }
