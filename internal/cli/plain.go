package cli

import (
	"errors"
	"slices"
	"strings"

	"starfish/job"
)

// packages begin the texts of errors. They say whose an error is where several
// libraries meet, in a log or a test; to a user they say nothing.
var packages = []string{
	"admin", "checkpoint", "client", "embedded", "etcd", "etcdqueue", "job", "membership", "pserver", "reader", "store", "supervise",
	"trainer", "transport", "wire",
}

// plainError is an error's text for a user: one line, but for lists of several
// faults, which keep one line each.
func plainError(err error) string {
	text := strings.TrimRight(err.Error(), "\n")
	if spec := (*job.SpecError)(nil); errors.As(err, &spec) {
		return text // its words are the spec's: `job` is a field
	}
	return Plain(text)
}

// Plain takes names of packages out of the text of an error, and what it says
// twice in a row.
func Plain(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = plainLine(line)
	}
	return strings.Join(lines, "\n")
}

func plainLine(line string) string {
	parts := strings.Split(line, ": ")
	plain := parts[:0:0]
	for i, p := range parts {
		before := ""
		if len(plain) > 0 {
			before = plain[len(plain)-1]
		}
		last := i == len(parts)-1
		if !last && (p == before || slices.Contains(packages, p) && !isPlace(before)) {
			continue
		}
		plain = append(plain, p)
	}
	return strings.Join(plain, ": ")
}

// isPlace tells whether a text ends like file:line; what comes after it is a
// word of the file.
func isPlace(text string) bool {
	colon := strings.LastIndexByte(text, ':')
	return colon >= 0 && colon < len(text)-1 && strings.Trim(text[colon+1:], "0123456789") == ""
}
