package job

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"starfish/internal/spell"
)

// Problem is one thing that is wrong with a spec.
type Problem struct {
	// Where is the file and line, or the --set that caused it; may be empty.
	Where string
	// Field is the path of the field; may be empty.
	Field string
	Text  string

	line int
}

// String is "where: field: text".
func (p Problem) String() string {
	parts := make([]string, 0, 3)
	for i, s := range []string{p.Where, p.Field, p.Text} {
		if s != "" && (i != 1 || p.Where != setPrefix+p.Field) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// SpecError is everything that is wrong with a spec, in the order of its lines.
type SpecError struct{ Problems []Problem }

// Error has one line for each problem.
func (e *SpecError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

const setPrefix = "--set "

// place is where a field was written: a line of the file, or a --set.
type place struct {
	line int
	set  string
}

// problems collects what is wrong.
type problems struct {
	file   string
	places map[string]place
	list   []Problem
}

// add notes a problem with a field.
func (p *problems) add(path, format string, args ...any) {
	at, ok := p.places[path]
	for parent := path; !ok && parent != ""; { // an absent field: its section
		cut := strings.LastIndexByte(parent, '.')
		if cut < 0 {
			break
		}
		parent = parent[:cut]
		at, ok = p.places[parent]
	}
	p.addAt(at, path, format, args...)
}

// addAt notes a problem at a place. A field has one problem at most: a second
// one would only follow from the first.
func (p *problems) addAt(at place, path, format string, args ...any) {
	if path != "" && slices.ContainsFunc(p.list, func(o Problem) bool { return o.Field == path }) {
		return
	}
	where := p.file
	switch {
	case at.set != "":
		where = setPrefix + at.set
	case at.line > 0 && where != "":
		where = fmt.Sprintf("%s:%d", where, at.line)
	case at.line > 0:
		where = fmt.Sprintf("line %d", at.line)
	}
	p.list = append(p.list, Problem{Where: where, Field: path, Text: fmt.Sprintf(format, args...), line: at.line})
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	sort.SliceStable(p.list, func(i, j int) bool { return p.list[i].line < p.list[j].line })
	return &SpecError{Problems: p.list}
}

// meant is a hint for a misspelt word, ready to be appended.
func meant(s string, candidates []string) string {
	if c := spell.Nearest(s, candidates); c != "" {
		return fmt.Sprintf("; did you mean %s?", c)
	}
	return ""
}
