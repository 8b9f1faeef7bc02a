// Package trainer runs a training process: it takes chunks from the queue,
// reads their records, pulls the values a batch needs, computes gradients,
// pushes them to every shard, and completes the chunk when every shard has
// acknowledged its last batch.
//
// # Contract
//
// New validates and does no I/O. Run registers the trainer, works until the
// job is complete (nil), has failed, or ctx ends (nil, after its chunks are
// handed back and its lease is revoked). Everything Run starts has ended when
// it returns.
//
// # Invariants
//
//   - A push, and an answer to it, belongs to one view: the record `owners` at
//     one revision. A chunk is completed under a view of which every shard has
//     said that the chunk is finished, and the transaction compares the view's
//     revision.
//   - There is one answer to every fault between trainer and pservers: the
//     round ends, a new view is taken, every shard is asked how far it is with
//     each chunk in hand, and the chunks are read again from the smallest batch
//     number. Shards ignore what they have. (round.go)
//   - With one trainer the sequence of messages depends on the spec only, not
//     on timing: the pipeline is flushed when the queue has nothing to give,
//     never because a take is slow. (pipeline.go)
//   - The steward's duties are compare-and-swaps that any other steward may
//     repeat; a steward may die between any two of them. (steward.go)
//
// # Concurrency
//
// A worker has one goroutine that reads ahead (feed), one that sends and
// computes (pipeline), and one that touches the chunks in hand. They share the
// hand (hand.go), whose mutex is never held over I/O.
//
// # Errors
//
// Faults of a round (client.FaultError, etcdqueue.ErrGuard) are retried with
// back-off; bad data is fatal to the chunk; data that vanished, a job that
// failed and a superseded name are fatal to the process (job.ExitCode).
package trainer
