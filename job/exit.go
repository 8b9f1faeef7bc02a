package job

import (
	"errors"
	"fmt"
)

// Code is an exit code of a command or daemon. The numbers are part of the
// contract with users and supervisors.
type Code int

// The exit codes.
const (
	// ExitOK: an orderly end, also after SIGTERM and when the job is complete.
	ExitOK Code = 0
	// ExitFailure: the job failed, for example because training diverged.
	ExitFailure Code = 1
	// ExitUsage: a wrong flag, spec or configuration, a missing or empty data
	// set at the start, a name in use.
	ExitUsage Code = 2
	// ExitNoEtcd: etcd was never reached at the start.
	ExitNoEtcd Code = 3
	// ExitSuperseded: another process of the same name took over; do not restart.
	ExitSuperseded Code = 4
	// ExitStateLost: no listed checkpoint of a shard loads.
	ExitStateLost Code = 5
	// ExitData: data vanished, changed or became unreadable while running.
	ExitData Code = 6
	// ExitFailedChunks: the job finished, but with quarantined chunks.
	ExitFailedChunks Code = 7
)

// ExitError carries the exit code that an error asks for.
type ExitError struct {
	Code Code
	Err  error
}

// Exit wraps err with an exit code; nil stays nil.
func Exit(code Code, err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: code, Err: err}
}

// Exitf makes an error with an exit code; the format may wrap with %w.
func Exitf(code Code, format string, args ...any) error {
	return &ExitError{Code: code, Err: fmt.Errorf(format, args...)}
}

// Error is the wrapped error's text; the code is not for reading.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap gives the wrapped error.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode is the code that a process which ends with err exits with: that of
// the outermost ExitError, else ExitUsage for an error of a spec, else
// ExitFailure.
func ExitCode(err error) int {
	var exit *ExitError
	var spec *SpecError
	switch {
	case err == nil:
		return int(ExitOK)
	case errors.As(err, &exit):
		return int(exit.Code)
	case errors.As(err, &spec), errors.Is(err, ErrSpecDiffers):
		return int(ExitUsage)
	default:
		return int(ExitFailure)
	}
}
