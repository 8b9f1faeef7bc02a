package pserver

import (
	"errors"
	"fmt"

	"starfish/internal/wire"
	"starfish/pserver/ledger"
)

// The sentinels that a shard's errors wrap. ErrInvalid, ErrParts, ErrTooLarge
// and ErrNotOwner refuse one request and change nothing, ErrCutting a cut. ErrBroken is fatal to
// the job. ErrBlank is for a shard that is used too early. ErrMismatch and ErrCorrupt are what a Loader says of a checkpoint.
var (
	// ErrNotOwner: the function that was passed in denies that this process
	// still owns the shard.
	ErrNotOwner = errors.New("not the shard's owner")
	// ErrInvalid: the request does not fit the job's parameters.
	ErrInvalid = errors.New("invalid request")
	// ErrParts: a part of a push came out of order. What was staged is dropped;
	// the push may be sent again from its first part.
	ErrParts = errors.New("part of a push out of order")
	// ErrTooLarge: a push has more bytes in its parts than may be staged.
	ErrTooLarge = errors.New("push too large")
	// ErrBroken: an update has yielded a non-finite weight before; the shard
	// neither serves nor saves any more. Wrapped beside the *NonFiniteError.
	ErrBroken = errors.New("shard broken by a non-finite weight")
	// ErrBlank: the shard was made for a load that has not come to its end.
	ErrBlank = errors.New("the shard has no values yet")
	// ErrCutting: a cut of the shard is still open.
	ErrCutting = errors.New("the shard is being cut already")
	// ErrMismatch: a checkpoint was made for other parameters or another shard.
	ErrMismatch = errors.New("checkpoint of other parameters")
	// ErrCorrupt: a checkpoint's content is not what a shard writes.
	ErrCorrupt = errors.New("corrupt checkpoint content")
)

// NonFiniteError says that an update has made a weight, or a word of the
// optimizer's state, infinite or NaN. The job has diverged.
type NonFiniteError struct {
	Parameter string
	// Sparse tells whether Row is the key of a sparse row, or Element the
	// index of a dense element.
	Sparse  bool
	Row     uint64
	Element int64
	// Pass, Rank and N name the batch.
	Pass int
	Rank int64
	N    int64
}

func (e *NonFiniteError) Error() string {
	where := fmt.Sprintf("element %d", e.Element)
	if e.Sparse {
		where = fmt.Sprintf("row %d", e.Row)
	}
	batch := wire.Meta{Pass: e.Pass, Rank: e.Rank, N: e.N}
	return fmt.Sprintf("parameter %q, %s became non-finite in %s", e.Parameter, where, batch.Batch())
}

// Unwrap makes errors.Is(err, ErrBroken) true.
func (e *NonFiniteError) Unwrap() error { return ErrBroken }

// Outcome is a shard's answer to a push that was not refused with an error.
type Outcome struct {
	// Staged tells that the push has more parts to come; Verdict means nothing.
	Staged  bool
	Verdict ledger.Verdict
	// Finished and Next tell how far the shard is with the chunk afterwards.
	Finished bool
	Next     int64
	// Lost is the size of the gap that the push has left, under policy skip.
	Lost int64
	// Waiting: the batch waits for its step to close, or its trainer for others;
	// Reason says for whom. Closed: its step has closed already, and nothing was
	// done. Next is the open step then.
	Waiting, Closed bool
	Reason          string
	// Told: what became of the batch was told before.
	Told bool
}

// Code is the outcome as messages spell it.
func (o Outcome) Code() wire.Code {
	switch {
	case o.Staged:
		return wire.Staged
	case o.Waiting:
		return wire.Waiting
	case o.Closed:
		return wire.Closed
	}
	return verdictCodes[o.Verdict]
}

var verdictCodes = [...]wire.Code{
	ledger.Applied:         wire.Applied,
	ledger.AppliedAfterGap: wire.Applied,
	ledger.Skipped:         wire.Skipped,
	ledger.Duplicate:       wire.Duplicate,
	ledger.Stale:           wire.Stale,
	ledger.GoBack:          wire.GoBack,
}

// ShardStats is what a shard tells of itself.
type ShardStats struct {
	Shard      int   `json:"shard"`
	Generation int64 `json:"generation"`
	// Rows and Elements are the sparse rows and dense elements it holds; Bytes
	// the memory of weights, optimizer state and indexes.
	Rows     int64 `json:"rows"`
	Elements int64 `json:"elements"`
	Bytes    int64 `json:"bytes"`
	// Total is the sum over all passes.
	Total   ledger.Sums    `json:"total"`
	Summary ledger.Summary `json:"ledger"`
	// Barrier is how it stands with the open step; nil where trainers do not keep
	// step.
	Barrier *BarrierStatus `json:"barrier,omitempty"`
}

// BarrierStatus is how it stands with the open step of a shard.
type BarrierStatus struct {
	// Step is the open one; Known is false while a restored shard has not heard of
	// any, Recovering until its first barrier has closed.
	Step       int64 `json:"step"`
	Known      bool  `json:"known"`
	Recovering bool  `json:"recovering"`
	// Lead is how many steps the foremost trainer is ahead of the open one.
	Lead int64 `json:"lead"`
	// Batches wait, and take so many Bytes; Missing are the trainers that they
	// wait for.
	Batches int      `json:"batches"`
	Bytes   int64    `json:"bytes"`
	Missing []string `json:"missing,omitempty"`
}
