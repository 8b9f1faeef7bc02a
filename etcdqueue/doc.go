// Package etcdqueue hands out the chunks of a data set to any number of takers,
// pass after pass, with etcd as the only thing that they share. It may be used
// without the rest of starfish: see the example and Dial.
//
// # What it promises
//
// At every revision of the store each chunk of a pass is in exactly one of
// Todo, Pending, Complete and Failed. A chunk is given to one taker at a time.
// Its token, larger for every later take, tells the takers of one chunk apart,
// so that a taker that was thought dead cannot report on what is another's by
// now. Complete means what the completer's guards say it means: they are
// compared in the transaction that moves the chunk. The pass goes on to the
// next when no chunk of it is Todo or Pending, and not before; what was
// Complete may be reopened later, also in a pass that is over. Any process may
// be killed at any instruction and any answer may be lost: nothing is left half
// done, and the same call may be made again.
//
// # How
//
// A pass of N chunks orders them by rank: as the data lie, or by a permutation
// that is computed from (seed, pass). Rank r lies in lane r mod L at position
// r div L. A lane is one record, in which sets of positions are ranges, so its
// size depends on what is going on in it and not on N; an absent record is a
// lane of which nothing was taken. Filling a queue costs nothing. Lane is the
// pure state machine behind that record. Each step is one transaction that
// compares the records it was worked out from; after a conflict it brings the
// present ones back and is worked out again.
//
// The handle of a taker follows the queue's records with one watch, so a take
// or a report is one request, and waiting (Changed, AwaitTurn) is none. A taker
// that has a lane to itself follows less, see scope, or each write would be told
// to all takers. What it follows is a hint only; the comparisons decide. An absent lane is made
// anew only with a comparison of the pass's key, which goes away together with
// the pass's lanes when the floor in `state` is moved above it.
//
// # Duties
//
// Somebody must take back what the dead have left (Requeue), turn the passes
// (Turn), and may remove old lanes (RemovePasses) and end the job (Finish). In
// starfish that is the steward. Two at once do no harm: each duty compares
// `state`, and the caller may add the key of its lock to the guards. A reopen
// writes `state` in the transaction that changes the lane; that is what keeps a
// turn that was decided before it from being written after it.
//
// # Errors
//
// ErrEmpty, ErrDone and *ErrFailed end a Take; ErrStale ends a report for good;
// ErrGuard asks the caller to repair what its guards stand for. ErrFormat,
// ErrMismatch and the store's ErrHistory are fatal to the process. Everything
// else is the store's, may hide a success, and is retried by calling again.
//
// # Concurrency
//
// A Queue may be used by many goroutines. Its writers take turns (Queue.turn),
// and what they look at is behind a mutex (Queue.mu) that is never held during
// a request. Turn before mu.
package etcdqueue
