package etcdqueue

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/ranges"
	"starfish/internal/store"
)

// chunkModel is one position of a lane, plainly.
type chunkModel struct {
	where  string // todo pending complete failed
	holder Holder
	tries  int
	summed bool
}

// laneModel is a lane, plainly: what it must be like, position by position.
type laneModel struct {
	chunks                             []chunkModel
	batches, takes, requeued, reopened int64
	speculated                         int64
}

// TestLaneAgainstModel walks at random through everything that can happen to a
// lane, next to a model that knows no ranges, and after each step looks at
// every position and sends the record through its encoding.
func TestLaneAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 12).Draw(t, "size")
		m := laneModel{chunks: make([]chunkModel, size)}
		for i := range m.chunks {
			m.chunks[i].where = "todo"
		}
		l := NewLane(size)
		token := int64(0)
		var holders []Holder
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				token++
				h := Holder{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who"), token}
				at := l.Todo.First(rapid.Int64Range(0, 4).Draw(t, "k"))
				after, ok := l.Take(at, "name", h)
				require.Equal(t, !at.IsEmpty(), ok)
				l = after
				for x := range at.All() {
					require.Equal(t, "todo", m.chunks[x].where)
					m.chunks[x].where, m.chunks[x].holder = "pending", h
					m.takes++
				}
				holders = append(holders, h)
			},
			"overtake": func(t *rapid.T) {
				if len(l.Pending) == 0 {
					t.Skip("nothing is Pending")
				}
				token++
				h := Holder{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who"), token}
				e := rapid.SampledFrom(l.Pending).Draw(t, "entry")
				at := last(e.At, rapid.Int64Range(0, 3).Draw(t, "k"))
				after, ok := l.Overtake(at, Holder{e.Incarnation, e.Token}, "name", h)
				require.Equal(t, !at.IsEmpty(), ok)
				l = after
				for x := range at.All() {
					require.Equal(t, Holder{e.Incarnation, e.Token}, m.chunks[x].holder)
					m.chunks[x].holder = h
					m.takes++
					m.speculated++
					require.Equal(t, e.Run+1, l.Pending[l.find(x, h)].Run)
				}
				holders = append(holders, h)
			},
			"overtakeWrong": func(t *rapid.T) {
				x := rapid.Int64Range(0, size).Draw(t, "x")
				from := Holder{"a", rapid.Int64Range(0, token).Draw(t, "token")}
				if x < size && m.chunks[x].where == "pending" && m.chunks[x].holder == from {
					t.Skip("it is that holder's")
				}
				_, ok := l.Overtake(ranges.Of(x, x), from, "name", Holder{"b", token + 1})
				require.False(t, ok)
			},
			"takeWrong": func(t *rapid.T) {
				x := rapid.Int64Range(0, size).Draw(t, "x")
				if x < size && m.chunks[x].where == "todo" {
					t.Skip("it is Todo")
				}
				_, ok := l.Take(ranges.Of(x, x), "name", Holder{"a", token + 1})
				require.False(t, ok)
			},
			"report": func(t *rapid.T) {
				if len(holders) == 0 || size == 0 {
					t.Skip("nothing was taken yet")
				}
				x := rapid.Int64Range(0, size-1).Draw(t, "x")
				h := rapid.SampledFrom(holders).Draw(t, "holder")
				c := &m.chunks[x]
				mine := c.where == "pending" && c.holder == h
				var ok, full bool
				switch rapid.SampledFrom([]string{"done", "fail", "release", "touch"}).Draw(t, "verb") {
				case "done":
					if l, ok = l.Done(x, h, Sums{Batches: 10, Records: 100, Bad: 20}); mine {
						if !c.summed {
							m.batches += 10
						}
						c.where, c.summed = "complete", true
					}
				case "fail":
					if l, full, ok = l.Fail(x, h, 3); mine {
						c.tries++
						c.where = "todo"
						if c.tries >= 3 {
							c.where = "failed"
						}
						require.Equal(t, c.tries >= 3, full)
					}
				case "release":
					if l, ok = l.Release(x, h); mine {
						c.where = "todo"
					}
				case "touch":
					before := l
					l, ok = l.Touch(x, h, "shard 1")
					if mine {
						i := l.find(x, h)
						require.Equal(t, before.Pending[i].Beat+1, l.Pending[i].Beat)
						require.Equal(t, "shard 1", l.Pending[i].Reason)
					}
				}
				require.Equal(t, mine, ok)
			},
			"requeue": func(t *rapid.T) {
				who := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who")
				after, n := l.Requeue(func(e Entry) bool { return e.Incarnation == who })
				l = after
				for i := range m.chunks {
					if c := &m.chunks[i]; c.where == "pending" && c.holder.Incarnation == who {
						c.where = "todo"
						m.requeued++
						n--
					}
				}
				require.Zero(t, n)
			},
			"reopen": func(t *rapid.T) {
				lo := rapid.Int64Range(0, 12).Draw(t, "lo")
				at := ranges.Of(lo, lo+rapid.Int64Range(0, 4).Draw(t, "more"))
				after, n := l.Reopen(at)
				l = after
				for i := range m.chunks {
					if c := &m.chunks[i]; c.where == "complete" && at.Contains(int64(i)) {
						c.where = "todo"
						m.reopened++
						n--
					}
				}
				require.Zero(t, n)
			},
			"skip": func(t *rapid.T) {
				x := rapid.Int64Range(0, 12).Draw(t, "x")
				l = l.Skip(ranges.Of(x, x))
				if x < size && m.chunks[x].where == "todo" {
					m.chunks[x].where = "failed"
				}
			},
			"readmit": func(t *rapid.T) {
				x := rapid.Int64Range(0, 12).Draw(t, "x")
				failed := x < size && m.chunks[x].where == "failed"
				var ok bool
				l, ok = l.Readmit(x)
				require.Equal(t, failed, ok)
				if failed {
					m.chunks[x].where, m.chunks[x].tries = "todo", 0
				}
			},
			"": func(t *rapid.T) { requireModel(t, m, l, size) },
		})
	})
}

