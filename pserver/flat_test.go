package pserver

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/wire"
	"starfish/job"
)

// The place of a key is its rank among the keys of its shard, and no other key has
// one.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, width := range []int{1, 2, 4, 5, 6, 10, 15} {
		for _, of := range []int{1, 2, 3, 7, 1000} {
			for _, shard := range []int{0, of / 2, of - 1} {
				p := newPlaces(width, shard, of)
				require.EqualValues(t, 8*len(p.words), placesBytes(width))
				var here []uint64
				row := make([]uint32, 1)
				for key := range uint64(1 << width) {
					bad := p.find([]uint64{key}, row)
					if job.ShardOf(key, of) != shard {
						require.Equal(t, 0, bad)
						continue
					}
					require.Equal(t, -1, bad)
					require.EqualValues(t, len(here), row[0])
					here = append(here, key)
				}
				require.Equal(t, len(here), p.n)
				checkExisting(t, p, here)
				for _, key := range []uint64{1 << width, 1<<width + 1, math.MaxUint64} {
					require.Equal(t, 0, p.find([]uint64{key}, row))
				}
			}
		}
	}
}

// checkExisting compares, for some of the places here, what places say of those that
// have a row.
func checkExisting(t *testing.T, p *places, here []uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(p.n), 1))
	for range 20 {
		first := 32 * rng.IntN(p.n/32+1)
		n := min(rng.IntN(100), p.n-first)
		exists := make([]uint32, (n+31)/32)
		var keys []uint64
		var rows []uint32
		for i := range n {
			if rng.IntN(3) > 0 {
				exists[i/32] |= 1 << (i % 32)
				keys, rows = append(keys, here[first+i]), append(rows, uint32(i))
			}
		}
		if n%32 != 0 {
			exists[n/32] |= math.MaxUint32 << (n % 32) // of others
		}
		foundKeys, foundRows := make([]uint64, n+1), make([]uint32, n+1)
		found := p.existing(exists, first, n, foundKeys, foundRows)
		require.Equal(t, keys, append([]uint64(nil), foundKeys[:found]...))
		require.Equal(t, rows, append([]uint32(nil), foundRows[:found]...))
	}
}

// makeHashed makes a new shard's tables hashed, whatever their key space is.
func makeHashed(s *Shard) *Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.params {
		p.flat = false
	}
	s.content = s.newContent()
	s.content.fill()
	s.account(0)
	return s
}

// sortedRows are the sections of a shard's tables, each row as a text, sorted by
// key.
func sortedRows(t testing.TB, s *Shard) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name, text := range joined(sections(t, s)) {
		if name == sectionMeta || name == sectionLedger {
			continue
		}
		all[name] = []string{text}
		for i, p := range s.params {
			if !p.Sparse || sectionOf(p) != name {
				continue
			}
			all[name] = nil
			for row := range slices.Chunk([]byte(text), 4*s.content.tables[i].rows.Words()) {
				all[name] = append(all[name], string(row))
			}
			slices.SortFunc(all[name], func(a, b string) int {
				return int(binary.LittleEndian.Uint32([]byte(a))) - int(binary.LittleEndian.Uint32([]byte(b)))
			})
		}
	}
	return all
}

// exported is what a shard exports, bit by bit.
func exported(s *Shard) (keys []uint64, words []uint64) {
	for i := range s.params {
		for r := range s.Export(i) {
			keys, words = append(keys, r.Keys...), append(words, r.Counts...)
			for _, x := range r.Floats {
				words = append(words, uint64(math.Float32bits(x)))
			}
		}
	}
	return keys, words
}

// pulledBits is what a shard answers for keys of all its tables.
func pulledBits(t testing.TB, s *Shard, keys []uint64) (bits []uint32) {
	t.Helper()
	for _, p := range s.params {
		if p.Sparse {
			for _, x := range pullRows(t, s, uint16(p.number), keys...) {
				bits = append(bits, math.Float32bits(x))
			}
		}
	}
	return bits
}

