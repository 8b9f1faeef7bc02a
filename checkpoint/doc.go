// Package checkpoint keeps the state of shards on disk, so that a shard can be
// restored by another process after its owner died at any instruction.
//
// One save of one shard is one file, and one record in etcd that lists it. The
// package knows neither what a shard is nor what its sections mean; whoever
// saves emits named sections of bytes, and whoever loads gets them back in the
// same order.
//
// # The file
//
// A gob stream: a Header, blocks of at most BlockSize bytes that each name
// their section, and a trailer that counts blocks and bytes. Its MD5 is taken
// over the file's bytes while they are written and read, in a goroutine beside
// the encoder and the one that waits for the disk. The name of a file begins with
// its shard and generation, so that nobody ever has to open a file to know
// whose it is.
//
// # The order of steps
//
//  1. Save writes under a temporary name, syncs the file, renames it, syncs
//     the directory.
//  2. Publish adds the record, marks the shard as listed and drops the oldest
//     records beyond the number to keep, in one transaction that is guarded by
//     the saver's ownership of the shard.
//  3. Only then are the files of the dropped records removed.
//
// # Invariants
//
//   - What is listed is loadable: a crash between any two steps leaves the
//     newest listed file complete on disk.
//   - An owner that was superseded cannot list anything: Publish and Drop
//     compare incarnation and generation in `owners`, never a name, and return
//     ErrNotOwner.
//   - No file of another shard, and none of a later generation, is ever
//     touched.
//   - Load never finishes with data whose size, digest, header or trailer is
//     wrong, and its memory does not depend on what a broken file claims. The
//     sink gets what is decoded before the digest of the whole is known: it
//     must take nothing for true before Finish.
//   - A directory belongs to one job: the file JOB holds the job's UUID.
//
// # Errors
//
// ErrNotOwner is fatal to the saver's ownership of that one shard. ErrNoneLoads
// and ErrForeign are fatal to the process. Anything else may heal: a save that
// failed left nothing but a file that Collect removes.
//
// There is no lock in here; one shard's saves must not overlap, which is the
// caller's duty.
package checkpoint
