package job

import (
	"encoding/json"
	"fmt"
)

// FailedResult is what a Result says of the chunks that are quarantined.
type FailedResult struct {
	Chunks int64 `json:"chunks"` // how many there are
	// First are those with the lowest numbers, at most 100.
	First []FailedChunk `json:"first"`
}

// FailedChunk is a quarantined chunk, as people and programs are told of it.
type FailedChunk struct {
	Chunk int64 `json:"chunk"`
	Pass  int   `json:"pass"` // in which it was quarantined
	FailedDetail
	Reason   string `json:"reason"`
	Failures int    `json:"failures"`
	Trainer  string `json:"trainer"` // that reported the last failure
}

// FailedDetail is what a trainer adds to the record of a chunk that it
// quarantines: the `detail` of `failed/<chunk>`.
type FailedDetail struct {
	Rank int64 `json:"rank"` // in the order of the pass
	// Bytes Start to End of File are the chunk.
	File  string `json:"file"`
	Start int64  `json:"start"`
	End   int64  `json:"end"`
	// Batches of the chunk, by shard, that were applied or skipped before it
	// failed; null for a shard that does not tell.
	Batches []*int64 `json:"batches"`
}

// Encode is the detail as it is stored.
func (d FailedDetail) Encode() (json.RawMessage, error) { return json.Marshal(d) }

// Describe puts in what the trainer has added to the record.
func (c *FailedChunk) Describe(detail json.RawMessage) error {
	if err := json.Unmarshal(detail, &c.FailedDetail); err != nil {
		return fmt.Errorf("job: the detail of failed chunk %d: %w", c.Chunk, err)
	}
	return nil
}

// maxFailedChunks is how many quarantined chunks a Result lists. With very many
// shards they are fewer, so that there are never more than maxFailedBatches
// numbers: the whole is one record.
const (
	maxFailedChunks  = 100
	maxFailedBatches = 20_000
)

// NewFailedResult lists the first of chunks, which are those that are
// quarantined, by number; nil if there are none.
func NewFailedResult(chunks []FailedChunk, shards int) *FailedResult {
	if len(chunks) == 0 {
		return nil
	}
	most := max(1, min(maxFailedChunks, maxFailedBatches/max(1, shards)))
	return &FailedResult{Chunks: int64(len(chunks)), First: chunks[:min(len(chunks), most)]}
}
