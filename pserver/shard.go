package pserver

import (
	"sync"

	"starfish/internal/ranges"
	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

// ShardOptions is how a shard behaves, beside the job's parameters.
type ShardOptions struct {
	// Policy for batches lost by a restore.
	Policy ledger.Policy
	// Stage bounds the bytes of incomplete pushes, for all the shards of a
	// process together. Nil gives the shard one of its own with the default
	// limit.
	Stage *Stage
}

// Shard is one of the S parts of every parameter, with optimizer state and
// ledger, under one lock. All methods may be called concurrently.
type Shard struct {
	mu sync.Mutex
}

// NewShard returns the shard in its initial state: dense blocks have their
// initial values, tables no rows, the ledger no batches.
func NewShard(p job.Parameters, shard, lanes int, o ShardOptions) (*Shard, error) { return nil, nil }

// Push handles one push, or one part of a push. The source tells apart the
// streams on which parts arrive. ok is asked under the shard's lock whether
// this process still owns the shard; nil means yes.
//
// On an error nothing has changed, except that a *NonFiniteError breaks the
// shard for good.
func (s *Shard) Push(source uint64, p *wire.PushData, ok func() bool) (Outcome, error) {
	return Outcome{}, nil
}

// DropSource forgets what a stream has staged; to be called when it ends.
func (s *Shard) DropSource(source uint64) {}

// PullSize returns the number of values that the answer to a pull has, or an
// ErrInvalid. It takes no lock.
func (s *Shard) PullSize(dense []wire.BlockRef, sparse []wire.KeyRef) (int, error) { return 0, nil }

// Pull writes the values of the dense blocks, then those of the rows, in the
// order asked, into one place that it asks of the sink once. A row that does
// not exist has its initial value, and is not created.
func (s *Shard) Pull(dense []wire.BlockRef, sparse []wire.KeyRef, sink wire.Sink, ok func() bool) error {
	return nil
}

// Progress tells how far the shard is with a chunk: whether it is finished, and
// which batch it wants next otherwise.
func (s *Shard) Progress(pass int, rank int64) (finished bool, next int64) { return false, 0 }

// MarkRestored notes that the shard begins without what an earlier owner has
// applied: to be called for a generation that starts without a checkpoint where
// there was an owner before. Loader.Finish does it by itself.
func (s *Shard) MarkRestored() {}

// SetGeneration notes the generation under which the shard is owned, for Stats.
func (s *Shard) SetGeneration(generation int64) {}

// Missing, Covers, Reopened, Forgive and Collapse are those of the ledger,
// under the shard's lock.
func (s *Shard) Missing(pass, lane int, complete ranges.Set) ranges.Set { return ranges.Set{} }

// Covers: see ledger.Ledger.
func (s *Shard) Covers(pass int, lanes []ledger.Lane) bool { return false }

// Reopened: see ledger.Ledger.
func (s *Shard) Reopened(pass, lane int, positions ranges.Set) {}

// Forgive: see ledger.Ledger.
func (s *Shard) Forgive(pass, lane int, positions ranges.Set, batches int64) {}

// Collapse: see ledger.Ledger.
func (s *Shard) Collapse(pass int, chunks int64, lanes []ledger.Lane) error { return nil }

// Stats describes the shard.
func (s *Shard) Stats() ShardStats { return ShardStats{} }

// Err is the *NonFiniteError that has broken the shard, nil if none has.
func (s *Shard) Err() error { return nil }
