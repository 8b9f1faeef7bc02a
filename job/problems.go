package job

import (
	"fmt"
	"slices"
	"sort"
	"strings"
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

// nearest is the candidate that s most likely meant, or "".
func nearest(s string, candidates []string) string {
	best, bestDistance := "", max(1, len(s)/3)+1
	for _, c := range candidates {
		if d := distance(s, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// meant is a hint for a misspelt word, ready to be appended.
func meant(s string, candidates []string) string {
	if c := nearest(s, candidates); c != "" {
		return fmt.Sprintf("; did you mean %s?", c)
	}
	return ""
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours between two words.
func distance(a, b string) int {
	if len(a) > 40 || len(b) > 40 {
		return max(len(a), len(b))
	}
	var d [41][41]int
	for i := range len(a) + 1 {
		for j := range len(b) + 1 {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			default:
				cost := 1
				if a[i-1] == b[j-1] {
					cost = 0
				}
				d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+cost)
				if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
					d[i][j] = min(d[i][j], d[i-2][j-2]+1)
				}
			}
		}
	}
	return d[len(a)][len(b)]
}
