package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/store"
)

// TestTwins lets the fake and an etcd do the same random work and compares
// each answer, down to the revisions.
func TestTwins(t *testing.T) {
	t.Parallel()
	w := &twins{etcd: twin{Subject: openEtcd(t)}, fake: twin{Subject: openFake(t)}}
	rapid.Check(t, func(rt *rapid.T) {
		w.start(t)
		rt.Repeat(map[string]func(*rapid.T){
			"txn":     func(rt *rapid.T) { w.txn(t, rt) },
			"grant":   func(*rapid.T) { w.grant(t) },
			"revoke":  func(rt *rapid.T) { w.revoke(t, rt) },
			"renew":   func(rt *rapid.T) { w.renew(t, rt) },
			"watch":   func(rt *rapid.T) { seldom(rt, func() { w.watch(t, rt) }) },
			"compact": func(rt *rapid.T) { seldom(rt, func() { w.compact(rt) }) },
		})
	})
}

// twin is one of the two stores with the leases that it gave; a lease is
// compared by its place in that list.
type twin struct {
	Subject
	leases []store.LeaseID
}

// unknown is a place in the list of leases that was never given.
const unknown = 1000

func (w *twin) lease(place int) store.LeaseID {
	switch {
	case place == 0:
		return 0
	case place <= len(w.leases):
		return w.leases[place-1]
	}
	return unknown
}

