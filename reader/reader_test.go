package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/permute"
	"starfish/internal/raced"
)

// write puts files with the given contents into a new directory.
func write(tb testing.TB, contents ...string) []string {
	tb.Helper()
	dir := tb.TempDir()
	var paths []string
	for i, c := range contents {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("f%02d", i)))
		require.NoError(tb, os.WriteFile(paths[i], []byte(c), 0o600))
	}
	return paths
}

func plan(tb testing.TB, chunk int64, paths ...string) *Plan {
	tb.Helper()
	p, err := NewPlan(paths, Libsvm, chunk)
	require.NoError(tb, err)
	return p
}

// records reads a chunk to its end and gives each record as text. It checks
// what holds for every chunk: all batches but the last are full, and exactly
// the last is marked.
func records(p *Plan, chunk int64, o Options, skip int64) (list []string, batches int, err error) {
	r, err := p.Open(context.Background(), chunk, o)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	r.SkipTo(skip)
	var b Batch
	last := false
	for {
		err := r.Next(&b)
		switch {
		case errors.Is(err, io.EOF) && (last || skip > 0):
			return list, batches, nil
		case err != nil:
			return list, batches, err
		case last:
			return nil, 0, errors.New("a batch follows the last one")
		case !b.Last && b.Records() != o.Batch, b.Records() > o.Batch:
			return nil, 0, fmt.Errorf("a batch of %d records", b.Records())
		case b.Last && b.Records() == 0 && batches+int(skip) > 0:
			return nil, 0, errors.New("an empty batch after a full one")
		case len(b.Labels) != b.Records(), len(b.Keys) != len(b.Values), b.LabelWidth != 1:
			return nil, 0, errors.New("columns of different lengths")
		case b.Groups != nil && len(b.Groups) != b.Records():
			return nil, 0, errors.New("groups of a different length")
		}
		last = b.Last
		batches++
		for i := range b.Records() {
			list = append(list, text(&b, i))
		}
	}
}

func text(b *Batch, i int) string {
	var s strings.Builder
	fmt.Fprint(&s, b.Labels[i])
	if b.Groups != nil {
		fmt.Fprintf(&s, " qid:%d", b.Groups[i])
	}
	keys, values := b.Record(i)
	for k := range keys {
		fmt.Fprintf(&s, " %d:%v", keys[k], values[k])
	}
	return s.String()
}

// all reads all chunks of a plan.
func all(p *Plan, o Options) (list []string, err error) {
	for c := range p.Chunks() {
		got, _, err := records(p, c, o, 0)
		if err != nil {
			return nil, fmt.Errorf("chunk %d: %w", c, err)
		}
		list = append(list, got...)
	}
	return list, nil
}

// TestLast: where the count divides evenly the mark is on the full batch; an
// empty chunk has one empty batch; broken records at the end add no batch.
func TestLast(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text  string
		sizes []int
	}{
		"divides evenly":        {numbered(1, 6, "\n"), []int{3, 3}},
		"does not":              {numbered(1, 7, "\n"), []int{3, 3, 1}},
		"fewer than one batch":  {numbered(1, 2, "\n"), []int{2}},
		"nothing":               {"\n\n\n", []int{0}},
		"nothing good":          {"x\ny\n", []int{0}},
		"broken at the end":     {numbered(1, 6, "\n") + "x\ny\n", []int{3, 3}},
		"blank at the end":      {numbered(1, 3, "\n") + "\n \n#\n", []int{3}},
		"broken in the middle":  {numbered(1, 3, "\n") + "x\n" + numbered(1, 3, "\n"), []int{3, 3}},
		"broken at the start":   {"x\n" + numbered(1, 4, "\n"), []int{3, 1}},
		"one record, no end":    {"1", []int{1}},
		"batches of everything": {numbered(1, 3, "\n"), []int{3}},
	} {
		for _, shuffle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shuffle %v", name, shuffle), func(t *testing.T) {
				t.Parallel()
				p := plan(t, 1<<20, write(t, tc.text)...)
				r, err := p.Open(t.Context(), 0, Options{Batch: 3, MaxBad: 2, Shuffle: shuffle})
				require.NoError(t, err)
				defer r.Close()
				var b Batch
				for i, size := range tc.sizes {
					require.NoError(t, r.Next(&b))
					require.Equal(t, size, b.Records())
					require.Equal(t, i == len(tc.sizes)-1, b.Last)
				}
				require.ErrorIs(t, r.Next(&b), io.EOF)
				require.ErrorIs(t, r.Next(&b), io.EOF)
			})
		}
	}
}

