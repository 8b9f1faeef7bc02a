package supervise

import (
	"bytes"
	"io"
	"os"
	"strings"
)

// tailSize is how much of the end of a log is read for its decisive line.
const tailSize = 64 << 10

// lastLines reads what a child has written to its log since offset from, at
// most the last tailSize bytes of it.
func lastLines(path string, from int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size <= from {
		return nil
	}
	from = max(from, size-tailSize)
	b := make([]byte, size-from)
	n, _ := f.ReadAt(b, from)
	return b[:n]
}

// decisive finds the line that says why a child ended: the head of a crash of
// the Go runtime if there is one, else the last line. crash tells which.
func decisive(log []byte) (line string, crash bool) {
	trace := bytes.Contains(log, []byte("\ngoroutine ")) || bytes.HasPrefix(log, []byte("goroutine "))
	for _, l := range strings.Split(string(log), "\n") {
		l = strings.TrimRight(l, " \r\t")
		if trace && (strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") || strings.HasPrefix(l, "runtime: ")) {
			return l, true
		}
		if l != "" {
			line = l
		}
	}
	return line, false
}