// normal is kvs in a form that both stores have in common.
func (w *twin) normal(kvs []store.KV) []store.KV {
	out := slices.Clone(kvs)
	for i := range out {
		out[i].Lease = store.LeaseID(slices.Index(w.leases, out[i].Lease) + 1)
		if len(out[i].Value) == 0 {
			out[i].Value = nil
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

type twins struct {
	etcd, fake twin
	first, rev int64 // the revisions of this case
	compacted  int64
}

// start empties both stores.
func (w *twins) start(t *testing.T) {
	for _, s := range []*twin{&w.etcd, &w.fake} {
		for _, id := range s.leases {
			require.NoError(t, s.Revoke(t.Context(), id))
		}
		s.leases = nil
		w.first = commit(t, s, store.DeleteRange("a", "z"), store.Put("~", nil, 0)).Revision
	}
	w.rev = w.first
	w.compacted = 0
}

var (
	twinKeys = []string{"a", "a/1", "a/2", "a/20", "a0", "b", "b/1", "c"}
	twinEnds = []string{"", "a/2", "a0", "b0", "d"}
)

func (w *twins) txn(t *testing.T, rt *rapid.T) {
	conditions := rapid.SliceOfN(rapid.Custom(w.condition), 0, 3).Draw(rt, "if")
	sides := [2][]draft{}
	for i, name := range []string{"then", "else"} {
		sides[i] = rapid.SliceOfN(rapid.Custom(w.operation), 0, 6).Draw(rt, name)
	}
	run := func(s *twin) (store.Result, error) {
		r, err := s.Txn(t.Context(), store.Txn{If: conditions, Then: s.operations(sides[0]), Else: s.operations(sides[1])})
		for i := range r.KVs {
			r.KVs[i] = s.normal(r.KVs[i])
		}
		if len(r.KVs) == 0 {
			r.KVs = nil
		}
		return r, err
	}
	want, wantErr := run(&w.etcd)
	got, err := run(&w.fake)
	require.Equal(rt, kindOf(wantErr), kindOf(err), "etcd: %v, fake: %v", wantErr, err)
	require.Equal(rt, want, got)
	w.rev = max(w.rev, want.Revision)
}

// condition is one that may hold: revisions of this case, or absent.
func (w *twins) condition(rt *rapid.T) store.Cmp {
	c := store.Cmp{
		Key:    rapid.SampledFrom(twinKeys).Draw(rt, "key"),
		Target: rapid.SampledFrom([]store.Target{store.CreateRevision, store.ModRevision}).Draw(rt, "target"),
	}
	if rapid.Bool().Draw(rt, "exists") {
		c.Rev = rapid.Int64Range(w.first, w.rev).Draw(rt, "rev")
	}
	return c
}

// draft is an operation whose lease is a place in the list.
type draft struct {
	op    store.Op
	lease int
}

func (w *twins) operation(rt *rapid.T) draft {
	d := draft{op: store.Op{
		Kind: rapid.SampledFrom([]store.Kind{store.KindPut, store.KindPut, store.KindDelete, store.KindRange}).Draw(rt, "kind"),
		Key:  rapid.SampledFrom(twinKeys).Draw(rt, "key"),
	}}
	if d.op.Kind == store.KindPut {
		d.op.Value = rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(rt, "value")
		d.lease = rapid.SampledFrom([]int{0, 0, 1, 2, 3, unknown}).Draw(rt, "lease")
		return d
	}
	if end := rapid.SampledFrom(twinEnds).Draw(rt, "end"); end > d.op.Key {
		d.op.End = end
	}
	if d.op.Kind == store.KindRange {
		d.op.Limit = rapid.Int64Range(0, 3).Draw(rt, "limit")
	}
	return d
}

func (w *twin) operations(drafts []draft) []store.Op {
	ops := make([]store.Op, len(drafts))
	for i, d := range drafts {
		ops[i] = d.op
		ops[i].Lease = w.lease(d.lease)
	}
	return ops
}

func (w *twins) grant(t *testing.T) {
	for _, s := range []*twin{&w.etcd, &w.fake} {
		s.leases = append(s.leases, grant(t, s, time.Hour))
	}
}

func (w *twins) revoke(t *testing.T, rt *rapid.T) {
	place := rapid.IntRange(1, 4).Draw(rt, "lease")
	for _, s := range []*twin{&w.etcd, &w.fake} {
		require.NoError(rt, s.Revoke(t.Context(), s.lease(place)))
	}
	// Nothing tells etcd's revision but a read.
	w.rev = max(w.rev, commit(t, w.etcd, store.Get("a")).Revision)
}

func (w *twins) renew(t *testing.T, rt *rapid.T) {
	place := rapid.IntRange(1, 4).Draw(rt, "lease")
	want, wantErr := w.etcd.KeepAlive(t.Context(), w.etcd.lease(place))
	got, err := w.fake.KeepAlive(t.Context(), w.fake.lease(place))
	require.Equal(rt, kindOf(wantErr), kindOf(err))
	require.Equal(rt, want, got)
}

// seldom does what takes etcd a tenth of a second.
func seldom(rt *rapid.T, do func()) {
	if rapid.IntRange(0, 7).Draw(rt, "seldom") == 0 {
		do()
	}
}

// watch compares what a watch from some revision of this case delivers up to
// a last write.
func (w *twins) watch(t *testing.T, rt *rapid.T) {
	key := rapid.SampledFrom(twinKeys).Draw(rt, "key")
	end := rapid.SampledFrom(append(twinEnds, "\x00")).Draw(rt, "end")
	if end <= key && end != "\x00" {
		end = ""
	}
	from := rapid.Int64Range(w.first, w.rev+1).Draw(rt, "from")
	var seen [2][]store.Event
	var ends [2]string
	for i, s := range []*twin{&w.etcd, &w.fake} {
		w.rev = commit(t, s, store.Put(key, []byte("last"), 0)).Revision
		seen[i], ends[i] = s.collect(t, key, end, from, w.rev)
	}
	require.Equal(rt, ends[0], ends[1])
	require.Equal(rt, seen[0], seen[1])
}

func (w *twin) collect(t *testing.T, start, end string, from, to int64) ([]store.Event, string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen []store.Event
	in := w.Watch(ctx, start, end, from)
	for {
		r := next(t, in)
		if r.Err != nil {
			return seen, kindOf(r.Err)
		}
		for _, e := range r.Events {
			e.KV = w.normal([]store.KV{e.KV})[0]
			seen = append(seen, e)
		}
		if len(seen) > 0 && seen[len(seen)-1].KV.ModRev == to {
			return seen, ""
		}
	}
}

func (w *twins) compact(rt *rapid.T) {
	rev := rapid.Int64Range(max(w.first, w.compacted), w.rev).Draw(rt, "rev")
	if rev <= w.compacted {
		return
	}
	w.compacted = rev
	w.etcd.Compact(rev)
	w.fake.Compact(rev)
}

// kindOf is what a caller may branch on.
func kindOf(err error) string {
	for _, kind := range []error{store.ErrLeaseNotFound, store.ErrInvalid, store.ErrCompacted} {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return fmt.Sprint(err)
}
