package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// process is one process of a run.
type process struct {
	pid  int
	name string // of a pserver or trainer
	role string // pservers, trainers, or "starfish", which runs etcd too
}

func (p process) String() string {
	if p.name == "" {
		return fmt.Sprintf("%s (%d)", p.role, p.pid)
	}
	return fmt.Sprintf("%s (%d)", p.name, p.pid)
}

// marked lists the processes that have mark in their environment. What has just
// been started and is not the program yet has no role.
func marked(mark string) []process {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	var found []process
	for _, file := range files {
		if env, _ := os.ReadFile(file); !bytes.Contains(env, []byte(mark)) {
			continue
		}
		dir := filepath.Dir(file)
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() || len(line) == 0 {
			continue
		}
		found = append(found, parseProcess(pid, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")))
	}
	sort.Slice(found, func(i, j int) bool { return found[i].name < found[j].name })
	return found
}

func parseProcess(pid int, args []string) process {
	p := process{pid: pid, role: filepath.Base(args[0])}
	if p.role != pservers && p.role != trainers {
		return p
	}
	if i := slices.Index(args, "--name"); i >= 0 && i+1 < len(args) {
		p.name = args[i+1]
	}
	return p
}

// pick chooses a process of a role; false if there is none.
func pick(all []process, role string, at float64) (process, bool) {
	var prey []process
	for _, p := range all {
		if p.role == role {
			prey = append(prey, p)
		}
	}
	if len(prey) == 0 {
		return process{}, false
	}
	return prey[int(at*float64(len(prey)))], true
}

// alive tells whether a process runs, or is stopped.
func (p process) alive() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return false
	}
	_, after, ok := strings.Cut(string(text), ") ")
	return ok && !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func (p process) signal(s syscall.Signal) error { return syscall.Kill(p.pid, s) }