func requireModel(t *rapid.T, m laneModel, l Lane, size int64) {
	require.NoError(t, l.Check(size))
	back, err := decodeLane(store.KV{Key: "lane", Value: l.Encode(), ModRev: 1}, size)
	require.NoError(t, err)
	require.Equal(t, string(l.Encode()), string(back.Encode()))
	count := map[string]int64{}
	for i, c := range m.chunks {
		x := int64(i)
		count[c.where]++
		require.Equal(t, c.where == "todo", back.Todo.Contains(x))
		require.Equal(t, c.where == "complete", back.Complete.Contains(x))
		require.Equal(t, c.where == "failed", back.Failed.Contains(x))
		require.Equal(t, c.where == "pending", back.Holds(x, c.holder))
		require.Equal(t, c.tries, back.Tries[x])
		require.Equal(t, c.summed && c.where != "complete", back.Again.Contains(x))
	}
	want := Totals{
		Chunks: size, Todo: count["todo"], Pending: count["pending"], Complete: count["complete"], Failed: count["failed"],
		Takes: m.takes, Requeued: m.requeued, Reopened: m.reopened, Speculated: m.speculated, Batches: m.batches, Records: 10 * m.batches, Bad: 2 * m.batches,
	}
	require.Equal(t, want, back.Totals())
	require.Equal(t, want.Todo+want.Pending == 0, back.Finished())
}

// TestLaneIsAValue: no method changes its receiver.
func TestLaneIsAValue(t *testing.T) {
	t.Parallel()
	h := Holder{"a", 5}
	l, _ := NewLane(6).Take(ranges.Of(0, 3), "n", h)
	l, _, _ = l.Fail(3, h, 3)
	before := string(l.Encode())
	l.Take(ranges.Of(4, 4), "n", Holder{"b", 6})
	l.Touch(0, h, "x")
	l.Done(0, h, Sums{Batches: 1, Records: 1})
	l.Fail(0, h, 1)
	l.Release(1, h)
	l.Requeue(func(Entry) bool { return true })
	l.Overtake(ranges.Of(1, 2), h, "n", Holder{"b", 6})
	l.Skip(ranges.Of(0, 5))
	done, _ := l.Done(0, h, Sums{Batches: 1, Records: 1})
	done.Reopen(ranges.Of(0, 5))
	require.Equal(t, before, string(l.Encode()))
}

