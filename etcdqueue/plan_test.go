package etcdqueue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
)

// TestOrderDoesNotDependOnTakeSizes: one taker gets the chunks in the same
// order however many it takes at a time; without shuffle in that of the data.
func TestOrderDoesNotDependOnTakeSizes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64Range(1, 150).Draw(rt, "chunks")
		c := Config{
			Lanes:   rapid.SampledFrom([]int{1, 3, 8, 64}).Draw(rt, "lanes"),
			Shuffle: rapid.Bool().Draw(rt, "shuffle"),
			Seed:    rapid.Uint64().Draw(rt, "seed"), Name: "trainer-0", Incarnation: "i",
		}
		failed := make(quarantine)
		for _, chunk := range rapid.SliceOfN(rapid.Int64Range(0, n-1), 0, 5).Draw(rt, "failed") {
			failed[chunk] = 1
		}
		walk := func(size func() int64) (order []int64) {
			p := newPassView(&c, 3, Manifest{Chunks: n}, 5, 5, c.Lanes)
			for token := int64(10); p.todo > 0; token++ {
				picks := p.plan(wish{count: size(), peers: 1}, failed)
				require.NotEmpty(rt, picks)
				require.LessOrEqual(rt, len(picks), maxTxnLanes)
				var tasks []Task
				for _, k := range picks {
					l, ok := p.lanes[k.lane].lane.Skip(k.failed), true
					if !k.at.IsEmpty() {
						l, ok = l.Take(k.at, "n", Holder{"i", token})
					}
					require.True(rt, ok)
					p.set(k.lane, slot{lane: l, rev: token, seen: token})
					for x := range k.at.All() {
						tasks = append(tasks, p.task(k.lane, x, token))
					}
				}
				if !c.Shuffle {
					sortByRank(tasks)
				}
				order = append(order, chunks(tasks)...)
			}
			return order
		}
		byOne := walk(func() int64 { return 1 })
		require.Len(rt, byOne, int(n)-len(failed))
		require.Equal(rt, byOne, walk(func() int64 { return rapid.Int64Range(1, 80).Draw(rt, "size") }))
		if !c.Shuffle {
			require.IsIncreasing(rt, append([]int64{-1}, byOne...))
		}
	})
}

// TestPassesAndSeedsHaveTheirOwnOrder, which all takers share, while each has
// its own way through the lanes.
func TestPassesAndSeedsHaveTheirOwnOrder(t *testing.T) {
	t.Parallel()
	look := func(seed uint64, pass int, name string) (order, turn string) {
		c := Config{Seed: seed, Shuffle: true, Name: name}
		p := newPassView(&c, pass, Manifest{Chunks: 36}, 1, 1, 8)
		ranks := make([]int64, 36)
		for r := range ranks {
			ranks[r] = p.chunk(int64(r))
		}
		return fmt.Sprint(ranks), fmt.Sprint(p.turn)
	}
	order, turn := look(1, 0, "a")
	for _, other := range []struct {
		seed uint64
		pass int
	}{{1, 1}, {2, 0}, {0, 1}} {
		o, w := look(other.seed, other.pass, "a")
		require.NotEqual(t, order, o, "%+v", other)
		require.NotEqual(t, turn, w, "%+v", other)
	}
	o, w := look(1, 0, "b")
	require.Equal(t, order, o)
	require.NotEqual(t, turn, w)
}

// TestViewGoesForwardOnly: what comes late does not undo what is known.
func TestViewGoesForwardOnly(t *testing.T) {
	t.Parallel()
	p := newPassView(&Config{}, 0, Manifest{Chunks: 8}, 3, 3, 4)
	l, _ := p.lanes[1].lane.Take(ranges.Of(0, 0), "n", Holder{"a", 3})
	require.True(t, p.set(1, slot{lane: l, rev: 7, seen: 7}))
	require.Equal(t, int64(7), p.todo)
	require.False(t, p.set(1, slot{lane: NewLane(2), rev: 5, seen: 9}))
	require.False(t, p.set(1, slot{lane: l, rev: 7, seen: 12}), "no change, but seen later")
	require.Equal(t, slot{lane: l, rev: 7, seen: 12}, p.lanes[1])
	require.Equal(t, int64(7), p.todo)
	require.Equal(t, 4, p.open)
	done, _ := l.Done(0, Holder{"a", 3}, Sums{Batches: 1, Records: 1})
	done = done.Skip(ranges.Of(1, 1))
	require.True(t, p.set(1, slot{lane: done, rev: 13, seen: 13}))
	require.Equal(t, []int64{6, 3}, []int64{p.todo, int64(p.open)})

	v := view{passes: map[int]*passView{0: p}}
	require.True(t, v.setState(State{Phase: PhaseTraining, Pass: 0, Revision: 9}))
	require.False(t, v.setState(State{Phase: PhaseTraining, Pass: 5, Revision: 8}))
	require.Empty(t, v.missing())
	require.True(t, v.setState(State{Phase: PhaseTraining, Pass: 1, Reopened: []int{0}, Revision: 10}))
	require.Equal(t, []int{1}, v.missing())
	require.True(t, v.setState(State{Phase: PhaseTraining, Pass: 1, Revision: 11}))
	require.Empty(t, v.passes)
}
