package wire

import "fmt"

// Meta identifies the batch whose gradient a push carries, and says what the
// ledger has to know of it.
type Meta struct {
	// Pass, Rank and N are the batch's identity, whoever computes it.
	Pass int
	Rank int64
	N    int64
	// Token is the fencing number of the take under which it was computed.
	Token int64
	// Last marks the last batch of its chunk.
	Last bool
	// Void marks a batch with a non-finite loss or gradient: it carries no
	// values and is counted as skipped.
	Void bool
	// Gap marks the batch at which a trainer goes on with a chunk although a
	// shard lacks batches below it: every shard has acknowledged those once. A
	// shard that a restore has set back gives them up, under policy skip.
	Gap bool
	// Records, Loss (the sum over the records of weight × loss) and Weight (the
	// sum of the weights) are the batch's share of the sums. A void batch has
	// neither loss nor weight.
	Records int
	Loss    float64
	Weight  float64
}

// Batch names the batch in words; errors about it contain them.
func (m *Meta) Batch() string {
	return fmt.Sprintf("batch %d of chunk rank %d of pass %d", m.N, m.Rank, m.Pass)
}

// PushData is one shard's part of a batch's gradient: sums over the records.
// Dense and Sparse are empty where the shard has nothing to add.
type PushData struct {
	Meta
	// Part counts the parts of a push from 0; More tells that another one
	// follows. Only the part without More makes the shard apply all of them.
	Part int
	More bool
	// Seen is how many updates, those of the sender's included, the values had
	// seen from which the gradient was computed; negative where nobody knows. It
	// does not travel.
	Seen   int64
	Dense  []DenseBlock
	Sparse []SparseRows
}

// DenseBlock holds the values of one block of a dense parameter. Param is the
// parameter's place in the job's list.
type DenseBlock struct {
	Param  uint16
	Block  uint32
	Values []float32
}

// SparseRows holds rows of a sparse parameter: len(Values) = len(Keys) × dim.
// The keys of one push of one parameter are distinct.
type SparseRows struct {
	Param  uint16
	Keys   []uint64
	Values []float32
}

// BlockRef names one block of a dense parameter.
type BlockRef struct {
	Param uint16
	Block uint32
}

// KeyRef names rows of a sparse parameter.
type KeyRef struct {
	Param uint16
	Keys  []uint64
}

// Code says what became of one shard's section of a request.
type Code uint8

// The codes. Those up to Skipped are successes, the others refusals: a refused
// section changed nothing and its pull is not answered.
const (
	// OK: there was no push; the pull is answered.
	OK Code = iota
	// Staged: the part is kept until the last one arrives.
	Staged
	// Applied: the push changed the shard.
	Applied
	// Duplicate: the shard has the batch already; nothing changed.
	Duplicate
	// Skipped: the push was void, or non-finite on this shard; it is counted.
	Skipped
	// GoBack: the shard lacks earlier batches of the chunk; it wants Next.
	GoBack
	// Stale: the chunk has been taken by somebody else since (a higher token).
	Stale
	// WrongOwner: the shard is not owned here, or under another generation or job.
	WrongOwner
	// Paused: the owner's lease may have ended; it serves nothing for now.
	Paused
	// Unloaded: the shard is owned here and not serving yet.
	Unloaded
	// Failed: the job has failed (a non-finite weight).
	Failed
	// Invalid: the section does not fit the job's parameters.
	Invalid
	// Full: the push would create rows for which its pserver has no memory left.
	Full
	// Waiting: the step is still open, and Reason says for whom. The batch of the
	// trainer has been taken, or has to be waited for.
	Waiting
	// Closed: the shard has closed the step; Next is the step that is open.
	Closed
	codes // their number
)

// Codes is the number of codes.
const Codes = int(codes)

// Refused tells whether the code is a refusal.
func (c Code) Refused() bool { return c > Skipped }

// Barrier is what a section means to the barrier of its shard, in jobs whose
// trainers keep step with each other.
type Barrier struct {
	Kind BarrierKind
	// Step is the step of the batch, or the newest pass that has nothing to do
	// (Idle).
	Step int64
	// Trainer is the incarnation of the sender.
	Trainer [16]byte
}

// BarrierKind says which of its sections a message has before it.
type BarrierKind uint8

// The kinds. A section of kind NoBarrier has nothing to do with steps.
const (
	NoBarrier BarrierKind = iota
	// Arrive: the section pushes a batch under the step.
	Arrive
	// Await: the section asks what became of the batch that this stream has
	// pushed under the step, and pulls when the step is closed.
	Await
	// Idle: the trainer has no work, and need not be waited for.
	Idle
)

// Request is one message of a trainer to a pserver.
type Request struct {
	Job    [16]byte
	Seq    uint64
	Shards []ShardRequest
}

// ShardRequest is one shard's section. The push is handled before the pull.
type ShardRequest struct {
	Shard      int
	Generation int64
	Barrier    Barrier
	// Push is nil where the section only pulls.
	Push *PushData
	// Dense and Sparse name what is pulled; the answer holds their values in
	// this order.
	Dense  []BlockRef
	Sparse []KeyRef

	push PushData // the memory behind Push, reused by Decode
}

// Response answers one Request, section by section in the same order.
type Response struct {
	Seq    uint64
	Shards []ShardResponse
}

// ShardResponse answers one section.
type ShardResponse struct {
	Shard int
	// Generation is the owner's: an answer counts only if it is the view's.
	Generation int64
	Code       Code
	// Finished tells that the push's chunk is finished on this shard; Next is
	// the batch that the shard wants next otherwise.
	Finished bool
	Next     int64
	// Reason explains a refusal to people.
	Reason string
	// Values are the pulled values: dense blocks, then rows, in the order of
	// the request.
	Values []float32
}

// Sink takes the values of a pull. Values returns the place for the next n of
// them, to be filled before the next call.
type Sink interface {
	Values(n int) []float32
}

func (c Code) String() string {
	if c < codes {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

var codeNames = [codes]string{
	"ok", "staged", "applied", "duplicate", "skipped", "go back", "stale",
	"wrong owner", "paused", "unloaded", "failed", "invalid", "full", "waiting", "closed",
}
