package membership

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPlanClaim(t *testing.T) {
	t.Parallel()
	// A shard is written as its owner's name; a capital is an incarnation that
	// is not registered any more, '.' is nobody.
	// Among the registered a capital is one that is leaving.
	const want = 3
	for _, c := range []struct {
		name       string
		shards     string
		registered string
		waited     bool
		claims     map[string][]int
	}{
		{"too few at the start", "....", "ab", false, nil},
		{"all are there", "....", "abc", false, map[string][]int{"a": {0, 3}, "b": {1}, "c": {2}}},
		{"waited long enough", "....", "ab", true, map[string][]int{"a": {0, 2}, "b": {1, 3}}},
		{"more than expected", "....", "abcde", false, map[string][]int{"a": {0}, "b": {1}, "c": {2}, "d": {3}}},
		{"a whole job starts again", "ABAB", "ab", false, nil},
		{"and all are there", "ABAB", "abc", false, map[string][]int{"a": {0, 3}, "b": {1}, "c": {2}}},
		{"one died", "aBab", "ab", false, map[string][]int{"b": {1}}},
		{"one died and its successor is there", "aBac", "abc", false, map[string][]int{"b": {1}}},
		{"one died and left two", "aabbCC", "ab", false, map[string][]int{"a": {4}, "b": {5}}},
		{"nothing is free", "abab", "abc", true, nil},
		{"a late starter", "aa..", "ab", false, map[string][]int{"b": {2, 3}}},
		{"no shards", "", "abc", true, nil},
		{"one that leaves keeps what it has, and gets nothing", "a.b.", "Ab", false, map[string][]int{"b": {1, 3}}},
		{"all are leaving", "a.", "AB", false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := drawView(c.shards)
			r := drawRoster(c.registered)
			for name, member := range r.Members {
				me := Owner{Name: name, Incarnation: member.Incarnation}
				require.Equal(t, c.claims[name], PlanClaim(v, r, me, want, c.waited), name)
			}
		})
	}
	v := drawView("....")
	require.Nil(t, PlanClaim(v, drawRoster("a"), Owner{Name: "a", Incarnation: "old"}, 1, true),
		"a superseded one claims nothing")
	require.Nil(t, PlanClaim(v, drawRoster("a"), Owner{Name: "b"}, 1, true),
		"nor does one that is not registered")
}

func incarnationOf(name rune) string { return string(name) + "1" }

// drawRoster registers names; one of a capital is leaving.
func drawRoster(names string) Roster {
	r := Roster{Members: map[string]Registration{}}
	for _, name := range names {
		leaving := name < 'a'
		if leaving {
			name += 'a' - 'A'
		}
		r.Members[string(name)] = Registration{Name: string(name), Incarnation: incarnationOf(name), Leaving: leaving}
	}
	return r
}

func drawView(shards string) View {
	var v View
	for _, name := range shards {
		switch {
		case name == '.':
			v.Shards = append(v.Shards, Owner{})
		case name < 'a':
			v.Shards = append(v.Shards, Owner{Name: string(name + 'a' - 'A'), Incarnation: "gone", Generation: 1})
		default:
			v.Shards = append(v.Shards, Owner{Name: string(name), Incarnation: incarnationOf(name), Generation: 1})
		}
	}
	return v
}

// Whatever the state is: together the plans cover every free shard once, and
// touch nothing else; carried out one by one in any order, each planned anew,
// they end with the same owners.
func TestPlansFitTogether(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 1, 5, rapid.ID).Draw(t, "names")
		r := drawRoster(strings.Join(names, ""))
		registered := r.Incarnations()
		v := View{Shards: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Owner {
			name := rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"}).Draw(t, "owner")
			if name == "" {
				return Owner{}
			}
			return Owner{Name: name, Incarnation: fmt.Sprint(name, rapid.IntRange(0, 1).Draw(t, "life"))}
		}), 1, 20).Draw(t, "shards")}
		free := map[int]bool{}
		for i, o := range v.Shards {
			free[i] = registered[o.Name] != o.Incarnation || !o.Owned()
		}

		atOnce := v
		for _, name := range names {
			me := Owner{Name: name, Incarnation: registered[name]}
			plan := PlanClaim(v, r, me, 0, false)
			for _, i := range plan {
				require.True(t, free[i], "shard %d is not free, or is planned twice", i)
				free[i] = false
			}
			atOnce = atOnce.with(me, plan)
		}
		for i, left := range free {
			require.False(t, left, "nobody claims shard %d", i)
		}
		oneByOne := v
		for _, name := range rapid.Permutation(names).Draw(t, "order") {
			me := Owner{Name: name, Incarnation: registered[name]}
			oneByOne = oneByOne.with(me, PlanClaim(oneByOne, r, me, 0, false))
		}
		require.Empty(t, oneByOne.Free())
		require.Equal(t, atOnce, oneByOne)
	})
}
