package client

import (
	"fmt"

	"starfish/internal/wire"
)

// PushMeta identifies the batch that a push carries.
type PushMeta = wire.Meta

// Table is a batch's view of one sparse parameter. The distinct keys lie shard
// by shard, so that a shard's part of Keys, Rows and Grad is a slice.
type Table struct {
	Dim int
	// Keys are the distinct keys of the batch.
	Keys []uint64
	// Slots has for each key occurrence given to Prepare its place in Keys.
	Slots []uint32
	// Rows are the pulled values and Grad the gradient: len(Keys) × Dim.
	Rows, Grad []float32
}

// Answer is what one shard said to a push.
type Answer struct {
	Code wire.Code
	// Finished tells that the shard has finished the push's chunk; Next is the
	// batch that it wants next otherwise.
	Finished bool
	Next     int64
}

// Chunk names a chunk of a pass by its rank.
type Chunk struct {
	Pass int
	Rank int64
}

// Progress says how far a shard is with a chunk.
type Progress struct {
	Finished bool
	Next     int64
}

// Sums are what a shard has counted in one pass.
type Sums struct {
	// Batches were applied, skipped or given up as lost; Records are those of
	// the batches that came.
	Batches, Records int64
	// Loss is the sum of weight × loss, Weight that of the weights.
	Loss, Weight float64
}

// Identity is who answers at an address.
type Identity struct {
	Incarnation string
	Name        string
	Version     string
	Job         [16]byte
	// Shards has the generation of each shard that is served there.
	Shards map[int]int64
}

// FaultError ends a call, and the session with it unless Code is GoBack, Stale or
// Full. The trainer then takes a new session and repairs.
type FaultError struct {
	Shard int
	// Pserver is the name of the shard's owner in the session's view.
	Pserver string
	// Code is the shard's refusal; OK if there was no answer, and Err says why.
	Code wire.Code
	// Next is the batch that the shard wants (GoBack).
	Next int64
	// Reason is the shard's explanation.
	Reason string
	Err    error
}

func (e *FaultError) Error() string {
	what := e.Code.String()
	if e.Code == wire.OK {
		what = "no answer"
	}
	where := fmt.Sprintf("shard %d", e.Shard)
	if e.Pserver != "" {
		where += " on " + e.Pserver
	}
	s := where + ": " + what
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *FaultError) Unwrap() error { return e.Err }
