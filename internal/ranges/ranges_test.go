package ranges

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the same set, plainly.
type model map[int64]bool

func requireSame(t require.TestingT, m model, s Set) {
	members := slices.Collect(s.All())
	require.Len(t, members, len(m))
	require.True(t, slices.IsSorted(members))
	for _, x := range members {
		require.True(t, m[x], "%d in %s", x, s)
	}
	require.Equal(t, int64(len(m)), s.Len())
	for i, r := range s.Ranges() {
		require.LessOrEqual(t, r.Lo, r.Hi)
		require.True(t, i == 0 || s.r[i-1].Hi+1 < r.Lo, "intervals of %s touch", s)
	}
}

// TestAgainstModel makes random sets by random steps, next to a map.
func TestAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m, s := model{}, Set{}
		value := rapid.Int64Range(0, 40)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				x := value.Draw(t, "x")
				s.Add(x)
				m[x] = true
			},
			"remove": func(t *rapid.T) {
				x := value.Draw(t, "x")
				s.Remove(x)
				delete(m, x)
			},
			"addRange": func(t *rapid.T) {
				lo, hi := value.Draw(t, "lo"), value.Draw(t, "hi")
				s.AddRange(lo, hi)
				for x := lo; x <= hi; x++ {
					m[x] = true
				}
			},
			"removeRange": func(t *rapid.T) {
				lo, hi := value.Draw(t, "lo"), value.Draw(t, "hi")
				s.RemoveRange(lo, hi)
				for x := lo; x <= hi; x++ {
					delete(m, x)
				}
			},
			"takeFirst": func(t *rapid.T) {
				k := rapid.Int64Range(0, 10).Draw(t, "k")
				want := slices.Sorted(maps.Keys(m))
				want = want[:min(int64(len(want)), k)]
				require.Equal(t, From(want...).String(), s.First(k).String())
				require.Equal(t, From(want...).String(), s.TakeFirst(k).String())
				for _, x := range want {
					delete(m, x)
				}
			},
			"": func(t *rapid.T) {
				requireSame(t, m, s)
				x := value.Draw(t, "look")
				require.Equal(t, m[x], s.Contains(x))
				next, ok := s.Next(x)
				for want := x; want <= 41; want++ {
					if m[want] {
						require.True(t, ok)
						require.Equal(t, want, next)
						break
					}
					require.False(t, ok && next <= want)
				}
				back, err := Parse(s.String())
				require.NoError(t, err)
				require.True(t, back.Equal(s))
			},
		})
	})
}

// TestAlgebra holds the operations on two sets to those on maps.
func TestAlgebra(t *testing.T) {
	t.Parallel()
	set := rapid.Custom(func(t *rapid.T) Set {
		return From(rapid.SliceOfN(rapid.Int64Range(0, 30), 0, 25).Draw(t, "values")...)
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := set.Draw(t, "a"), set.Draw(t, "b")
		union, both, minus := model{}, model{}, model{}
		for x := int64(0); x <= 30; x++ {
			if a.Contains(x) || b.Contains(x) {
				union[x] = true
			}
			if a.Contains(x) && b.Contains(x) {
				both[x] = true
			}
			if a.Contains(x) && !b.Contains(x) {
				minus[x] = true
			}
		}
		requireSame(t, union, a.Union(b))
		requireSame(t, both, a.Intersect(b))
		requireSame(t, minus, a.Minus(b))
		require.Equal(t, len(minus) == 0, b.Covers(a))
	})
}

func TestCopiesAreIndependent(t *testing.T) {
	t.Parallel()
	a := Of(0, 9)
	b := a
	b.Add(10)
	c := b
	c.Remove(5)
	c.Add(12)
	a.TakeFirst(3)
	require.Equal(t, "3-9", a.String())
	require.Equal(t, "0-10", b.String())
	require.Equal(t, "0-4,6-10,12", c.String())
}

func TestEnds(t *testing.T) {
	t.Parallel()
	var s Set
	_, ok := s.Min()
	require.False(t, ok)
	_, ok = s.Max()
	require.False(t, ok)
	s = Of(0, MaxValue)
	require.Equal(t, int64(MaxValue)+1, s.Len())
	s.Add(MaxValue)
	s.Remove(7)
	low, _ := s.Min()
	high, _ := s.Max()
	require.Equal(t, []int64{0, MaxValue, 2}, []int64{low, high, int64(s.Spans())})
	require.True(t, Of(3, 2).IsEmpty())
	require.Panics(t, func() { s.Add(-1) })
	require.Panics(t, func() { Of(0, MaxValue+1) })
	require.Panics(t, func() { From(-1) })
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		",", "1,", ",1", "1,,2", " 1", "1 ", "+1", "-1", "01", "0-", "-", "1-1", "2-1", "1-2-3", "2,1", "1,2", "1-3,4",
		"1-3,2-5", "1,1", "0x1", "1e3", "٣", "9223372036854775807", "4611686018427387904", "99999999999999999999", "1-99999999999999999999",
	} {
		_, err := Parse(text)
		require.ErrorIs(t, err, ErrSyntax, "%q", text)
	}
}

func TestMarshals(t *testing.T) {
	t.Parallel()
	type record struct{ S Set }
	for _, want := range []record{{}, {Of(0, 811)}, {From(1, 3, 4, 5, 1<<40)}} {
		text, err := json.Marshal(want)
		require.NoError(t, err)
		require.JSONEq(t, `{"S":"`+want.S.String()+`"}`, string(text))
		var got record
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, want.S.String(), got.S.String())

		var b bytes.Buffer
		require.NoError(t, gob.NewEncoder(&b).Encode(want))
		got = record{}
		require.NoError(t, gob.NewDecoder(&b).Decode(&got))
		require.Equal(t, want.S.String(), got.S.String())
	}
	s := Of(1, 2)
	require.Error(t, s.UnmarshalText([]byte("2,1")))
	require.Equal(t, "1-2", s.String(), "a refused text changes nothing")
}

// FuzzParse: whatever is accepted is what would have been written.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "0", "0-811,815-817", "1,3,5-7", "7-", "4611686018427387903", "1,2", "a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		require.Equal(t, text, s.String())
		require.GreaterOrEqual(t, s.Len(), int64(s.Spans()))
	})
}

// BenchmarkTake is what a take does to a set of a hundred million positions.
func BenchmarkTake(b *testing.B) {
	for b.Loop() {
		s := Of(0, 100_000_000)
		s.TakeFirst(10)
		s.RemoveRange(50, 60)
	}
}
