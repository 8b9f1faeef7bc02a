//go:build failpoints

package failpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"starfish/internal/clock"
)

// Built tells whether points strike in this program.
const Built = true

// Hit ends the process here if the point is armed.
func Hit(p Point) {
	dir := os.Getenv("STARFISH_FAILPOINTS")
	if dir == "" {
		return
	}
	linger(filepath.Join(dir, "pace", string(p)))
	struck := filepath.Join(dir, "struck", fmt.Sprintf("%s.%d", p, os.Getpid()))
	if os.Rename(filepath.Join(dir, "armed", string(p)), struck) != nil {
		return
	}
	linger(struck)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal is there
}

// linger sleeps for the duration that stands in a file.
func linger(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if d, err := time.ParseDuration(string(text)); err == nil {
		_ = clock.Sleep(context.Background(), clock.System, d)
	}
}