// A flat table is a hashed one, bit by bit, for every optimizer: what it answers,
// what it exports, what it saves; and each loads what the other has saved and goes
// on with it.
func TestFlatIsHashed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		flat, hashed := cutShard(t, 8), makeHashed(cutShard(t, 8))
		for i, p := range flat.params {
			require.Equal(rt, p.Sparse, p.flat)
			require.False(rt, hashed.params[i].flat)
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		next := steps(flat, 0)
		for range rapid.IntRange(0, 4).Draw(rt, "loads") {
			for range rapid.IntRange(0, 12).Draw(rt, "pushes") {
				keys := make([]uint64, 1+rng.IntN(100))
				for i := range keys {
					keys[i] = rng.Uint64N(256)
				}
				require.Equal(rt, pulledBits(t, hashed, keys), pulledBits(t, flat, keys))
				p := next()
				require.Equal(rt, mustPush(t, hashed, p), mustPush(t, flat, p))
			}
			require.LessOrEqual(rt, flat.Content(), hashed.Content(), "what it takes where it is hashed")
			require.Positive(rt, flat.Content())
			a, b := hashed.Stats(), flat.Stats()
			a.Bytes, b.Bytes = 0, 0
			require.Equal(rt, a, b)
			require.Equal(rt, sortedRows(t, hashed), sortedRows(t, flat))
			keys, words := exported(hashed)
			flatKeys, flatWords := exported(flat)
			require.Equal(rt, keys, flatKeys)
			require.Equal(rt, words, flatWords)

			fromHashed, fromFlat := sections(t, hashed), sections(t, flat)
			flat, hashed = cutShard(t, 8), makeHashed(cutShard(t, 8))
			require.NoError(rt, load(flat.NewLoader(), fromHashed))
			require.NoError(rt, load(hashed.NewLoader(), fromFlat))
		}
	})
}

// flatShard has tables of 12 bits, on one of three shards: one whose new rows are
// zeros, one with other initial values, one with other state.
func flatShard(t testing.TB, m *Memory) *Shard {
	t.Helper()
	start := adagrad()
	start.InitialAccumulator = 0.5
	s, err := NewShard(job.Parameters{V: 1, Seed: 5, Shards: 3, List: []job.Parameter{
		{Name: "zeros", Sparse: true, Dim: 1, Bits: 12, Optimizer: adagrad(), Divisor: 1},
		{Name: "values", Sparse: true, Dim: 2, Bits: 12, Init: job.Initializer{Kind: job.InitConstant, Value: 3}, Optimizer: adagrad(), Divisor: 1},
		{Name: "state", Sparse: true, Dim: 1, Bits: 10, Optimizer: start, Divisor: 1},
	}}, 1, testLanes, ShardOptions{Memory: m})
	require.NoError(t, err)
	for _, p := range s.params {
		require.True(t, p.flat)
	}
	return s
}

// A pull makes no row, a push does, whatever its gradient is; a push that is
// refused or skipped does not. Only rows that were made are saved and exported.
func TestFlatRowsExistByPushes(t *testing.T) {
	t.Parallel()
	s, b := flatShard(t, nil), &batches{}
	keys := keysOn(1, 3, 40, 0)
	rowsOf := func() (n []int64) {
		for i := range s.params {
			n = append(n, s.Rows(i))
		}
		return n
	}
	require.Equal(t, make([]float32, 40), pullRows(t, s, 0, keys...))
	require.Equal(t, []float32{3, 3}, pullRows(t, s, 1, keys[3]))
	require.Equal(t, []int64{0, 0, 0}, rowsOf())
	require.Len(t, sections(t, s), 2, "meta and ledger")

	nan := float32(math.NaN())
	mustPush(t, s, b.next(nil, rows(0, keys[:1], nan), rows(1, keys[:1], 1, 1)))
	_, err := s.Push(1, b.next(nil, rows(0, keys[:1], 1), rows(1, []uint64{1 << 12}, 1, 1)), nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, []int64{0, 0, 0}, rowsOf())
	b.n--

	push := func(keys ...uint64) {
		zeros := make([]float32, 2*len(keys))
		mustPush(t, s, b.next(nil, rows(0, keys, zeros[:len(keys)]...), rows(1, keys, zeros...), rows(2, keys, zeros[:len(keys)]...)))
	}
	push(keys[4], keys[7], keys[4])
	push(keys[7])
	require.Equal(t, []int64{2, 2, 2}, rowsOf())
	require.EqualValues(t, 6, s.Stats().Rows)
	saved := joined(sections(t, s))
	require.Len(t, saved["sparse/zeros"], 2*4*(2+2))
	require.Len(t, saved["sparse/values"], 2*4*(2+4))
	key, word := exported(s)
	require.Equal(t, []uint64{keys[4], keys[7], keys[4], keys[7], keys[4], keys[7]}, key)
	three := uint64(math.Float32bits(3))
	require.Equal(t, []uint64{0, 0, three, three, three, three, 0, 0}, word)
	require.Equal(t, []float32{3, 3, 3, 3}, pullRows(t, s, 1, keys[4], keys[5]))
	r := reload(t, s)
	require.Equal(t, dump(t, s), dump(t, r))
	require.Equal(t, s.Stats().Rows, r.Stats().Rows)
}