// TestSkipTo: batch n is the same whether those before it were delivered.
func TestSkipTo(t *testing.T) {
	t.Parallel()
	text := strings.Replace(numbered(1, 40, "\n"), "\n", "\nbroken\n", 5)
	p := plan(t, 1<<20, write(t, text)...)
	for _, shuffle := range []bool{false, true} {
		for _, batch := range []int{1, 3, 8, 40, 64} {
			o := Options{Batch: batch, Shuffle: shuffle, Seed: 5, MaxBad: 10}
			want, n, err := records(p, 0, o, 0)
			require.NoError(t, err)
			for skip := range n + 3 {
				got, rest, err := records(p, 0, o, int64(skip))
				require.NoError(t, err)
				require.Equal(t, max(0, n-skip), rest)
				require.Equal(t, want[min(skip*batch, len(want)):], append([]string{}, got...))
			}
		}
	}
}

// TestWindows: beyond 16,384 records there is more than one window; each is
// permuted within itself, as documented.
func TestWindows(t *testing.T) {
	t.Parallel()
	const n = 2*Window + 700
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "0 %d:1\n", i)
	}
	p := plan(t, 300000, write(t, s.String())...)
	require.Equal(t, int64(2), p.Chunks())
	o := Options{Batch: 1000, Shuffle: true, Seed: 9, Pass: 3}
	plain := o
	plain.Shuffle = false
	for c := range p.Chunks() {
		got, batches, err := records(p, c, o, 0)
		require.NoError(t, err)
		inOrder, _, err := records(p, c, plain, 0)
		require.NoError(t, err)
		require.False(t, slices.Equal(inOrder, got))
		var want []string
		for window := range slices.Chunk(inOrder, Window) {
			perm := permute.New(int64(len(window)), 9, 3, uint64(c))
			for i := range window {
				want = append(want, window[perm.At(int64(i))])
			}
		}
		require.True(t, slices.Equal(want, got))
		for skip := int64(15); skip < 19 && skip < int64(batches); skip++ {
			rest, _, err := records(p, c, o, skip)
			require.NoError(t, err)
			require.True(t, slices.Equal(want[skip*1000:], rest))
		}
	}
	for name, other := range map[string]Options{
		"seed": {Batch: 1000, Shuffle: true, Seed: 10, Pass: 3}, "pass": {Batch: 1000, Shuffle: true, Seed: 9, Pass: 4}} {
		a, _, err := records(p, 0, o, 0)
		require.NoError(t, err)
		b, _, err := records(p, 0, other, 0)
		require.NoError(t, err)
		require.False(t, slices.Equal(a, b), name)
		slices.Sort(a)
		slices.Sort(b)
		require.True(t, slices.Equal(a, b), name)
	}
}

// TestGolden pins the content of shuffled batches: it is part of the formats.
func TestGolden(t *testing.T) {
	t.Parallel()
	p := plan(t, 1<<20, write(t, "0 0:1\n0 1:1\n0 2:1\n0 3:1\n0 4:1\n0 5:1\n0 6:1\n0 7:1\n")...)
	got, _, err := records(p, 0, Options{Batch: 8, Shuffle: true, Seed: 1, Pass: 2}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 4:1", "0 2:1", "0 5:1", "0 0:1", "0 3:1", "0 7:1", "0 1:1", "0 6:1"}, got)
}

func TestKeysAndGroups(t *testing.T) {
	t.Parallel()
	text := "0 16777217:1 5:2\n0 18446744073709551615:1 0:1\n1 qid:7 3:1\n0 4:1\n0 qid:18446744073709551615 4:1 4:1\n"
	p := plan(t, 1<<20, write(t, text)...)
	want := []string{"0 qid:0 16777217:1 5:2", "0 qid:0 18446744073709551615:1 0:1", "1 qid:7 3:1", "0 qid:0 4:1",
		"0 qid:18446744073709551615 4:1 4:1"}
	for _, shuffle := range []bool{false, true} {
		got, _, err := records(p, 0, Options{Batch: 5, Shuffle: shuffle}, 0)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got)
	}
	got, _, err := records(p, 0, Options{Batch: 5, Bits: 24}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 qid:0 1:1 5:2", "0 qid:0 16777215:1 0:1"}, got[:2])
	got, _, err = records(p, 0, Options{Batch: 2}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"0 16777217:1 5:2", "1 qid:7 3:1", "0 qid:18446744073709551615 4:1 4:1"},
		[]string{got[0], got[2], got[4]}, "a batch without groups has none, later ones have")
}

