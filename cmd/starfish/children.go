package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"starfish/internal/cli"
	"starfish/internal/supervise"
)

// processes lists the children.
func (r *runner) processes(endpoints []string) ([]supervise.Process, error) {
	pserver, err := program(r.opts.pserverBin, kindPserver)
	if err != nil {
		return nil, err
	}
	trainers, err := program(r.opts.trainerBin, kindTrainer)
	if err != nil {
		return nil, err
	}
	credentials, err := r.opts.Environment()
	if err != nil {
		return nil, err
	}
	var procs []supervise.Process
	add := func(kind, path string, n int, args ...string) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", kind, i)
			procs = append(procs, supervise.Process{Kind: kind, Name: name, Path: path, Log: r.dir.log(name),
				Args: append(r.common(name, endpoints), args...), Unset: r.opts.variables, Env: credentials})
		}
	}
	pserverArgs := []string{"--checkpoint-dir", r.dir.checkpoints(), "--recovery", r.opts.recovery}
	if r.opts.reinit {
		pserverArgs = append(pserverArgs, "--allow-reinit")
	}
	if limit := r.opts.maxMemory.String(); limit != "" {
		pserverArgs = append(pserverArgs, "--max-memory", limit)
	}
	add(kindPserver, pserver, r.spec.Run.Pservers, pserverArgs...)
	add(kindTrainer, trainers, r.spec.Run.Trainers, r.specArgs()...)
	return procs, nil
}

// program finds the program of a kind of process: the one given, or the one
// beside this executable.
func program(given, kind string) (string, error) {
	path := given
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), kind)
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", cli.Usage("%s is not a program; --%s-binary names the %s's", path, kind, kind)
	}
	return path, nil
}

// common are the flags of every child.
func (r *runner) common(name string, endpoints []string) []string {
	const anyPort = "127.0.0.1:0"
	return []string{
		"--job", r.spec.Job, "--name", name, "--etcd-endpoints", strings.Join(endpoints, ","),
		"--etcd-timeout", r.opts.Timeout.String(), "--listen", anyPort, "--admin-address", anyPort,
		"--log-level", r.opts.Level, "--log-format", r.opts.Format,
	}
}

// specArgs give the spec to trainers that know models of their own.
func (r *runner) specArgs() []string {
	if r.opts.trainerBin == "" {
		return nil
	}
	args := []string{"--spec", r.opts.spec}
	for _, set := range r.opts.sets {
		args = append(args, "--set", set)
	}
	return args
}
