package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/cli"
	"starfish/job"
)

// What a run is told of its pservers they are told.
func TestPserversAreTold(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	require.NoError(t, err)
	r := &runner{
		opts: &options{pserverBin: program, trainerBin: program, recovery: "never", maxMemory: cli.Size(1 << 30), reinit: true},
		spec: &job.Spec{Run: job.Run{Pservers: 2, Trainers: 1}}, dir: workdir{path: t.TempDir()},
	}
	procs, err := r.processes([]string{"127.0.0.1:1"})
	require.NoError(t, err)
	require.Len(t, procs, 3)
	for _, p := range procs[:2] {
		require.Equal(t, []string{"--checkpoint-dir", r.dir.checkpoints(), "--recovery", "never", "--allow-reinit", "--max-memory", "1GiB"},
			p.Args[len(p.Args)-7:])
	}
	require.NotContains(t, procs[2].Args, "--recovery")
}
