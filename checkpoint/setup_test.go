package checkpoint_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

const dir = "ckpt"

var jobID = uuid.MustParse("0b8f9a46-3f7e-4d0c-9a11-5a4f6f1f3b77")

// bundle is one shard's owner with its directory and store.
type bundle struct {
	fs  *memfs.FS
	st  store.Store
	own checkpoint.Owner
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{fs: memfs.New(), st: fake.New(fake.Options{}), own: owner(2, 1)}
	b.owners(t, b.own)
	require.NoError(t, checkpoint.Mark(b.fs, dir, jobID))
	return b
}

func owner(shard int, generation int64) checkpoint.Owner {
	return checkpoint.Owner{Shard: shard, Incarnation: fmt.Sprintf("incarnation-%d", generation), Generation: generation}
}

// owners makes own the owner of its shard, as a claim does, and keeps `listed`.
func (b *bundle) owners(t *testing.T, own checkpoint.Owner) {
	t.Helper()
	kv, err := store.Lookup(t.Context(), b.st, "owners")
	require.NoError(t, err)
	v := membership.View{Shards: make([]membership.Owner, 4)}
	if kv.Exists() {
		v, err = membership.DecodeView(kv)
		require.NoError(t, err)
	}
	o := &v.Shards[own.Shard]
	o.Name, o.Incarnation, o.Generation = "p", own.Incarnation, own.Generation
	_, err = b.st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", v.Encode(), 0)}})
	require.NoError(t, err)
}

func (b *bundle) view(t *testing.T) membership.View {
	t.Helper()
	v, err := membership.ReadView(t.Context(), b.st)
	require.NoError(t, err)
	return v
}

// A test shard consists of one number, in several blocks.
const blocks = 3

func emitState(n uint64) func(checkpoint.Emit) error {
	return func(emit checkpoint.Emit) error {
		for i := range blocks {
			data := binary.LittleEndian.AppendUint64(nil, n)
			if err := emit(fmt.Sprintf("part-%d", i), data); err != nil {
				return err
			}
		}
		return nil
	}
}

// save does what a pserver does: save, publish, remove.
func (b *bundle) save(ctx context.Context, n uint64, keep int) error {
	f, err := checkpoint.Save(ctx, b.fs, dir, b.header(), emitState(n))
	if err != nil {
		return err
	}
	dropped, err := checkpoint.Publish(ctx, b.st, b.own, b.meta(f, n), keep)
	if err != nil {
		return err
	}
	return checkpoint.Remove(b.fs, dir, dropped)
}

func (b *bundle) header() checkpoint.Header {
	return checkpoint.Header{JobUUID: jobID.String(), Shard: b.own.Shard, Generation: b.own.Generation, Created: 1}
}

func (b *bundle) meta(f checkpoint.File, n uint64) checkpoint.Meta {
	return checkpoint.Meta{UUID: f.UUID, Path: f.Path, MD5: f.MD5, Size: f.Size, Timestamp: 1,
		Shard: b.own.Shard, Generation: b.own.Generation, Batches: int64(n)}
}

func (b *bundle) list(t *testing.T) []checkpoint.Meta {
	t.Helper()
	metas, _, err := checkpoint.List(t.Context(), b.st, b.own.Shard)
	require.NoError(t, err)
	return metas
}

func (b *bundle) loader() checkpoint.Loader {
	return checkpoint.Loader{FS: b.fs, Dir: dir, Job: jobID, Retries: 2, Pause: time.Nanosecond}
}

// load restores the newest state that loads.
func (b *bundle) load(t *testing.T) (n uint64, m checkpoint.Meta, skipped []checkpoint.Skipped, err error) {
	t.Helper()
	var got state
	m, skipped, err = b.loader().Load(t.Context(), b.list(t), &got)
	if err != nil || m.UUID == "" {
		return 0, m, skipped, err
	}
	require.True(t, got.finished)
	return got.parts[0], m, skipped, nil
}

// state is what emitState makes, on its way back.
type state struct {
	parts    []uint64
	finished bool
}

func (s *state) Reset() { *s = state{} }

func (s *state) Add(section string, data []byte) error {
	if section != fmt.Sprintf("part-%d", len(s.parts)) || len(data) != 8 {
		return errors.New("unexpected section " + section)
	}
	s.parts = append(s.parts, binary.LittleEndian.Uint64(data))
	return nil
}

func (s *state) Finish() error {
	if len(s.parts) != blocks || s.parts[0] != s.parts[1] || s.parts[0] != s.parts[2] {
		return fmt.Errorf("not one whole state: %v", s.parts)
	}
	s.finished = true
	return nil
}

// gather is a sink for anything.
type gather struct {
	sections []string
	data     []byte
	longest  int
}

func (g *gather) Reset() { *g = gather{} }

func (g *gather) Add(section string, data []byte) error {
	g.sections = append(g.sections, section)
	g.data = append(g.data, data...)
	g.longest = max(g.longest, len(data))
	return nil
}

func (g *gather) Finish() error { return nil }
