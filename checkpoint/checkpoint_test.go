package checkpoint_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/store/storetest"
)

func TestSaveLoad(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := uint64(1); n <= 5; n++ {
		require.NoError(t, b.save(t.Context(), n, 3))
		got, m, skipped, err := b.load(t)
		require.NoError(t, err)
		require.Empty(t, skipped)
		require.Equal(t, n, got)
		require.EqualValues(t, n, m.Batches)
		require.EqualValues(t, n, m.Seq)
	}
	metas := b.list(t)
	require.Len(t, metas, 3)
	require.Len(t, b.fs.Names(), 4, "three files and the marker: %v", b.fs.Names())
	require.True(t, b.view(t).Shards[b.own.Shard].Listed)
}

func TestNothingListedIsNoError(t *testing.T) {
	t.Parallel()
	n, m, skipped, err := setup(t).load(t)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Empty(t, m.UUID)
	require.Empty(t, skipped)
}

// The digest is that of the bytes of the file, as md5sum would print it.
func TestDigestIsOfTheFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 7, 1))
	m := b.list(t)[0]
	data, err := b.fs.ReadFile(filepath.Join(dir, m.Path))
	require.NoError(t, err)
	sum := md5.Sum(data)
	require.Equal(t, hex.EncodeToString(sum[:]), m.MD5)
	require.EqualValues(t, len(data), m.Size)
}

func TestLongSectionsAreCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := bytes.Repeat([]byte("0123456789"), 300_000)
	f, err := checkpoint.Save(t.Context(), b.fs, dir, b.header(), func(emit checkpoint.Emit) error {
		return errors.Join(emit("empty", nil), emit("long", long))
	})
	require.NoError(t, err)
	var got gather
	_, _, err = b.loader().Load(t.Context(), []checkpoint.Meta{b.meta(f, 0)}, &got)
	require.NoError(t, err)
	require.Equal(t, []string{"empty", "long", "long", "long"}, got.sections)
	require.LessOrEqual(t, got.longest, checkpoint.BlockSize)
	require.True(t, bytes.Equal(long, got.data))
}

func TestFallBack(t *testing.T) {
	t.Parallel()
	flip := func(at int) func([]byte) []byte {
		return func(d []byte) []byte { d[(at+len(d))%len(d)] ^= 1; return d }
	}
	for name, damage := range map[string]func(b *bundle, file string){
		"first byte flipped": func(b *bundle, f string) { b.fs.Corrupt(f, flip(0)) },
		"last byte flipped":  func(b *bundle, f string) { b.fs.Corrupt(f, flip(-1)) },
		"middle flipped":     func(b *bundle, f string) { b.fs.Corrupt(f, flip(200)) },
		"truncated":          func(b *bundle, f string) { b.fs.Corrupt(f, func(d []byte) []byte { return d[:len(d)/2] }) },
		"longer":             func(b *bundle, f string) { b.fs.Corrupt(f, func(d []byte) []byte { return append(d, 0) }) },
		"empty":              func(b *bundle, f string) { b.fs.Corrupt(f, func([]byte) []byte { return nil }) },
		"deleted":            func(b *bundle, f string) { _ = b.fs.Remove(f) },
		"unreadable": func(b *bundle, f string) {
			b.fs.SetHook(func(op, name string) error {
				if op == "read" && name == f {
					return errors.New("input/output error")
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			require.NoError(t, b.save(t.Context(), 1, 3))
			require.NoError(t, b.save(t.Context(), 2, 3))
			newest := b.list(t)[0]
			damage(b, filepath.Join(dir, newest.Path))

			n, _, skipped, err := b.load(t)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Len(t, skipped, 1)
			require.Equal(t, newest.UUID, skipped[0].Meta.UUID)
			if strings.Contains(name, "flipped") {
				require.ErrorContains(t, skipped[0].Err, "MD5", "the cause, not what it led to")
			}

			// Dropped and set aside: the next loader sees the older one only.
			require.NoError(t, checkpoint.Drop(t.Context(), b.st, b.own, []checkpoint.Meta{newest}))
			b.fs.SetHook(nil)
			require.NoError(t, checkpoint.SetAside(b.fs, dir, skipped))
			n, _, skipped, err = b.load(t)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Empty(t, skipped)
			if name != "deleted" {
				require.Contains(t, b.fs.Names(), filepath.Join(dir, newest.Path)+".bad")
			}
			// A later save takes the next place and loads again.
			require.NoError(t, b.save(t.Context(), 3, 3))
			n, _, _, err = b.load(t)
			require.NoError(t, err)
			require.EqualValues(t, 3, n)
		})
	}
}

func TestNoneLoads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 3))
	require.NoError(t, b.save(t.Context(), 2, 3))
	metas := b.list(t)
	require.NoError(t, b.fs.Remove(filepath.Join(dir, metas[0].Path)))
	b.fs.Corrupt(filepath.Join(dir, metas[1].Path), func(d []byte) []byte { d[9]++; return d })
	_, _, skipped, err := b.load(t)
	require.ErrorIs(t, err, checkpoint.ErrNoneLoads)
	require.Len(t, skipped, 2)
	for _, m := range metas {
		require.ErrorContains(t, err, filepath.Join(dir, m.Path), "the error names what was looked for")
	}
}

