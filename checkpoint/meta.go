package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"starfish/internal/store"
)

// MetaVersion is the version of the record.
const MetaVersion = 1

// Meta is the record in etcd that lists one file.
type Meta struct {
	V          int    `json:"v"`
	UUID       string `json:"uuid"`
	Path       string `json:"path"` // relative to the checkpoint directory
	MD5        string `json:"md5"`  // of the file's bytes, in hex
	Size       int64  `json:"size"`
	Timestamp  int64  `json:"timestamp"` // UnixNano of the saver's clock, for people only
	Shard      int    `json:"shard"`
	Generation int64  `json:"generation"`
	// Passes says how many passes are finished and collapsed in the ledger:
	// passes 0 to Passes-1 need no lanes any more.
	Passes  int   `json:"passes"`
	Batches int64 `json:"batches"`
	// Ledger is the ledger's summary; this package does not look into it.
	Ledger json.RawMessage `json:"ledger,omitempty"`

	// Seq is the record's place among those of its shard; it stands in the key.
	Seq int64 `json:"-"`
	rev int64
}

// List reads the records of a shard, newest first, and the revision at which
// it did.
func List(ctx context.Context, st store.Store, shard int) ([]Meta, int64, error) {
	prefix := keyPrefix(shard)
	kvs, rev, err := store.List(ctx, st, prefix, store.PrefixEnd(prefix))
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: list shard %d: %w", shard, err)
	}
	metas, err := parseMetas(shard, kvs)
	return metas, rev, err
}

// ListAll reads the records of all shards at one revision, newest first.
func ListAll(ctx context.Context, st store.Store, shards int) ([][]Meta, int64, error) {
	kvs, rev, err := store.List(ctx, st, "checkpoints/", store.PrefixEnd("checkpoints/"))
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint: list: %w", err)
	}
	all := make([][]Meta, shards)
	for s := range all {
		prefix := keyPrefix(s)
		var own []store.KV
		for len(kvs) > 0 && len(kvs[0].Key) >= len(prefix) && kvs[0].Key[:len(prefix)] == prefix {
			own, kvs = append(own, kvs[0]), kvs[1:]
		}
		if all[s], err = parseMetas(s, own); err != nil {
			return nil, 0, err
		}
	}
	if len(kvs) > 0 {
		return nil, 0, fmt.Errorf("checkpoint: %q belongs to none of the %d shards", kvs[0].Key, shards)
	}
	return all, rev, nil
}

// parseMetas turns a sorted range of keys into records, newest first.
func parseMetas(shard int, kvs []store.KV) ([]Meta, error) {
	metas := make([]Meta, 0, len(kvs))
	for i := len(kvs) - 1; i >= 0; i-- {
		m, err := parseMeta(shard, kvs[i])
		if err != nil {
			return nil, err
		}
		metas = append(metas, m)
	}
	return metas, nil
}

func parseMeta(shard int, kv store.KV) (Meta, error) {
	seq, err := seqOf(shard, kv.Key)
	if err != nil {
		return Meta{}, err
	}
	// The version is looked at first: a later one may have other fields.
	var version struct{ V int }
	if err := json.Unmarshal(kv.Value, &version); err != nil {
		return Meta{}, fmt.Errorf("checkpoint: record %s: %w", kv.Key, err)
	}
	if version.V != MetaVersion {
		return Meta{}, fmt.Errorf("checkpoint: record %s has version %d, this program knows %d",
			kv.Key, version.V, MetaVersion)
	}
	var m Meta
	dec := json.NewDecoder(bytes.NewReader(kv.Value))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Meta{}, fmt.Errorf("checkpoint: record %s: %w", kv.Key, err)
	}
	if m.Shard != shard {
		return Meta{}, fmt.Errorf("checkpoint: record %s is of shard %d", kv.Key, m.Shard)
	}
	m.Seq, m.rev = seq, kv.ModRev
	return m, nil
}
