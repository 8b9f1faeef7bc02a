package cli

import (
	"context"
	"errors"
	"runtime/debug"
)

// version is set by the linker (see the Makefile).
var version string

// Version is the version of the program: the one that the build gave it, or
// what the Go toolchain noted about the source.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	return "unknown"
}

func isCancel(ctx context.Context, err error) bool {
	return errors.Is(err, ErrSignal) || errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
}