// TestNoAllocations: in steady state neither reading nor shuffling allocates,
// whatever the values look like.
func TestNoAllocations(t *testing.T) {
	for name, line := range map[string]string{
		"ones":   "1 12345678:1 123456:1 17:1 16777215:1\n",
		"values": "0.5 1:0.25 2:1e-3 3:-17.123456789 4:3 5 6:0.1234567890123456789012\n",
		"groups": "1 qid:3 1:1\n",
	} {
		for _, shuffle := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, shuffle %v", name, shuffle), func(t *testing.T) {
				p := plan(t, 1<<40, write(t, strings.Repeat(line, 5*Window))...)
				r, err := p.Open(t.Context(), 0, Options{Batch: 256, Shuffle: shuffle})
				require.NoError(t, err)
				defer r.Close()
				var b Batch
				for range 2 * Window / 256 {
					require.NoError(t, r.Next(&b))
				}
				require.Zero(t, testing.AllocsPerRun(2*Window/256, func() {
					if r.Next(&b) != nil {
						panic("the file is too short for the test")
					}
				}))
			})
		}
	}
}

// TestChunksShareMemory: the second and later chunks need little new memory.
func TestChunksShareMemory(t *testing.T) {
	if raced.Enabled {
		t.Skip("the race detector empties pools")
	}
	p := plan(t, 64<<10, write(t, strings.Repeat("1 12345678:1 123456:1 17:1\n", 50000))...)
	var b Batch
	c := int64(0)
	pass := func() {
		r, err := p.Open(context.Background(), c, Options{Batch: 128, Shuffle: true})
		if err != nil {
			panic(err)
		}
		for r.Next(&b) == nil {
		}
		_ = r.Close()
		c = (c + 1) % p.Chunks()
	}
	for range p.Chunks() {
		pass()
	}
	require.Less(t, testing.AllocsPerRun(20, pass), 20.0)
}

// TestManyReaders: readers of one plan at the same time do not disturb each
// other, also when they take over each other's memory.
func TestManyReaders(t *testing.T) {
	t.Parallel()
	p := plan(t, 700, write(t, numbered(1, 400, "\n"), numbered(2, 300, "\r\n"))...)
	o := Options{Batch: 7, Shuffle: true, Seed: 3}
	want, err := all(p, o)
	require.NoError(t, err)
	got, errs := make([][]string, 8), make([]error, 8)
	var group sync.WaitGroup
	for i := range got {
		group.Go(func() { got[i], errs[i] = all(p, o) })
	}
	group.Wait()
	for i := range got {
		require.NoError(t, errs[i])
		require.True(t, slices.Equal(want, got[i]))
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	p := plan(t, 1<<20, write(t, numbered(1, 9, "\n"))...)
	r, err := p.Open(t.Context(), 0, Options{Batch: 2})
	require.NoError(t, err)
	var b Batch
	require.NoError(t, r.Next(&b))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Next(&b), os.ErrClosed)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	_, err = p.Open(ctx, 0, Options{Batch: 2})
	require.ErrorIs(t, err, io.ErrNoProgress)
	for _, c := range []int64{-1, 1} {
		_, err = p.Open(t.Context(), c, Options{Batch: 2})
		require.ErrorContains(t, err, fmt.Sprintf("there is no chunk %d among 1", c))
	}
	_, err = p.Open(t.Context(), 0, Options{})
	require.ErrorContains(t, err, "batch 0")
}