func TestLaneSize(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2, 7, 64} {
		for n := range int64(200) {
			var sum int64
			for lane := range lanes {
				size := LaneSize(n, lanes, lane)
				sum += size
				last := (size-1)*int64(lanes) + int64(lane)
				require.True(t, size == 0 || last < n && last+int64(lanes) >= n, "n %d lanes %d lane %d", n, lanes, lane)
			}
			require.Equal(t, n, sum)
		}
	}
}

// TestLaneRecordStaysSmall: what the record costs depends on what is going on
// in it, not on the number of its chunks.
func TestLaneRecordStaysSmall(t *testing.T) {
	t.Parallel()
	l := NewLane(1 << 40)
	for token := range int64(50) {
		h := Holder{"7b2f0c56-8f6c-4b58-9b0f-5f9b6a2f3f6e", token + 1}
		at := l.Todo.First(1000)
		l, _ = l.Take(at, "trainer-0", h)
		for x := range at.All() {
			if x%1000 != 999 || token < 48 {
				l, _ = l.Done(x, h, Sums{Batches: 16, Records: 1000})
			}
		}
	}
	require.Less(t, len(l.Encode()), 500)
}

func TestLaneCheckRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a position in two places": `{"v":1,"todo":"0-3","complete":"3"}`,
		"a position in none":       `{"v":1,"todo":"0-2"}`,
		"too many":                 `{"v":1,"todo":"0-4"}`,
		"twice pending":            `{"v":1,"todo":"1-3","pending":[{"at":"0","incarnation":"a"},{"at":"0","incarnation":"b"}]}`,
		"an entry without chunks":  `{"v":1,"todo":"0-3","pending":[{"at":"","incarnation":"a"}]}`,
		"an entry of nobody":       `{"v":1,"todo":"1-3","pending":[{"at":"0"}]}`,
		"again and complete":       `{"v":1,"todo":"0-2","complete":"3","again":"3"}`,
		"again beyond the end":     `{"v":1,"todo":"0-3","again":"9"}`,
		"no canonical set":         `{"v":1,"todo":"0-1,2-3"}`,
		"a later version":          `{"v":2,"todo":"0-3"}`,
		"no version":               `{"todo":"0-3"}`,
		"no JSON":                  `todo: 0-3`,
		"empty":                    ``,
	} {
		_, err := decodeLane(store.KV{Key: "queue/000000/0000", Value: []byte(text), ModRev: 1}, 4)
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, "queue/000000/0000", name)
	}
}

// FuzzDecode: no record, however broken, does more than give an error.
func FuzzDecode(f *testing.F) {
	h := Holder{"a", 5}
	l, _ := NewLane(9).Take(ranges.Of(0, 3), "n", h)
	l, _ = l.Done(1, h, Sums{Batches: 2, Records: 3})
	l, _, _ = l.Fail(2, h, 1)
	for _, b := range [][]byte{l.Encode(), State{V: 1, Phase: PhaseTraining, Lanes: 4}.encode(), Manifest{V: 1, Chunks: 9}.encode(), []byte(`{"v":1}`), nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		kv := store.KV{Key: "k", Value: value, ModRev: 1}
		if l, err := decodeLane(kv, 9); err == nil {
			require.NoError(t, l.Check(9))
		}
		if s, err := decodeState(kv); err == nil {
			require.NotEmpty(t, s.Takeable())
		}
		if m, err := decodeManifest(kv); err == nil {
			require.GreaterOrEqual(t, m.Chunks, int64(0))
		}
	})
}
