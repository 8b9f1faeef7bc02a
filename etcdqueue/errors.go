package etcdqueue

import (
	"errors"
	"fmt"
	"strings"
)

// What a caller branches on. Everything else that comes out of a Queue is an
// error of the store: it may hide a success, and the same call may be made
// again with the same arguments.
var (
	// ErrEmpty: nothing is Todo at the moment; wait with Changed.
	ErrEmpty = errors.New("etcdqueue: nothing to do now")
	// ErrDone: the job is complete; there will be nothing to do any more.
	ErrDone = errors.New("etcdqueue: the job is complete")
	// ErrStale: the chunk is no longer this process's to report on; drop it.
	// It comes as a *StaleError, which says which.
	ErrStale = errors.New("etcdqueue: stale")
	// ErrGuard: a condition that the caller added does not hold; nothing was
	// written. The caller repairs what the condition stood for and calls again.
	ErrGuard = errors.New("etcdqueue: a guard does not hold")
	// ErrNoQueue: there is no queue below this prefix, or no more.
	ErrNoQueue = errors.New("etcdqueue: no queue here")
	// ErrNoPass: the pass has not begun, or its lanes have been removed.
	ErrNoPass = errors.New("etcdqueue: no such pass")
	// ErrPhase: the job's phase does not allow the step.
	ErrPhase = errors.New("etcdqueue: wrong phase")
	// ErrNotQuarantined: the chunk is not in quarantine.
	ErrNotQuarantined = errors.New("etcdqueue: not quarantined")
	// ErrFormat: a record is of an unknown version or makes no sense.
	ErrFormat = errors.New("etcdqueue: unreadable record")
	// ErrMismatch: the queue in the store was made with other settings.
	ErrMismatch = errors.New("etcdqueue: the queue was made with other settings")
	// ErrClosed: the Queue was closed.
	ErrClosed = errors.New("etcdqueue: closed")
)

// EmptyError is the ErrEmpty of a Take: Pass and those before it have nothing
// that is Todo.
type EmptyError struct{ Pass int }

func (e *EmptyError) Error() string { return ErrEmpty.Error() }

// Unwrap makes errors.Is(err, ErrEmpty) true.
func (e *EmptyError) Unwrap() error { return ErrEmpty }

// ErrFailed is returned once the job has failed.
type ErrFailed struct{ Reason string } //nolint:errname // it is branched on like the sentinels beside it

func (e *ErrFailed) Error() string { return "etcdqueue: the job has failed: " + e.Reason }

// StaleError names the tasks that are not, or no longer, the caller's. Other
// tasks of the same call were dealt with.
type StaleError struct{ Tasks []Task }

func (e *StaleError) Error() string {
	var b strings.Builder
	b.WriteString("etcdqueue: no longer ours:")
	for i, t := range e.Tasks {
		if i == 8 {
			fmt.Fprintf(&b, " and %d more", len(e.Tasks)-i)
			break
		}
		fmt.Fprintf(&b, " chunk %d (pass %d lane %d position %d token %d)", t.Chunk, t.Pass, t.Lane, t.Position, t.Token)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrStale) true.
func (e *StaleError) Unwrap() error { return ErrStale }
