// Package client is the trainers' side of the pservers: it knows who owns
// which shard, lays a batch out over the shards, and moves pushes and pulls.
//
// A Client belongs to one job. It lays the parameters out once: the blocks of
// dense parameters and the rows of tables each lie on one shard (package job
// has the placement). A Batch is what one batch of records touches, in that
// layout: Prepare finds the distinct keys of each table and groups them by
// shard, so that a shard's part of a pull or a push is a slice of the batch.
//
// A Session works under one view, the record `owners` at one revision. It has
// one stream to each pserver. Exchange pushes one batch and pulls another with
// one message to each pserver, or with several where a message would be too
// large; Call.Wait takes the answers. Every shard gets every push, because the
// ledgers count batches; an answer counts only if the view's generation gave
// it. Progress asks how far the shards are with chunks.
//
//	s, err := c.Connect(ctx)
//	…
//	batch.Prepare(keys)
//	call, err := s.Exchange(ctx, nil, client.PushMeta{}, batch)  // pull
//	err = call.Wait(ctx)
//	gradient(batch)
//	call, err = s.Exchange(ctx, batch, meta, next)               // push, pull the next
//
// # Faults
//
// Two refusals are about the chunk, not the session: GoBack (a shard lacks
// earlier batches) and Stale (somebody else has taken the chunk). Everything
// else breaks the session: a pserver that is gone, paused, silent or not the
// owner any more, a shard that changes hands, an answer that does not fit.
// The user closes it, takes another one, asks for the progress of the chunks
// in hand, and repairs; all of it is idempotent because a batch is known by
// (pass, rank, n). A fault is a *FaultError, which names the shard, its owner
// and the reason. Nothing here retries a push by itself.
//
// # Concurrency
//
// A Client is safe for concurrent use. A Session has two goroutines for each
// pserver and one that watches the owners; none outlives Close. It belongs to
// one user, and so does a Batch, which is lent to the session while a call with
// it is under way. Nothing is locked across I/O; Call's lock and Client's lock
// are leaves.
package client
