package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
)

// program is a static program of Go with what it says of itself.
type program struct {
	name   string
	bytes  []byte
	sha256 string
	info   *debug.BuildInfo
}

// setting is a setting with which the program was built, such as GOARCH.
func (p program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// readPrograms reads programs and refuses what would not run in an image that
// holds nothing else: a program that needs a loader, or of another platform than
// the first.
func readPrograms(files []string) ([]program, error) {
	var all []program
	for _, file := range files {
		p, err := readProgram(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, p)
		for _, key := range []string{"GOOS", "GOARCH"} {
			if p.setting(key) != all[0].setting(key) {
				return nil, fmt.Errorf("%s: built for %s %q, %s for %q", file, key, p.setting(key), files[0], all[0].setting(key))
			}
		}
	}
	return all, nil
}

func readProgram(file string) (program, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return program{}, err
	}
	info, err := readInfo(b)
	if err != nil {
		return program{}, err
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return program{}, err
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			return program{}, fmt.Errorf("not static: build it with CGO_ENABLED=0")
		}
	}
	return program{name: filepath.Base(file), bytes: b, sha256: fmt.Sprintf("%x", sha256.Sum256(b)), info: info}, nil
}

func readInfo(b []byte) (*debug.BuildInfo, error) {
	info, err := buildinfo.Read(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("not a program of Go: %w", err)
	}
	return info, nil
}
