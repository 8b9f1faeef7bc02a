package pserver

import "starfish/pserver/ledger"

// Cut is a consistent copy of a shard: weights, optimizer state and ledger of
// one moment.
type Cut struct{}

// Cut copies the shard under its lock. It fails with the shard's Err.
func (s *Shard) Cut() (*Cut, error) { return nil, nil }

// Ledger is the summary of the cut's ledger, for the checkpoint's meta record.
func (c *Cut) Ledger() ledger.Summary { return ledger.Summary{} }

// WriteTo hands the cut's sections out, in order, in blocks of at most
// BlockBytes. A block is valid only during the call.
func (c *Cut) WriteTo(emit func(section string, data []byte) error) error { return nil }

// BlockBytes is the largest block that WriteTo emits.
const BlockBytes = 1 << 20

// Loader builds a shard's content from the sections of a cut. The shard itself
// changes only in Finish, and goes on as it was if a load is given up.
type Loader struct{}

// NewLoader begins a load.
func (s *Shard) NewLoader() *Loader { return nil }

// Add takes the next block. Its errors wrap ErrMismatch or ErrCorrupt.
func (l *Loader) Add(section string, data []byte) error { return nil }

// Reset throws away what was added, to begin again with another checkpoint.
func (l *Loader) Reset() {}

// Finish checks that everything has come and makes it the shard's content,
// with the ledger marked restored.
func (l *Loader) Finish() error { return nil }
