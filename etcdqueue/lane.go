package etcdqueue

import "starfish/internal/ranges"

// Lane is one lane.
type Lane struct {
	V        int           `json:"v"`
	Todo     ranges.Set    `json:"todo"`
	Pending  []Entry       `json:"pending"`
	Complete ranges.Set    `json:"complete"`
	Failed   ranges.Set    `json:"failed"`
	Again    ranges.Set    `json:"again"`
	Tries    map[int64]int `json:"tries,omitempty"`
	Batches  int64         `json:"batches"`
	Records  int64         `json:"records"`
	Takes    int64         `json:"takes"`
	Requeued int64         `json:"requeued"`
	Reopened int64         `json:"reopened"`
}

// Entry is a group of pending chunks.
type Entry struct {
	At          ranges.Set `json:"at"`
	Owner       string     `json:"owner"`
	Incarnation string     `json:"incarnation"`
	Token       int64      `json:"token"`
	Beat        int64      `json:"beat"`
	Reason      string     `json:"reason,omitempty"`
}

// Totals counts.
func (l Lane) Totals() Totals { return Totals{} }

// Finished tells whether nothing is Todo or Pending.
func (l Lane) Finished() bool { return l.Todo.IsEmpty() && len(l.Pending) == 0 }
