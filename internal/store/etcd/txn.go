package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"starfish/internal/clock"
	"starfish/internal/store"
)

const (
	readTries = 5
	readPause = 50 * time.Millisecond
)

// Txn implements store.Store.
func (s *Store) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	rctx, cancel, err := s.request(ctx)
	if err != nil {
		return store.Result{}, err
	}
	defer cancel()
	reads := readOnly(t)
	padded := len(t.Then)+len(t.Else) == 0
	if padded {
		t = pad(t)
	}
	for try := 1; ; try++ {
		r, err := s.commit(rctx, t)
		switch {
		case err == nil && padded:
			r.KVs = nil
			return r, nil
		case err == nil:
			return r, nil
		case !reads || try == readTries || !unavailable(err):
			return store.Result{}, translate(ctx, err)
		}
		if err := clock.Sleep(rctx, s.clock, readPause); err != nil {
			return store.Result{}, translate(ctx, err)
		}
	}
}

// pad gives a transaction without operations something to read: etcd does not
// evaluate the conditions of an empty one linearizably.
func pad(t store.Txn) store.Txn {
	key := ground
	if len(t.If) > 0 {
		key = t.If[0].Key
	}
	return store.Txn{If: t.If, Then: []store.Op{store.Get(key)}, Else: []store.Op{store.Get(key)}}
}

func readOnly(t store.Txn) bool {
	for _, side := range [][]store.Op{t.Then, t.Else} {
		for _, o := range side {
			if o.Kind != store.KindRange {
				return false
			}
		}
	}
	return true
}

func (s *Store) commit(ctx context.Context, t store.Txn) (store.Result, error) {
	floor := s.history.floor()
	conditions := make([]clientv3.Cmp, len(t.If))
	for i, c := range t.If {
		conditions[i] = condition(c)
	}
	r, err := s.client.Txn(ctx).If(conditions...).Then(operations(t.Then)...).Else(operations(t.Else)...).Commit()
	if err != nil {
		return store.Result{}, err
	}
	if err := s.history.answered(r.Header, floor); err != nil {
		return store.Result{}, err
	}
	return result(r), nil
}

func condition(c store.Cmp) clientv3.Cmp {
	if c.Target == store.CreateRevision {
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Rev)
	}
	return clientv3.Compare(clientv3.ModRevision(c.Key), "=", c.Rev)
}

func operations(ops []store.Op) []clientv3.Op {
	out := make([]clientv3.Op, len(ops))
	for i, o := range ops {
		out[i] = operation(o)
	}
	return out
}

func operation(o store.Op) clientv3.Op {
	var options []clientv3.OpOption
	if o.End != "" {
		options = append(options, clientv3.WithRange(o.End))
	}
	switch o.Kind {
	case store.KindPut:
		return clientv3.OpPut(o.Key, string(o.Value), clientv3.WithLease(clientv3.LeaseID(o.Lease)))
	case store.KindDelete:
		return clientv3.OpDelete(o.Key, options...)
	case store.KindRange:
		return clientv3.OpGet(o.Key, append(options, clientv3.WithLimit(o.Limit))...)
	}
	panic(fmt.Sprintf("etcd: operation of kind %d", o.Kind))
}

func result(r *clientv3.TxnResponse) store.Result {
	out := store.Result{Succeeded: r.Succeeded, Revision: r.Header.Revision, KVs: make([][]store.KV, len(r.Responses))}
	for i, response := range r.Responses {
		found := response.GetResponseRange()
		if found == nil {
			continue
		}
		out.KVs[i] = make([]store.KV, len(found.Kvs))
		for j, kv := range found.Kvs {
			out.KVs[i][j] = keyValue(kv)
		}
	}
	return out
}

func keyValue(kv *mvccpb.KeyValue) store.KV {
	return store.KV{
		Key: string(kv.Key), Value: kv.Value, CreateRev: kv.CreateRevision, ModRev: kv.ModRevision,
		Version: kv.Version, Lease: store.LeaseID(kv.Lease),
	}
}
