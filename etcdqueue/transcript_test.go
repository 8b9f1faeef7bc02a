package etcdqueue

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/ranges"
)

// TestLaneTranscripts plays the scripts in testdata/lane and compares the
// record after each step. A line is a step; "#" begins a comment. With
// -rewrite the files are written anew.
func TestLaneTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/lane/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			var l Lane
			playTranscript(t, file, func(words []string) string {
				var note string
				l, note = laneStep(t, l, words)
				return strings.TrimSpace(note + "\n" + show(l))
			})
		})
	}
}

// playTranscript runs each step ("> …") of a script and compares what comes of
// it with the lines below the step.
func playTranscript(t *testing.T, file string, step func(words []string) string) {
	t.Helper()
	was, err := os.ReadFile(file)
	require.NoError(t, err)
	var out strings.Builder
	for line := range strings.SplitSeq(strings.TrimSuffix(string(was), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			if got := step(strings.Fields(line[2:])); got != "" {
				fmt.Fprintln(&out, "  "+strings.ReplaceAll(got, "\n", "\n  "))
			}
		case strings.HasPrefix(line, "#") || line == "":
			fmt.Fprintln(&out, line)
		}
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
		return
	}
	require.Equal(t, string(was), out.String(), "run the test with -rewrite if the new transcript is right")
}

// show is a lane in one line, without what is empty.
func show(l Lane) string {
	var parts []string
	set := func(name string, s ranges.Set) {
		if !s.IsEmpty() {
			parts = append(parts, name+" "+s.String())
		}
	}
	set("todo", l.Todo)
	for _, e := range l.Pending {
		text := fmt.Sprintf("pending %s (%s/%d beat %d", e.At, e.Incarnation, e.Token, e.Beat)
		if e.Run > 0 {
			text += fmt.Sprintf(" run %d", e.Run)
		}
		if e.Reason != "" {
			text += ": " + e.Reason
		}
		parts = append(parts, text+")")
	}
	set("complete", l.Complete)
	set("failed", l.Failed)
	set("again", l.Again)
	if len(l.Tries) > 0 {
		parts = append(parts, "tries "+strings.TrimPrefix(fmt.Sprint(l.Tries), "map"))
	}
	count := func(n int64, name string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	count(l.Batches, "batches")
	count(l.Records, "records")
	count(l.Takes, "taken")
	count(l.Requeued, "requeued")
	count(l.Reopened, "reopened")
	count(l.Speculated, "speculated")
	return strings.Join(parts, "; ")
}

func laneStep(t *testing.T, l Lane, words []string) (Lane, string) {
	t.Helper()
	number := func(i int) int64 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		require.NoError(t, err)
		return n
	}
	holder := func(i int) Holder {
		incarnation, token, _ := strings.Cut(words[i], "/")
		n, err := strconv.ParseInt(token, 10, 64)
		require.NoError(t, err)
		return Holder{incarnation, n}
	}
	set := func(i int) ranges.Set {
		s, err := ranges.Parse(words[i])
		require.NoError(t, err)
		return s
	}
	ok, n, note := true, int64(-1), ""
	switch words[0] {
	case "new":
		l = NewLane(number(1))
	case "take":
		l, ok = l.Take(set(1), "trainer-"+holder(2).Incarnation, holder(2))
	case "overtake":
		l, ok = l.Overtake(set(1), holder(2), "trainer-"+holder(3).Incarnation, holder(3))
	case "skip":
		l = l.Skip(set(1))
	case "touch":
		l, ok = l.Touch(number(1), holder(2), strings.Join(words[3:], " "))
	case "done":
		l, ok = l.Done(number(1), holder(2), Sums{Batches: number(3), Records: number(4)})
	case "fail":
		var full bool
		if l, full, ok = l.Fail(number(1), holder(2), int(number(3))); full {
			note = "quarantined"
		}
	case "readmit":
		l, ok = l.Readmit(number(1))
	case "release":
		l, ok = l.Release(number(1), holder(2))
	case "requeue":
		l, n = l.Requeue(func(e Entry) bool { return e.Incarnation == words[1] })
	case "reopen":
		l, n = l.Reopen(set(1))
	default:
		require.Fail(t, "unknown step "+words[0])
	}
	if !ok {
		note = "refused"
	}
	if n >= 0 {
		note = fmt.Sprintf("%d moved", n)
	}
	require.True(t, json.Valid(l.Encode()))
	return l, note
}