// A file that is whole but holds something else than the sink wants is passed
// over like a broken one.
func TestContentIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 3))
	f, err := checkpoint.Save(t.Context(), b.fs, dir, b.header(), func(emit checkpoint.Emit) error {
		return emit("part-0", make([]byte, 8))
	})
	require.NoError(t, err)
	_, err = checkpoint.Publish(t.Context(), b.st, b.own, b.meta(f, 2), 3)
	require.NoError(t, err)
	n, _, skipped, err := b.load(t)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Len(t, skipped, 1)
	require.ErrorContains(t, skipped[0].Err, "not one whole state")
}

// A disk that fails for a moment must not cost a checkpoint.
func TestReadErrorIsRetried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 3))
	require.NoError(t, b.save(t.Context(), 2, 3))
	fails := 2
	b.fs.SetHook(func(op, _ string) error {
		if op == "read" && fails > 0 {
			fails--
			return errors.New("input/output error")
		}
		return nil
	})
	n, _, skipped, err := b.load(t)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.EqualValues(t, 2, n)
	require.Zero(t, fails)
}

func TestHeaderMustFit(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*checkpoint.Header){
		"other job":        func(h *checkpoint.Header) { h.JobUUID = uuid.NewString() },
		"other shard":      func(h *checkpoint.Header) { h.Shard++ },
		"other generation": func(h *checkpoint.Header) { h.Generation++ },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			h := b.header()
			change(&h)
			f, err := checkpoint.Save(t.Context(), b.fs, dir, h, emitState(1))
			require.NoError(t, err)
			m := b.meta(f, 1)
			// Even under the name that the record expects.
			right, err := checkpoint.Save(t.Context(), b.fs, dir, b.header(), emitState(1))
			require.NoError(t, err)
			require.NoError(t, b.fs.Rename(filepath.Join(dir, f.Path), filepath.Join(dir, right.Path)))
			m.Path = right.Path
			_, skipped, err := b.loader().Load(t.Context(), []checkpoint.Meta{m}, &gather{})
			require.ErrorIs(t, err, checkpoint.ErrNoneLoads)
			require.ErrorIs(t, skipped[0].Err, checkpoint.ErrFormat)
		})
	}
}

// No record can make a loader look at, rename or remove a file that is not a
// checkpoint of its shard.
func TestPathsAreChecked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 1))
	good := b.list(t)[0]
	for _, path := range []string{"", ".", "JOB", "../x", "/etc/passwd", "sub/" + good.Path, good.Path + ".tmp",
		good.Path + ".bad", strings.Replace(good.Path, "0002-", "0003-", 1), strings.ToUpper(good.Path)} {
		m := good
		m.Path = path
		touched := ""
		b.fs.SetHook(func(op, name string) error { touched += op + " " + name + ";"; return nil })
		err := b.loader().Verify(t.Context(), m)
		require.Error(t, err, path)
		require.Error(t, checkpoint.Remove(b.fs, dir, []checkpoint.Meta{m}), path)
		require.Error(t, checkpoint.SetAside(b.fs, dir, []checkpoint.Skipped{{Meta: m}}), path)
		require.Empty(t, touched, path)
	}
}

