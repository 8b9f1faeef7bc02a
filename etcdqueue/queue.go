package etcdqueue

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/ranges"
	"starfish/internal/store"
)

// Config says how one process uses a queue. Lanes, Shuffle, Seed, MaxFailures
// and Passes belong to the job: every process must give the same.
type Config struct {
	// Store is the job's part of the store: its keys begin with `state`,
	// `passes/`, `queue/` and `failed/`. Required.
	Store store.Store
	// Clock measures the stall timeout and delays between attempts; nil = clock.System.
	Clock clock.Clock
	// Lanes must equal those of the queue in the store; 0 = whatever it has.
	Lanes int
	// Shuffle orders each pass by a permutation of its own, computed from Seed
	// and the pass; false = in the order of the data.
	Shuffle bool
	Seed    uint64
	// MaxFailures is the number of data failures (Fail) at which a chunk is
	// quarantined; 0 = 3.
	MaxFailures int
	// StallTimeout is how long an entry may go without a sign of progress
	// before Requeue takes it back; 0 = 60 s.
	StallTimeout time.Duration
	// Passes is the number of passes; 0 = 1.
	Passes int
	// Name and Incarnation identify the taker in the record. An incarnation
	// must never be used by two Queues. Needed for Take only.
	Name, Incarnation string
	// Peers tells how many takers there are, this one included; nil = 1. Take
	// uses it to leave others their share.
	Peers func() int
	Log   logrus.FieldLogger
}

// Task is one chunk that was taken.
type Task struct {
	Pass int
	// Rank is the chunk's place in the pass's order and, with the pass, its
	// identity; Chunk is its place in the order of the data.
	Rank, Chunk int64
	// Lane and Position are where Rank lies: Rank mod L and Rank div L.
	Lane     int
	Position int64
	// Token is larger for every later take of the chunk.
	Token int64
}

// Done is a chunk that was trained, with its sums.
type Done struct {
	Task
	Batches, Records int64
}

// Queue is one process's handle.
type Queue struct{}

// New makes a handle; it does no I/O.
func New(c Config) (*Queue, error) { return nil, nil }

// Close ends the watch that the handle keeps. Chunks that are Pending stay so.
func (q *Queue) Close() {}

// Take takes up to max chunks (at least one unless it returns an error).
// ErrEmpty, ErrDone, *ErrFailed, ErrNoQueue.
func (q *Queue) Take(ctx context.Context, max int) ([]Task, error) { return nil, nil }

// Changed waits until a Take may do better than the last one that returned
// ErrEmpty.
func (q *Queue) Changed(ctx context.Context) error { return nil }

// Touch proves progress.
func (q *Queue) Touch(ctx context.Context, tasks []Task, reason string) error { return nil }

// Complete marks chunks as trained.
func (q *Queue) Complete(ctx context.Context, done []Done, guards ...store.Cmp) error { return nil }

// Fail reports bad data.
func (q *Queue) Fail(ctx context.Context, t Task, reason string) error { return nil }

// Release gives chunks back untrained.
func (q *Queue) Release(ctx context.Context, tasks []Task) error { return nil }

// Reopen makes those of positions that are Complete Todo again and lists the
// pass in `state`, in one transaction. guard is called for each attempt.
// It returns how many were reopened.
func (q *Queue) Reopen(ctx context.Context, pass, lane int, positions ranges.Set, guard func() []store.Cmp) (int64, error) {
	return 0, nil
}

// ReopenLanes is Reopen for several lanes, up to 32 a transaction.
func (q *Queue) ReopenLanes(ctx context.Context, pass int, lanes map[int]ranges.Set, guard func() []store.Cmp) (int64, error) {
	return 0, nil
}

// Lanes reads all lanes of a pass and `state` at one revision, linearizably.
// ErrNoPass below the floor and beyond the current pass.
func (q *Queue) Lanes(ctx context.Context, pass int) ([]Lane, State, int64, error) {
	return nil, State{}, 0, nil
}

// Manifest reads a pass's manifest.
func (q *Queue) Manifest(ctx context.Context, pass int) (Manifest, error) { return Manifest{}, nil }

// State reads `state`.
func (q *Queue) State(ctx context.Context) (State, error) { return State{}, nil }

// Totals sums up all passes up to now, the removed ones included.
func (q *Queue) Totals(ctx context.Context) (Totals, State, error) { return Totals{}, State{}, nil }

// FailedChunks lists the quarantined chunks.
func (q *Queue) FailedChunks(ctx context.Context) ([]FailedChunk, error) { return nil, nil }

// WatchState delivers `state` now and after each change (the latest only, if
// the receiver is slow) until ctx ends; then the channel is closed.
func (q *Queue) WatchState(ctx context.Context) <-chan State { return nil }

// AwaitTurn waits until Turn may have something to do.
func (q *Queue) AwaitTurn(ctx context.Context) error { return nil }

// Requeue takes back what was taken by incarnations that are not registered or
// that made no progress for the stall timeout. registered is called after the
// lanes were read (nil: only stalled ones). Returns the number of chunks.
func (q *Queue) Requeue(ctx context.Context, registered func(context.Context) (map[string]bool, error), guards ...store.Cmp) (int, error) {
	return 0, nil
}

// Turn goes on to the next pass or to draining if the lanes allow it, and takes
// passes off the list of reopened ones. next gives the manifest of a pass;
// nil or false: as that of the pass before.
func (q *Queue) Turn(ctx context.Context, next func(pass int) (Manifest, bool), guards ...store.Cmp) (State, error) {
	return State{}, nil
}

// RemovePasses removes the lanes and manifests of the passes below `below`.
func (q *Queue) RemovePasses(ctx context.Context, below int, guards ...store.Cmp) error { return nil }

// Finish ends the job: PhaseComplete (from draining; add the Guard of the
// State that was judged) or PhaseFailed. ops are put in the same transaction.
func (q *Queue) Finish(ctx context.Context, phase Phase, reason string, ops []store.Op, guards ...store.Cmp) error {
	return nil
}
