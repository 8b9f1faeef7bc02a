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

// MaxListings is how many files are listed in one transaction: two conditions
// and two operations for each of them, and the owners.
const MaxListings = 32

// maxBytes bounds the records in one transaction: etcd takes 1.5 MiB, and the
// owners are in it too.
const maxBytes = 256 << 10

// Listing is a saved file that is to be listed for its shard's owner.
type Listing struct {
	Owner Owner
	Meta  Meta
	// Keep is how many records the shard has afterwards, at most and at least 1.
	Keep int
}

// Listed is what became of a Listing: the records that it dropped, or why it is
// not known to be listed.
type Listed struct {
	Dropped []Meta
	Err     error
}

// Publish is PublishAll for one file.
func Publish(ctx context.Context, st store.Store, own Owner, m Meta, keep int) ([]Meta, error) {
	out := PublishAll(ctx, st, []Listing{{own, m, keep}})[0]
	return out.Dropped, out.Err
}

// PublishAll lists saved files of up to MaxListings different shards: in one
// transaction, or a few if the records are large, it adds the records, marks the shards as listed and drops the
// oldest records beyond Keep. The files of the dropped records are the caller's
// to Remove, now and not earlier. A shard that is not the owner's any more
// fails by itself, not the others.
//
// A transaction whose answer was lost is found again by the file's UUID, so an
// error means that the file may be listed, and nil that it is.
func PublishAll(ctx context.Context, st store.Store, listings []Listing) []Listed {
	out := make([]Listed, len(listings))
	var open []*listing
	for i := range listings {
		l, err := newListing(&listings[i], &out[i])
		if err != nil {
			out[i].Err = err
			continue
		}
		open = append(open, l)
	}
	for len(open) > 0 {
		n, bytes := 1, len(open[0].value)
		for n < len(open) && bytes+len(open[n].value) <= maxBytes {
			bytes += len(open[n].value)
			n++
		}
		publishTogether(ctx, st, open[:n])
		open = open[n:]
	}
	return out
}

// publishTogether tries until each one is listed or has failed.
func publishTogether(ctx context.Context, st store.Store, open []*listing) {
	err := retry(ctx, func() (err error) {
		open, err = publish(ctx, st, open)
		return err
	})
	for _, l := range open {
		l.fail(err)
	}
}

// listing is a Listing on its way.
type listing struct {
	*Listing
	out   *Listed
	value []byte
}

func newListing(l *Listing, out *Listed) (*listing, error) {
	m, own := l.Meta, l.Owner
	m.V = MetaVersion
	if err := checkPath(m); err != nil || m.Shard != own.Shard || m.Generation != own.Generation {
		return nil, fmt.Errorf("checkpoint: publish: record does not fit its owner: %w", errors.Join(err, ErrFormat))
	}
	value, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: publish: %w", err)
	}
	return &listing{Listing: l, out: out, value: value}, nil
}

func (l *listing) fail(err error) {
	*l.out = Listed{Err: fmt.Errorf("checkpoint: publish shard %d: %w", l.Owner.Shard, err)}
}

// publish makes one attempt at all that is open, and returns what still is.
func publish(ctx context.Context, st store.Store, open []*listing) ([]*listing, error) {
	shards := make([]int, len(open))
	for i, l := range open {
		shards[i] = l.Owner.Shard
	}
	p, kvs, err := readAll(ctx, st, shards)
	if err != nil {
		return open, err
	}
	t := store.Txn{If: []store.Cmp{p.view.Guard()}}
	var rest []*listing
	for i, l := range open {
		p.metas, err = parseMetas(l.Owner.Shard, kvs[i])
		if err == nil && len(p.metas) > 0 && p.metas[0].UUID == l.Meta.UUID {
			continue // by the attempt before, whose answer was lost
		}
		if err == nil {
			err = p.owned(l.Owner)
		}
		if err != nil {
			l.fail(err)
			continue
		}
		l.out.Dropped = p.publish(&t, l.Owner, l.value, max(l.Keep, 1)) // if it gets through
		rest = append(rest, l)
	}
	if len(rest) == 0 {
		return nil, nil
	}
	t.Then = listed(p.view, rest, t.Then)
	if err := commit(ctx, st, t); err != nil {
		return rest, err
	}
	return nil, nil
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
	p, kvs, err := readAll(ctx, st, []int{own.Shard})
	if err != nil {
		return present{}, err
	}
	p.metas, err = parseMetas(own.Shard, kvs[0])
	return p, err
}

// readAll reads the owners and, unparsed, the records of shards at one revision.
func readAll(ctx context.Context, st store.Store, shards []int) (present, [][]store.KV, error) {
	ops := []store.Op{store.Get(ownersKey)}
	for _, shard := range shards {
		prefix := keyPrefix(shard)
		ops = append(ops, store.Range(prefix, store.PrefixEnd(prefix), 0))
	}
	r, err := store.Read(ctx, st, ops...)
	if err != nil {
		return present{}, nil, &unsure{err}
	}
	view, err := membership.DecodeView(r.First(0))
	if err != nil {
		return present{}, nil, err
	}
	return present{view: view}, r.KVs[1:], nil
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

// publish adds a record to the transaction, and returns those that it drops.
// Comparing the newest record before keeps an attempt that was thought lost from
// landing after a later one.
func (p present) publish(t *store.Txn, own Owner, value []byte, keep int) []Meta {
	seq := int64(1)
	if len(p.metas) > 0 {
		newest := p.metas[0]
		seq = newest.Seq + 1
		t.If = append(t.If, store.Unchanged(key(own.Shard, newest.Seq), newest.rev))
	}
	t.If = append(t.If, store.Absent(key(own.Shard, seq)))
	t.Then = append(t.Then, store.Put(key(own.Shard, seq), value, 0))
	if len(p.metas) < keep {
		return nil
	}
	dropped := slices.Clone(p.metas[keep-1:])
	oldest, end := dropped[len(dropped)-1].Seq, dropped[0].Seq+1
	t.Then = append(t.Then, store.DeleteRange(key(own.Shard, oldest), key(own.Shard, end)))
	return dropped
}

// listed adds the owners' marks to the transaction if a shard has none yet.
// Otherwise `owners` stays as it is, so that no trainer has to look again.
func listed(view membership.View, ls []*listing, ops []store.Op) []store.Op {
	next := membership.View{Shards: slices.Clone(view.Shards)}
	changed := false
	for _, l := range ls {
		at := &next.Shards[l.Owner.Shard].Listed
		changed = changed || !*at
		*at = true
	}
	if !changed {
		return ops
	}
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
