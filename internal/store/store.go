// Package store is the seam between starfish and etcd: reads, transactions,
// watches and leases, and nothing else. Every other package reaches etcd
// through Store only, so that the whole system also runs over the fake.
//
// Implementations: store/etcd (a real cluster), store/fake (in memory, the
// same semantics: revisions, leases, watches, transactions, compaction). Both
// pass the suite in store/storetest. Embedded servers live in store/embedded.
//
// Follow keeps up with a range of keys over all breaks of a watch; whoever
// calls Watch itself lists again after a break.
//
// Reads are linearizable. An error other than the sentinels below may hide a
// success: the caller asks the store what happened, it never assumes.
package store

import (
	"context"
	"errors"
	"math"
	"time"
)

var (
	// ErrCompacted: the requested revision is gone; list again and watch from there.
	ErrCompacted = errors.New("store: revision compacted")
	// ErrLeaseNotFound: the lease has expired or was revoked.
	ErrLeaseNotFound = errors.New("store: lease not found")
	// ErrInvalid: the store refuses the request whatever its state: an empty
	// key, more than MaxOps operations, two writes of one key in one
	// transaction, a request of more than 1.5 MiB. A mistake of the caller.
	ErrInvalid = errors.New("store: invalid request")
	// ErrFull: the store has no space and takes no writes until an operator mends
	// it. Reads and renewals of leases go on. Retryable.
	ErrFull = errors.New("etcd is out of space and takes no writes until it is compacted, defragmented and its alarm disarmed")
	// ErrHistory: the store's revision or cluster identity went backwards, so
	// it was restored from a backup or replaced. Fatal to the process.
	ErrHistory = errors.New("store: history went backwards: etcd was replaced or restored from a backup; " +
		"delete the job and submit it again, or restore the checkpoints of the same moment")
)

// MaxOps is the largest number of conditions of a transaction, and of
// operations on each of its sides.
const MaxOps = 128

// LeaseID names a lease; 0 means no lease.
type LeaseID int64

// KV is one key with its value and revisions. A missing key is the zero KV.
type KV struct {
	Key       string
	Value     []byte
	CreateRev int64
	ModRev    int64
	Version   int64
	Lease     LeaseID
}

// Exists tells whether the key was there.
func (kv KV) Exists() bool { return kv.ModRev != 0 }

// Target is what a comparison looks at.
type Target int

// The targets of a comparison.
const (
	CreateRevision Target = iota + 1
	ModRevision
)

// Cmp is one condition of a transaction: the key's revision equals Rev.
// Rev 0 means that the key is absent.
type Cmp struct {
	Key    string
	Target Target
	Rev    int64
}

// Absent is the condition that key does not exist.
func Absent(key string) Cmp { return Cmp{Key: key, Target: CreateRevision} }

// Created is the condition that key exists and was created at rev.
func Created(key string, rev int64) Cmp { return Cmp{Key: key, Target: CreateRevision, Rev: rev} }

// Unchanged is the condition that key was last modified at rev (0: is absent).
func Unchanged(key string, rev int64) Cmp { return Cmp{Key: key, Target: ModRevision, Rev: rev} }

// Kind is the kind of an operation in a transaction.
type Kind int

// The kinds of operation.
const (
	KindPut Kind = iota + 1
	KindDelete
	KindRange
)

// Op is one operation of a transaction. For KindDelete and KindRange, End
// empty means the single key Key; otherwise the range [Key, End).
type Op struct {
	Kind  Kind
	Key   string
	End   string
	Value []byte
	Lease LeaseID
	Limit int64
}

// Put writes a key, under a lease unless lease is 0.
func Put(key string, value []byte, lease LeaseID) Op {
	return Op{Kind: KindPut, Key: key, Value: value, Lease: lease}
}

// Delete removes a key.
func Delete(key string) Op { return Op{Kind: KindDelete, Key: key} }

// DeleteRange removes the keys in [start, end).
func DeleteRange(start, end string) Op { return Op{Kind: KindDelete, Key: start, End: end} }

// Get reads one key.
func Get(key string) Op { return Op{Kind: KindRange, Key: key} }

// Range reads the keys in [start, end), at most limit of them (0: all).
func Range(start, end string, limit int64) Op {
	return Op{Kind: KindRange, Key: start, End: end, Limit: limit}
}

// PrefixEnd is the end of the range of all keys that start with prefix.
func PrefixEnd(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 0xff {
			b[i]++
			return string(b[:i+1])
		}
	}
	return "\x00"
}

// Txn is an atomic "if all of If hold then Then, otherwise Else". At most 128
// conditions and 128 operations on each side (MaxOps). One side may not write
// a key twice; a read sees the writes before it.
type Txn struct {
	If   []Cmp
	Then []Op
	Else []Op
}

// Result answers a transaction. KVs has one entry for each executed operation:
// the keys read for KindRange, nil for the others. Revision is the store's
// revision at the transaction (of the transaction itself if it wrote).
type Result struct {
	Succeeded bool
	Revision  int64
	KVs       [][]KV
}

// First is the single key that operation i read; the zero KV if it was absent.
func (r Result) First(i int) KV {
	if i >= len(r.KVs) || len(r.KVs[i]) == 0 {
		return KV{}
	}
	return r.KVs[i][0]
}

// Event is one change of a key. For a deletion KV has only Key and ModRev.
type Event struct {
	Deleted bool
	KV      KV
}

// WatchResponse is a batch of events in revision order. A response with Err
// set is the last: ErrCompacted, a context error, ErrHistory or a broken
// connection; the caller lists again and watches from there.
type WatchResponse struct {
	Events   []Event
	Revision int64
	Err      error
}

// Store is what starfish needs from etcd. Implementations are safe for
// concurrent use and honour the context's deadline.
type Store interface {
	// Txn runs one transaction. A transaction without conditions takes Then.
	Txn(ctx context.Context, t Txn) (Result, error)
	// Watch delivers the changes of [start, end) (end empty: one key) from
	// revision rev on (0: from some moment after the call). The channel is
	// closed after a response with Err set, and when ctx ends.
	Watch(ctx context.Context, start, end string, rev int64) <-chan WatchResponse
	// Grant makes a lease of at least ttl, in whole seconds; it returns the
	// time to live given.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error)
	// KeepAlive renews a lease once; ErrLeaseNotFound if it is gone.
	KeepAlive(ctx context.Context, id LeaseID) (time.Duration, error)
	// Revoke ends a lease and deletes its keys; nil if it is gone already.
	Revoke(ctx context.Context, id LeaseID) error
}

// Read runs read-only operations at one revision.
func Read(ctx context.Context, s Store, ops ...Op) (Result, error) {
	return s.Txn(ctx, Txn{Then: ops})
}

// Lookup reads one key; the zero KV if it is absent.
func Lookup(ctx context.Context, s Store, key string) (KV, error) {
	r, err := Read(ctx, s, Get(key))
	if err != nil {
		return KV{}, err
	}
	return r.First(0), nil
}

// TryWrite asks whether a write of key would be taken, and writes nothing.
func TryWrite(ctx context.Context, s Store, key string) error {
	_, err := s.Txn(ctx, Txn{If: []Cmp{Created(key, math.MaxInt64)}, Then: []Op{Put(key, nil, 0)}})
	return err
}

// List reads the keys in [start, end) and the revision at which it did.
func List(ctx context.Context, s Store, start, end string) ([]KV, int64, error) {
	r, err := Read(ctx, s, Range(start, end, 0))
	if err != nil {
		return nil, 0, err
	}
	return r.KVs[0], r.Revision, nil
}
