// Package mutants holds changes of one line each that break an invariant of the
// design, and says which tests notice.
//
// A test suite is worth what it would catch. `make mutants` applies each mutant
// in turn (as an overlay of the Go toolchain; no file is changed), runs the tests
// named with it and demands that they fail. A mutant that survives is a hole in
// the tests; one whose line is gone is stale, which an ordinary test of this
// package reports at once.
package mutants

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// Mutant is one change and the tests that catch it.
type Mutant struct {
	Name      string
	Invariant int    // of docs/design.md
	Breaks    string // what goes wrong with it
	File      string // below the module's root
	Old, New  string // Old occurs exactly once in File
	Package   string // the package that holds the tests
	Run       string // the tests, as for -run
	// Simulation: some seed of TestSimulation fails with it, within a minute.
	Simulation bool
}

// ErrStale: the line that a mutant changes is not there, or there more than once.
var ErrStale = errors.New("mutants: stale")

// Apply returns the file's content with the mutant applied.
func (m Mutant) Apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrStale, m.Name, err)
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return nil, fmt.Errorf("%w: %s: the old text occurs %d times in %s", ErrStale, m.Name, n, m.File)
	}
	changed := strings.Replace(string(text), m.Old, m.New, 1)
	if _, err := parser.ParseFile(token.NewFileSet(), m.File, changed, parser.SkipObjectResolution); err != nil {
		return nil, fmt.Errorf("mutants: %s is no Go: %w", m.Name, err)
	}
	return []byte(changed), nil
}