// A key of another shard, or beyond the key space, is refused by pulls and pushes.
func TestFlatRefusesMisplacedKeys(t *testing.T) {
	t.Parallel()
	s, b := flatShard(t, nil), &batches{}
	keys := keysOn(1, 3, 50, 0)
	for _, key := range []uint64{keysOn(0, 3, 1, 0)[0], keysOn(2, 3, 1, 100)[0], keysOn(1, 3, 1, 1<<12)[0], math.MaxUint64} {
		for _, at := range []int{0, 20, 49} {
			bad := slices.Clone(keys)
			bad[at] = key
			_, err := s.Push(1, b.next(nil, rows(0, bad, make([]float32, 50)...)), nil)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, `of parameter "zeros" does not lie on shard 1`)
			var v values
			require.ErrorIs(t, s.Pull(nil, []wire.KeyRef{{Param: 0, Keys: bad}}, &v, nil), ErrInvalid)
			b.n--
		}
	}
	require.Zero(t, s.Stats().Rows)
}

// What a flat table does not write, it does not load.
func TestFlatLoadChecksRows(t *testing.T) {
	t.Parallel()
	s, b := flatShard(t, nil), &batches{}
	keys := keysOn(1, 3, 100, 0)
	mustPush(t, s, b.next(nil, rows(0, keys, make([]float32, 100)...)))
	good := sections(t, s)
	at := slices.IndexFunc(good, func(x section) bool { return x.name == "sparse/zeros" })
	for _, place := range []int{0, 35, 99} {
		for key, says := range map[uint64]string{
			keys[50]:                  "comes twice",
			keysOn(0, 3, 1, 0)[0]:     "does not lie on shard 1",
			keysOn(1, 3, 1, 1<<12)[0]: "does not lie on shard 1",
		} {
			bad := slices.Clone(good)
			bad[at].data = slices.Clone(good[at].data)
			binary.LittleEndian.PutUint64(bad[at].data[16*place:], key)
			err := load(flatShard(t, nil).NewLoader(), bad)
			require.ErrorIs(t, err, ErrCorrupt)
			require.ErrorContains(t, err, says)
		}
	}
	// However the blocks are cut.
	r := flatShard(t, nil)
	var pieces []section
	for _, x := range good {
		for data := range slices.Chunk(x.data, 52) {
			pieces = append(pieces, section{x.name, data})
		}
	}
	require.NoError(t, load(r.NewLoader(), pieces))
	require.Equal(t, dump(t, reload(t, s)), dump(t, r))
}

