package store

import (
	"context"
	"strings"
)

// Prefixed returns a view of s in which every key is below prefix. Everything
// of a job lives behind one such view, so two jobs cannot see each other.
func Prefixed(s Store, prefix string) Store { return &prefixed{Store: s, prefix: prefix} }

type prefixed struct {
	Store
	prefix string
}

func (p *prefixed) Txn(ctx context.Context, t Txn) (Result, error) {
	full := Txn{If: make([]Cmp, len(t.If)), Then: p.ops(t.Then), Else: p.ops(t.Else)}
	for i, c := range t.If {
		c.Key = p.prefix + c.Key
		full.If[i] = c
	}
	r, err := p.Store.Txn(ctx, full)
	for _, kvs := range r.KVs {
		for i := range kvs {
			kvs[i].Key = strings.TrimPrefix(kvs[i].Key, p.prefix)
		}
	}
	return r, err
}

func (p *prefixed) Watch(ctx context.Context, start, end string, rev int64) <-chan WatchResponse {
	in := p.Store.Watch(ctx, p.prefix+start, p.end(end), rev)
	out := make(chan WatchResponse)
	go func() {
		defer close(out)
		for r := range in {
			for i := range r.Events {
				r.Events[i].KV.Key = strings.TrimPrefix(r.Events[i].KV.Key, p.prefix)
			}
			select {
			case out <- r:
			case <-ctx.Done():
				for range in { // until the source closes
				}
				return
			}
		}
	}()
	return out
}

func (p *prefixed) ops(ops []Op) []Op {
	full := make([]Op, len(ops))
	for i, o := range ops {
		o.Key = p.prefix + o.Key
		o.End = p.end(o.End)
		full[i] = o
	}
	return full
}

// end maps the end of a range; "\x00" is "all keys from start on", which
// inside a prefix ends with the prefix.
func (p *prefixed) end(end string) string {
	switch end {
	case "":
		return ""
	case "\x00":
		return PrefixEnd(p.prefix)
	}
	return p.prefix + end
}
