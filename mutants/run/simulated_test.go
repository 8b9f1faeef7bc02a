package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/mutants"
)

// simulation is a simulation of which seed 23 notices that Add does not add.
const simulation = `package trainer

import (
	"flag"
	"fmt"
	"testing"
)

var (
	first = flag.Int("first", 0, "")
	n     = flag.Int("simulations", 300, "")
)

func TestSimulation(t *testing.T) {
	for seed := *first; seed < *first+*n; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			if seed == 23 && Add(seed, 1) != 24 {
				t.Error("it does not add up")
			}
		})
	}
}
`

func TestSimulated(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	write("trainer/trainer.go", "package trainer\n\nfunc Add(a, b int) int { return a + b }\n\nfunc Unused() int { return 1 }\n")
	write("trainer/trainer_test.go", simulation)
	b := bench{root: root, budget: 10 * time.Millisecond}
	m := mutants.Mutant{Name: "minus", File: "trainer/trainer.go", Old: "return 1", New: "return 2"}
	f, err := b.simulated(m)
	require.NoError(t, err)
	require.False(t, f.caught)
	require.Positive(t, f.seeds)

	b.budget = time.Hour
	m.Old, m.New = "a + b", "a - b"
	f, err = b.simulated(m)
	require.NoError(t, err)
	require.True(t, f.caught)
	require.EqualValues(t, 23, f.seed)
	require.Equal(t, "it does not add up", f.how)

	m.New = "nothing"
	_, err = b.simulated(m)
	require.ErrorContains(t, err, "does not compile")
}

func TestReason(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"panic: test timed out after 5m0s\nrunning tests:\n":                                                                              "it hangs",
		"    --- FAIL: TestSimulation/seed_3 (0.1s)\n        a_test.go:4: make simulate SEEDS=3 shows\n        a_test.go:5: revision 4\n": "revision 4",
		"        a_test.go:5: \n            \tError:      \tNot equal:\n":                                                                 "Not equal:",
		"fatal error: all goroutines are asleep\n":                                                                                        "fatal error: all goroutines are asleep",
		"FAIL\n": "it failed",
	} {
		require.Equal(t, want, reason([]byte(out)))
	}
}
