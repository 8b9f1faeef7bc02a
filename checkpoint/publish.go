package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
)

// ErrNotOwner: the shard has another owner or another generation by now.
// Whatever the caller saved counts for nothing.
var ErrNotOwner = errors.New("checkpoint: the shard is owned by another")

// Owner is one ownership of one shard: what guards Publish, Drop and Collect.
type Owner struct {
	Shard       int
	Incarnation string
	Generation  int64
}

// ownersKey is the record that says who owns which shard.
const ownersKey = "owners"

// attempts bounds how often a transaction is tried again. Each conflict means
// that another shard's owner got its own change through, so a handful is much.
const (
	attempts = 20
	backoff  = 50 * time.Millisecond
)

// Publish lists a saved file: in one transaction it adds the record, marks the
// shard as listed and drops the oldest records beyond keep (at least 1). It
// returns the records that it dropped; their files are the caller's to Remove,
// now and not earlier.
//
// A transaction whose answer was lost is found again by the file's UUID, so an
// error means that the file may be listed, and nil that it is.
func Publish(ctx context.Context, st store.Store, own Owner, m Meta, keep int) ([]Meta, error) {
	m.V = MetaVersion
	if err := checkPath(m); err != nil || m.Shard != own.Shard || m.Generation != own.Generation {
		return nil, fmt.Errorf("checkpoint: publish: record does not fit its owner: %w", errors.Join(err, ErrFormat))
	}
	value, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: publish: %w", err)
	}
	var dropped []Meta // of the attempt before, in case it got through
	err = retry(ctx, func() error {
		now, err := read(ctx, st, own)
		if err != nil {
			return err
		}
		if len(now.metas) > 0 && now.metas[0].UUID == m.UUID {
			return nil
		}
		if err := now.owned(own); err != nil {
			return err
		}
		var t store.Txn
		t, dropped = now.publish(own, value, max(keep, 1))
		t.Then = now.listed(own, t.Then)
		return commit(ctx, st, t)
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint: publish shard %d: %w", own.Shard, err)
	}
	return dropped, nil
}

// Drop takes records off the list, after a loader passed over them. Those that
// are gone already are no error.
func Drop(ctx context.Context, st store.Store, own Owner, metas []Meta) error {
	err := retry(ctx, func() error {
		now, err := read(ctx, st, own)
		if err != nil {
			return err
		}
		if err := now.owned(own); err != nil {
			return err
		}
		t := store.Txn{If: []store.Cmp{now.view.Guard()}}
		for _, m := range now.metas {
			for _, bad := range metas {
				if m.UUID == bad.UUID {
					t.Then = append(t.Then, store.Delete(key(own.Shard, m.Seq)))
				}
			}
		}
		if len(t.Then) == 0 {
			return nil
		}
		return commit(ctx, st, t)
	})
	if err != nil {
		return fmt.Errorf("checkpoint: drop of shard %d: %w", own.Shard, err)
	}
	return nil
}

// present is what a transaction is made from: the records of a shard and the
// owners at one revision.
type present struct {
	view  membership.View
	metas []Meta
}

func read(ctx context.Context, st store.Store, own Owner) (present, error) {
	prefix := keyPrefix(own.Shard)
	r, err := store.Read(ctx, st, store.Get(ownersKey), store.Range(prefix, store.PrefixEnd(prefix), 0))
	if err != nil {
		return present{}, &unsure{err}
	}
	view, err := membership.DecodeView(r.First(0))
	if err != nil {
		return present{}, err
	}
	metas, err := parseMetas(own.Shard, r.KVs[1])
	return present{view: view, metas: metas}, err
}

func (p present) owned(own Owner) error {
	if own.Shard >= len(p.view.Shards) {
		return fmt.Errorf("%w: there are %d shards", ErrNotOwner, len(p.view.Shards))
	}
	o := p.view.Shards[own.Shard]
	if o.Incarnation != own.Incarnation || o.Generation != own.Generation {
		return fmt.Errorf("%w: %q (%s) with generation %d", ErrNotOwner, o.Name, o.Incarnation, o.Generation)
	}
	return nil
}

// publish makes the transaction. Comparing the newest record before keeps an
// attempt that was thought lost from landing after a later one.
func (p present) publish(own Owner, value []byte, keep int) (store.Txn, []Meta) {
	seq := int64(1)
	t := store.Txn{If: []store.Cmp{p.view.Guard()}}
	if len(p.metas) > 0 {
		newest := p.metas[0]
		seq = newest.Seq + 1
		t.If = append(t.If, store.Unchanged(key(own.Shard, newest.Seq), newest.rev))
	}
	t.If = append(t.If, store.Absent(key(own.Shard, seq)))
	t.Then = []store.Op{store.Put(key(own.Shard, seq), value, 0)}
	var dropped []Meta
	for i := keep - 1; i < len(p.metas); i++ {
		dropped = append(dropped, p.metas[i])
		t.Then = append(t.Then, store.Delete(key(own.Shard, p.metas[i].Seq)))
	}
	return t, dropped
}

// listed adds the owner's mark to the transaction if the shard has none yet.
// Otherwise `owners` stays as it is, so that no trainer has to look again.
func (p present) listed(own Owner, ops []store.Op) []store.Op {
	if p.view.Shards[own.Shard].Listed {
		return ops
	}
	next := membership.View{Shards: slices.Clone(p.view.Shards)}
	next.Shards[own.Shard].Listed = true
	return append(ops, store.Put(ownersKey, next.Encode(), 0))
}

// errConflict: a condition did not hold; look again.
var errConflict = errors.New("conflict")

// unsure is an error of the store, which may hide a success.
type unsure struct{ error }

func (e *unsure) Unwrap() error { return e.error }

func commit(ctx context.Context, st store.Store, t store.Txn) error {
	r, err := st.Txn(ctx, t)
	if err != nil {
		return &unsure{err}
	}
	if !r.Succeeded {
		return errConflict
	}
	return nil
}

// retry repeats try after conflicts and after errors of the store, until it
// gives another answer.
func retry(ctx context.Context, try func() error) error {
	var err error
	for range attempts {
		err = try()
		var maybe *unsure
		if err == nil || errors.Is(err, store.ErrHistory) ||
			!errors.Is(err, errConflict) && !errors.As(err, &maybe) {
			return err
		}
		if cause := clock.Sleep(ctx, clock.System, backoff); cause != nil {
			return errors.Join(cause, err)
		}
	}
	return err
}
