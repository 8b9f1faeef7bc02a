package main

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScreenKeepsTheLiveLineLast(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := &screen{w: &b, live: true, width: func() int { return 12 }}
	s.show("progress 1")
	_, _ = io.WriteString(s, "a log line\n")
	s.show("progress 2, cut to the width")
	s.show("")
	_, _ = io.WriteString(s, "the end\n")
	require.Equal(t, "progress 1\r\x1b[Ka log line\nprogress 1\r\x1b[Kprogress 2,\r\x1b[Kthe end\n", b.String())
}

func TestScreenWithoutTerminal(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	s := newScreen(w)
	s.show("progress")
	_, _ = io.WriteString(s, "a log line\n")
	require.NoError(t, w.Close())
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "a log line\n", string(b))
}