// A flat table counts whole from the start, does not grow, and counts once.
func TestFlatMemory(t *testing.T) {
	t.Parallel()
	m := NewMemory(0, nil)
	s, b := flatShard(t, m), &batches{}
	var places [2]int64
	for key := range uint64(1 << 12) {
		if job.ShardOf(key, 3) == 1 {
			places[0]++
			if key < 1<<10 {
				places[1]++
			}
		}
	}
	marks := func(n int64) int64 { return 4 * ((n + 31) / 32) }
	want := places[0]*4*(2+4) + places[1]*4*2 + 2*marks(places[0]) + marks(places[1]) + 8*(1<<12+1<<10)/32
	require.Equal(t, want, m.Used())
	most, err := MemoryOf(s.job, 1, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, most, want)
	require.Less(t, most, 2*want)
	keys := keysOn(1, 3, 300, 0)
	mustPush(t, s, b.next(nil, rows(0, keys, make([]float32, 300)...), rows(2, keys, make([]float32, 300)...)))
	require.Equal(t, want, m.Used())

	blank, err := NewShard(s.job, 1, testLanes, ShardOptions{Memory: m, Blank: true})
	require.NoError(t, err)
	require.Equal(t, want, m.Used(), "what is still to be loaded takes nothing")
	require.NoError(t, load(blank.NewLoader(), sections(t, s)))
	require.Equal(t, 2*want, m.Used())
	s.Release()
	blank.Release()
	require.Zero(t, m.Used())
}

// Tables are flat in the order of the list, as long as all of them fit, and as far
// as the process's limit allows.
func TestWhichTablesAreFlat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		shards int
		limit  int64
		tables []job.Parameter
		want   []bool
	}{
		{"keys as they are", 1, 0, []job.Parameter{{Dim: 1}, {Dim: 1, Bits: 63}}, []bool{false, false}},
		{"a linear model", 4, 0, []job.Parameter{{Dim: 1, Bits: 24}}, []bool{true}},
		{"too large", 4, 0, []job.Parameter{{Dim: 1, Bits: 25}, {Dim: 8, Bits: 24}, {Dim: 1, Bits: 24}}, []bool{false, false, true}},
		{"in order", 1, 0, []job.Parameter{{Dim: 1, Bits: 26}, {Dim: 16, Bits: 20}, {Dim: 32, Bits: 20}, {Dim: 2, Bits: 20}}, []bool{false, true, false, true}},
		{"wide rows", 1, 0, []job.Parameter{{Dim: 512, Bits: 4}, {Dim: 513, Bits: 4}}, []bool{true, false}},
		{"many shards", 32, 0, []job.Parameter{{Dim: 1, Bits: 24}}, []bool{false}},
		{"a limit", 2, 310 << 20, []job.Parameter{{Dim: 1, Bits: 24}, {Dim: 1, Bits: 20}}, []bool{true, true}},
		{"a lower limit", 2, 270 << 20, []job.Parameter{{Dim: 1, Bits: 24}, {Dim: 1, Bits: 20}}, []bool{false, true}},
	} {
		p := job.Parameters{V: 1, Shards: c.shards}
		for i, q := range c.tables {
			q.Name, q.Sparse, q.Optimizer, q.Divisor = string(rune('a'+i)), true, adagrad(), 1
			p.List = append(p.List, q)
		}
		list, err := newParameters(p, 0)
		require.NoError(t, err)
		chooseFlat(list, c.limit)
		var got []bool
		for _, q := range list {
			got = append(got, q.flat)
		}
		require.Equal(t, c.want, got, c.name)
	}
	require.Equal(t, []string{"zeros", "values", "state"}, flatShard(t, nil).Flat())
	require.Empty(t, theShard(t).Flat())
}

// How large a flat table is says nothing of a process that would not make it flat:
// one with a small limit takes over what one without has saved.
func TestFlatSizeIsNoOnesElse(t *testing.T) {
	t.Parallel()
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "w", Sparse: true, Dim: 1, Bits: 24, Optimizer: adagrad(), Divisor: 1}}}
	s, err := NewShard(p, 0, testLanes, ShardOptions{})
	require.NoError(t, err)
	mustPush(t, s, (&batches{}).next(nil, rows(0, []uint64{1, 2, 3}, 1, 1, 1)))
	require.True(t, s.params[0].flat)
	require.Greater(t, s.Stats().Bytes, int64(100<<20))
	require.Less(t, s.Content(), int64(4<<10))
}