func TestMarker(t *testing.T) {
	t.Parallel()
	other := uuid.New()
	m := memfs.New()
	require.ErrorIs(t, checkpoint.CheckMarker(m, dir, jobID), checkpoint.ErrNoMarker)
	require.NoError(t, checkpoint.Mark(m, dir, jobID))
	require.NoError(t, checkpoint.Mark(m, dir, jobID), "again")
	require.NoError(t, checkpoint.CheckMarker(m, dir, jobID))
	require.ErrorIs(t, checkpoint.CheckMarker(m, dir, other), checkpoint.ErrForeign)
	require.ErrorIs(t, checkpoint.Mark(m, dir, other), checkpoint.ErrForeign)
	require.NoError(t, checkpoint.CheckMarker(m.Crash(memfs.Durable), dir, jobID), "durable")
	text, err := m.ReadFile(filepath.Join(dir, "JOB"))
	require.NoError(t, err)
	require.Equal(t, jobID.String()+"\n", string(text))
}

// Of two jobs that mark one directory at the same instant one gets it.
func TestMarkerRace(t *testing.T) {
	t.Parallel()
	other := uuid.New()
	m := memfs.New()
	raced := false
	m.SetHook(func(op, _ string) error {
		if op == "renamenew" && !raced {
			raced = true
			require.NoError(t, checkpoint.Mark(m, dir, other))
		}
		return nil
	})
	require.ErrorIs(t, checkpoint.Mark(m, dir, jobID), checkpoint.ErrForeign)
	require.Equal(t, []string{filepath.Join(dir, "JOB")}, m.Names(), "nothing is left behind")
}

func TestCollect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 2))
	require.NoError(t, b.save(t.Context(), 2, 2))
	listed := b.fs.Names()
	id := uuid.NewString()
	keep := []string{
		"0001-0000000001-" + id + ".ckpt",     // another shard's
		"0001-0000000001-" + id + ".ckpt.tmp", // another shard's
		"0002-0000000002-" + id + ".ckpt",     // a successor's
		"0002-0000000002-" + id + ".ckpt.tmp", // a successor's
		"0002-0000000001-" + id + ".ckpt.bad", // kept for inspection
		"0002-0000000001-not-a-uuid.ckpt", "model.txt", "02-1-" + id + ".ckpt",
	}
	gone := []string{"0002-0000000001-" + id + ".ckpt", "0002-0000000001-" + id + ".ckpt.tmp", "0002-0000000000-" + id + ".ckpt"}
	for _, name := range append(keep, gone...) {
		_, err := b.fs.Create(filepath.Join(dir, name))
		require.NoError(t, err)
	}
	removed, err := checkpoint.Collect(t.Context(), b.fs, dir, b.st, b.own)
	require.NoError(t, err)
	require.ElementsMatch(t, gone, removed)
	for _, name := range keep {
		listed = append(listed, filepath.Join(dir, name))
	}
	require.ElementsMatch(t, listed, b.fs.Names())
}

// An owner that does not know that it was superseded removes nothing, also if
// its successor saves between its two looks.
func TestCollectOfASupersededOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 2))
	next := &bundle{fs: b.fs, st: b.st, own: owner(2, 2)}
	b.fs.SetHook(func(op, _ string) error {
		if op == "list" {
			b.fs.SetHook(nil)
			next.owners(t, next.own)
			require.NoError(t, next.save(t.Context(), 2, 1))
		}
		return nil
	})
	removed, err := checkpoint.Collect(t.Context(), b.fs, dir, b.st, b.own)
	require.ErrorIs(t, err, checkpoint.ErrNotOwner)
	require.Empty(t, removed)
	n, _, _, err := next.load(t)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
}

func TestSupersededOwnerListsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 2))
	for name, own := range map[string]checkpoint.Owner{
		"another incarnation": {Shard: 2, Incarnation: "other", Generation: 1},
		"a later generation":  {Shard: 2, Incarnation: "incarnation-1", Generation: 2},
		"nobody":              {Shard: 2, Generation: 1},
	} {
		b.owners(t, own)
		require.ErrorIs(t, b.save(t.Context(), 2, 1), checkpoint.ErrNotOwner, name)
		require.ErrorIs(t, checkpoint.Drop(t.Context(), b.st, b.own, b.list(t)), checkpoint.ErrNotOwner, name)
		require.Len(t, b.list(t), 1, name)
		n, _, _, err := b.load(t)
		require.NoError(t, err)
		require.EqualValues(t, 1, n, name)
	}
}

// The claim that supersedes us may come between our read and our transaction.
func TestPublishIsGuarded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	fk := b.st.(*fake.Store)
	c := fk.Client("zombie")
	zombie := &bundle{fs: b.fs, st: c, own: b.own}
	reads := 0
	c.FailAfter(func(op, _ string) error {
		if reads++; reads == 1 {
			b.owners(t, owner(2, 2))
		}
		return nil
	})
	require.ErrorIs(t, zombie.save(t.Context(), 9, 1), checkpoint.ErrNotOwner)
	require.Empty(t, b.list(t))
}

// When only other shards move, the transaction is tried again.
func TestPublishSurvivesOthersClaims(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.st.(*fake.Store).Client("p")
	reads := 0
	c.FailAfter(func(op, _ string) error {
		if reads++; reads == 1 {
			b.owners(t, owner(3, 5))
		}
		return nil
	})
	slow := &bundle{fs: b.fs, st: c, own: b.own}
	require.NoError(t, slow.save(t.Context(), 1, 1))
	require.Len(t, b.list(t), 1)
	require.EqualValues(t, 5, b.view(t).Shards[3].Generation)
	require.True(t, b.view(t).Shards[2].Listed)
}

// Whatever single answer is lost, the file is listed once and exactly those
// beyond keep are dropped.
func TestPublishWithLostAnswers(t *testing.T) {
	t.Parallel()
	for lost := 1; lost <= 3; lost++ {
		b := setup(t)
		require.NoError(t, b.save(t.Context(), 1, 2))
		require.NoError(t, b.save(t.Context(), 2, 2))
		c := b.st.(*fake.Store).Client("p")
		n := 0
		c.FailAfter(func(string, string) error {
			if n++; n == lost {
				return errors.New("connection reset")
			}
			return nil
		})
		flaky := &bundle{fs: b.fs, st: c, own: b.own}
		require.NoError(t, flaky.save(t.Context(), 3, 2))
		metas := b.list(t)
		require.Len(t, metas, 2, "answer %d lost", lost)
		require.EqualValues(t, 3, metas[0].Batches)
		require.EqualValues(t, 2, metas[1].Batches)
		require.Len(t, b.fs.Names(), 3, "the dropped file is removed: %v", b.fs.Names())
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 1))
	full := errors.New("no space left on device")
	for _, failing := range []string{"create", "write", "sync", "close", "rename", "syncdir"} {
		b.fs.SetHook(func(op, _ string) error {
			if op == failing {
				return full
			}
			return nil
		})
		require.ErrorIs(t, b.save(t.Context(), 2, 1), full, failing)
		b.fs.SetHook(nil)
		for _, name := range b.fs.Names() {
			require.NotContains(t, name, ".tmp", "a failed save frees its space (%s)", failing)
		}
		n, _, _, err := b.load(t)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	}
	require.NoError(t, b.save(t.Context(), 3, 1))
	_, err := checkpoint.Collect(t.Context(), b.fs, dir, b.st, b.own)
	require.NoError(t, err)
	require.Len(t, b.fs.Names(), 2)
}

