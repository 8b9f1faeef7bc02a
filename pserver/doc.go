// Package pserver is a parameter server: a process that owns shards of the
// model, applies what trainers push to them, answers what they pull, and saves
// them. docs/pserver.md is its manual.
//
// # The core: Shard
//
// A shard is one of the S parts of every parameter: blocks of the dense ones,
// rows of the sparse ones, the optimizer's state beside each weight, and the
// ledger (package ledger) of the batches that these weights are made of, under
// one lock. The core (api.go, shard.go, parameter.go, dense.go,
// table.go, stage.go, snapshot.go, kept.go, loader.go, export.go) knows no
// network, no etcd, no file and no clock. Its invariants:
//
//   - A push is validated as a whole before anything changes. What is refused
//     with an error, or by the ledger, has changed no weight and no row.
//   - Weights, state and ledger change together under the lock and are cut
//     together: a checkpoint is the state of one moment, though pushes go on
//     while it is written. What an open cut still needs is put aside by the
//     push that changes it.
//   - The same pushes in the same order make the same bits, whatever is pulled
//     between and however a push was cut into parts.
//   - An initial value depends on the job's seed, the parameter's name and the
//     key or element only. A pull creates no row.
//   - A shard in which a weight has become non-finite serves and saves nothing
//     any more: its last checkpoint is from before.
//
// In the steady state a push and a pull allocate nothing, but for what a push
// puts aside for a cut.
//
// # The daemon: Server
//
// Around the shards, a Server registers the process, claims shards that have no
// owner, restores them, serves them over one stream per trainer, compares their
// ledgers with the queue, and saves them, until the job is complete.
//
// # Locks
//
// Under a shard's lock only the Stage's lock is taken, and the function ok is
// called that the caller has passed in; it must not call the shard, nor wait.
// Stage.Wait is called without any lock.
package pserver
