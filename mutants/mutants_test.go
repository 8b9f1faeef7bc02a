package mutants

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every mutant still changes exactly one place, and what comes out is Go.
func TestNoneIsStale(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range List() {
		_, err := m.Apply("..")
		require.NoError(t, err)
		require.False(t, names[m.Name], "two mutants are called %s", m.Name)
		names[m.Name] = true
		require.NotEqual(t, m.Old, m.New, m.Name)
		require.NotEmpty(t, m.Breaks, m.Name)
		require.True(t, m.Run != "" || m.Simulation, m.Name)
		require.DirExists(t, filepath.Join("..", m.Package))
		require.True(t, m.Invariant >= 1 && m.Invariant <= 10, m.Name)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "a.go"), []byte("package a\n\nvar x, y = 1, 1\n"), 0o644))
	m := Mutant{File: "a.go", Old: "x, y = 1", New: "x, y = 2"}
	got, err := m.Apply(root)
	require.NoError(t, err)
	require.Equal(t, "package a\n\nvar x, y = 2, 1\n", string(got))
	for _, bad := range []Mutant{{File: "b.go", Old: "x"}, {File: "a.go", Old: "z"}, {File: "a.go", Old: "1"}} {
		_, err := bad.Apply(root)
		require.ErrorIs(t, err, ErrStale)
	}
	_, err = Mutant{File: "a.go", Old: "var", New: "("}.Apply(root)
	require.Error(t, err)
}