func TestRecordsAreStrict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.save(t.Context(), 1, 1))
	kv, err := store.Lookup(t.Context(), b.st, "checkpoints/0002/0000000001")
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(kv.Value, &fields))
	for _, name := range []string{"v", "uuid", "path", "md5", "size", "timestamp", "shard", "generation", "passes", "batches"} {
		require.Contains(t, fields, name)
	}
	for name, text := range map[string]string{
		"not JSON":      "{",
		"later version": `{"v":2,"something":"new"}`,
		"unknown field": `{"v":1,"shard":2,"colour":"red"}`,
		"other shard":   `{"v":1,"shard":1}`,
	} {
		_, err := b.st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(kv.Key, []byte(text), 0)}})
		require.NoError(t, err)
		_, _, err = checkpoint.List(t.Context(), b.st, 2)
		require.Error(t, err, name)
	}
}

func TestListAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, shard := range []int{0, 3} {
		s := &bundle{fs: b.fs, st: b.st, own: owner(shard, 1)}
		s.owners(t, s.own)
		require.NoError(t, s.save(t.Context(), uint64(shard), 2))
		require.NoError(t, s.save(t.Context(), uint64(shard)+10, 2))
	}
	all, rev, err := checkpoint.ListAll(t.Context(), b.st, 4)
	require.NoError(t, err)
	require.Positive(t, rev)
	require.Len(t, all, 4)
	require.Len(t, all[0], 2)
	require.Empty(t, all[1])
	require.EqualValues(t, 13, all[3][0].Batches, "newest first")
	_, _, err = checkpoint.ListAll(t.Context(), b.st, 3)
	require.Error(t, err)
}

func TestOSFileSystem(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "a", "b")
	require.ErrorIs(t, checkpoint.CheckMarker(checkpoint.OS, base, jobID), checkpoint.ErrNoMarker)
	require.NoError(t, checkpoint.Mark(checkpoint.OS, base, jobID))
	require.ErrorIs(t, checkpoint.Mark(checkpoint.OS, base, uuid.New()), checkpoint.ErrForeign)
	h := checkpoint.Header{JobUUID: jobID.String(), Shard: 1, Generation: 3}
	f, err := checkpoint.Save(t.Context(), checkpoint.OS, base, h, emitState(5))
	require.NoError(t, err)
	m := checkpoint.Meta{UUID: f.UUID, Path: f.Path, MD5: f.MD5, Size: f.Size, Shard: 1, Generation: 3}
	l := checkpoint.Loader{Dir: base, Job: jobID}
	require.NoError(t, l.Verify(t.Context(), m))
	names, err := checkpoint.OS.List(base)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"JOB", f.Path}, names)
	require.ErrorIs(t, checkpoint.OS.RenameNew(filepath.Join(base, f.Path), filepath.Join(base, "JOB")), fs.ErrExist)
	require.NoError(t, checkpoint.SetAside(checkpoint.OS, base, []checkpoint.Skipped{{Meta: m}}))
	require.ErrorIs(t, l.Verify(t.Context(), m), fs.ErrNotExist)
	require.NoError(t, checkpoint.Remove(checkpoint.OS, base, []checkpoint.Meta{m}), "gone already")
	_, err = checkpoint.OS.Size(base)
	require.Error(t, err, "a directory is no file")
}

// The transactions are what a real etcd takes, too.
func TestOnEtcd(t *testing.T) {
	t.Parallel()
	b := &bundle{fs: memfs.New(), st: storetest.Embedded(t), own: owner(2, 1)}
	b.owners(t, b.own)
	require.NoError(t, checkpoint.Mark(b.fs, dir, jobID))
	for n := uint64(1); n <= 4; n++ {
		require.NoError(t, b.save(t.Context(), n, 2))
	}
	n, m, _, err := b.load(t)
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	require.Len(t, b.list(t), 2)
	require.NoError(t, checkpoint.Drop(t.Context(), b.st, b.own, []checkpoint.Meta{m}))
	n, _, _, err = b.load(t)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	b.owners(t, owner(2, 2))
	require.ErrorIs(t, b.save(t.Context(), 5, 2), checkpoint.ErrNotOwner)
	require.Len(t, b.list(t), 1)
}
