package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// Config says how one process uses a queue. Lanes, Shuffle, Seed, MaxFailures
// and Passes belong to the job: every process must give the same.
type Config struct {
	// Store is the job's part of the store: its keys begin with `state`,
	// `passes/`, `queue/` and `failed/`. Required; Dial fills it in.
	Store store.Store
	// Clock measures the stall timeout and the delays between attempts;
	// nil = clock.System.
	Clock clock.Clock
	// Lanes must equal those of the queue in the store; 0 = whatever it has,
	// and DefaultLanes where Create makes it. At least as many as there are
	// takers is best; a take never needs more than 32 of them.
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
	// Speculate lets a taker that has nothing else to do take chunks over from
	// others, see Take, if those have shown no progress for that long, and for
	// four times as long as Pace says. 0 = never.
	Speculate time.Duration
	// Pace is how long this taker needs for a chunk; nil = no time.
	Pace func() time.Duration
	// Passes is the number of passes; 0 = 1.
	Passes int
	// Name and Incarnation identify the taker in the record. No two Queues may
	// ever use the same incarnation. Needed by Take only.
	Name, Incarnation string
	// Peers tells how many takers there are, this one included; nil = 1. Take
	// uses it to leave the others their share.
	Peers func() int
	// Log tells of broken watches, of chunks that are quarantined, and of chunks
	// that were taken back; nil = nowhere.
	Log logrus.FieldLogger
}

// Validate reports everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, text string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("etcdqueue: "+text, args...))
		}
	}
	check(c.Store != nil, "no store")
	check(c.Lanes >= 0 && c.Lanes <= maxLanes, "lanes: %d is not in 0 … %d", c.Lanes, maxLanes)
	check(c.MaxFailures >= 0, "max failures: %d is negative", c.MaxFailures)
	check(c.StallTimeout >= 0, "stall timeout: %s is negative", c.StallTimeout)
	check(c.Speculate >= 0, "speculate: %s is negative", c.Speculate)
	check(c.Passes >= 0 && c.Passes <= maxPasses, "passes: %d is not in 0 … %d", c.Passes, maxPasses)
	return errors.Join(errs...)
}

// The largest numbers that the keys have room for.
const (
	maxLanes  = 10_000
	maxPasses = 1_000_000
)

func (c *Config) setDefaults() {
	if c.Clock == nil {
		c.Clock = clock.System
	}
	if c.MaxFailures == 0 {
		c.MaxFailures = 3
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = time.Minute
	}
	if c.Passes == 0 {
		c.Passes = 1
	}
	if c.Peers == nil {
		c.Peers = func() int { return 1 }
	}
	if c.Pace == nil {
		c.Pace = func() time.Duration { return 0 }
	}
	if c.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		c.Log = quiet
	}
}

// Task is one chunk that was taken.
type Task struct {
	Pass int `json:"pass"`
	// Rank is the chunk's place in the pass's order and, with the pass, its
	// identity; Chunk is its place in the order of the data.
	Rank  int64 `json:"rank"`
	Chunk int64 `json:"chunk"`
	// Lane and Position are where Rank lies: Rank mod L and Rank div L.
	Lane     int   `json:"lane"`
	Position int64 `json:"position"`
	// Token is larger for every later take of the chunk.
	Token int64 `json:"token"`
}

func (t Task) id() laneID { return laneID{t.Pass, t.Lane} }

// Done is a chunk that was trained, with its sums.
type Done struct {
	Task
	Sums
}

// Sums are what a chunk has: batches, records in them, and bad records that
// were left out.
type Sums struct {
	Batches, Records, Bad int64
}

// Queue is one process's handle of a queue. It is safe for concurrent use.
type Queue struct {
	c Config
	// turn is held by the one writer of this handle that is at work.
	turn chan struct{}
	// stop ends the follower, done is closed when it has ended.
	stop context.CancelFunc
	ctx  context.Context //nolint:containedctx // the life of the follower, which outlives the call that starts it
	done chan struct{}
	// closer is what Dial opened.
	closer io.Closer

	mu        sync.Mutex
	following bool
	closed    bool
	view      view
	// loaded is closed once the view has been read.
	loaded   chan struct{}
	isLoaded bool
	// fatal is why the queue cannot be used any more.
	fatal error
	// changed is closed and replaced at each change of the view. news counts
	// the changes that may let a take succeed, emptyAt is the count at which
	// the last one found nothing.
	changed       chan struct{}
	news, emptyAt uint64
	takes         takes
	// scope is what the view follows; rescope tells the follower that it has
	// changed. waiting counts those who wait for news of any lane.
	scope   scope
	rescope chan struct{}
	waiting int
	flow    flow
	// seen is what Requeue saw of each entry, and since when; others is what Take
	// and Changed saw of those of others.
	seen, others map[entryID]sighting
	// depth sums up what Requeue saw.
	depth Totals
}

// New makes a handle; it does no I/O. The first Take starts a goroutine that
// follows the queue's records until Close.
func New(c Config) (*Queue, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.setDefaults()
	q := &Queue{
		c: c, turn: make(chan struct{}, 1), done: make(chan struct{}), loaded: make(chan struct{}),
		changed: make(chan struct{}), rescope: make(chan struct{}, 1), takes: newTakes(), seen: make(map[entryID]sighting),
		view: view{passes: make(map[int]*passView), failed: make(quarantine)},
	}
	q.ctx, q.stop = context.WithCancel(context.Background())
	return q, nil
}

// Close ends the watch that the handle keeps and, after Dial, the connection.
// Chunks that are Pending stay so: Release them first.
func (q *Queue) Close() {
	q.mu.Lock()
	first, following := !q.closed, q.following
	q.closed = true
	q.mu.Unlock()
	q.stop()
	if following {
		<-q.done
	}
	if first && q.closer != nil {
		if err := q.closer.Close(); err != nil {
			q.c.Log.WithError(err).Debug("queue's connection closed")
		}
	}
	q.mu.Lock()
	q.failLocked(ErrClosed)
	q.mu.Unlock()
}

// Create puts an empty queue of m's chunks, unless there is one already. That
// one must be for the same data, or the error is ErrMismatch. Jobs of starfish
// put InitialOps into the transaction that creates the job instead.
func (q *Queue) Create(ctx context.Context, m Manifest) error {
	lanes := q.c.Lanes
	if lanes == 0 {
		lanes = DefaultLanes
	}
	r, err := q.c.Store.Txn(ctx, store.Txn{
		If:   []store.Cmp{store.Absent(stateKey)},
		Then: InitialOps(m, lanes),
		Else: []store.Op{store.Get(stateKey), store.Get(passKey(0))},
	})
	if err != nil {
		return fmt.Errorf("create queue: %w", err)
	}
	if r.Succeeded {
		return nil
	}
	if _, err := q.decodeState(r.First(0)); err != nil {
		return err
	}
	if !r.First(1).Exists() {
		return nil // its pass 0 is over and removed
	}
	old, err := decodeManifest(r.First(1))
	if err != nil {
		return err
	}
	if old.Chunks != m.Chunks || old.Fingerprint != m.Fingerprint {
		return fmt.Errorf("%w: it has %d chunks with fingerprint %q, not %d with %q",
			ErrMismatch, old.Chunks, old.Fingerprint, m.Chunks, m.Fingerprint)
	}
	return nil
}
