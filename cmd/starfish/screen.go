package main

import (
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen is the terminal of a run: lines of the log, and below them one live
// line that is drawn again and again. Where stderr is no terminal there is no
// live line. Its mutex is held over writes to the terminal only.
type screen struct {
	mu    sync.Mutex
	w     io.Writer
	live  bool
	width func() int
	shown string
}

func newScreen(f *os.File) *screen {
	fd := int(f.Fd())
	return &screen{w: f, live: term.IsTerminal(fd), width: func() int {
		if w, _, err := term.GetSize(fd); err == nil {
			return w
		}
		return 80
	}}
}

// Write writes finished lines, such as those of the log, above the live line.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	n, err := s.w.Write(p)
	s.draw()
	return n, err
}

// show draws the live line; an empty one removes it.
func (s *screen) show(line string) {
	if !s.live {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	if w := s.width() - 1; len(line) > w && w > 0 {
		line = line[:w]
	}
	s.shown = strings.ReplaceAll(line, "\n", " ")
	s.draw()
}

// redraw shows a whole page in place of the one before.
func (s *screen) redraw(page string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// From the top left corner on, each line's rest and what is below is erased.
	_, err := io.WriteString(s.w, "\x1b[H"+strings.ReplaceAll(page, "\n", "\x1b[K\n")+"\x1b[J")
	return err
}

func (s *screen) erase() {
	if s.shown != "" {
		_, _ = io.WriteString(s.w, "\r\x1b[K")
	}
}

func (s *screen) draw() {
	if s.shown != "" {
		_, _ = io.WriteString(s.w, s.shown)
	}
}
