package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"starfish/internal/store"
)

// moves is the plan to give shards to a pserver.
func moves(to string, shards ...int) func(View, Roster) []Move {
	return func(View, Roster) []Move {
		var all []Move
		for _, shard := range shards {
			all = append(all, Move{Shard: shard, To: to, Paused: 1500 * time.Millisecond})
		}
		return all
	}
}

func TestHandOver(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a, b := w.pserver("a"), w.pserver("b")
		w.claim(a, 0, 1, 2)
		w.claim(b, 3)
		listed := w.view()
		listed.Shards[0].Listed = true
		w.commit(listed.put())

		v, err := HandOver(t.Context(), w.st, a, moves("b", 0, 1, 3))
		require.NoError(t, err)
		require.Equal(t, w.view(), v)
		require.Equal(t, Owner{Name: "b", Incarnation: b.Incarnation(), Address: "b:1", Generation: 2, Listed: true,
			HandOvers: 1, From: "a", Paused: 1.5}, v.Shards[0])
		require.Equal(t, []int{0, 1, 3}, Mine(v, b.Incarnation()))
		require.Equal(t, int64(1), v.Generation(3, b.Incarnation()), "what is not a's is left alone")
		require.Equal(t, []int{2}, Mine(v, a.Incarnation()))

		again, err := HandOver(t.Context(), w.st, a, moves("b", 0, 1))
		require.NoError(t, err)
		require.Equal(t, v, again, "what was handed over is not a's to give any more")
		for _, nobody := range []string{"a", "c"} {
			again, err = HandOver(t.Context(), w.st, a, moves(nobody, 2))
			require.NoError(t, err)
			require.Equal(t, v, again, "to %s", nobody)
		}

		require.NoError(t, b.Close(t.Context()))
		require.Equal(t, Owner{Name: "a", Incarnation: a.Incarnation(), Address: "a:1", Generation: 3, Listed: true, HandOvers: 1},
			w.claim(a, 0).Shards[0], "a claim is no hand-over")
	})
}

func TestHandOverIsGuarded(t *testing.T) {
	for _, c := range []struct {
		name string
		act  func(w *world, receiver *Member)
	}{
		{"against the loss of the receiver", func(w *world, b *Member) { require.NoError(w.t, b.Close(w.t.Context())) }},
		{"against a receiver that leaves", func(w *world, b *Member) { require.NoError(w.t, b.Leave(w.t.Context())) }},
		{"against another process of its name", func(w *world, b *Member) {
			require.NoError(w.t, b.Close(w.t.Context()))
			require.NoError(w.t, w.pserver("b").Leave(w.t.Context()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulated(t, func(t *testing.T, w *world) {
				b := w.pserver("b")
				a := w.pserver("a")
				w.claim(a, 1)
				client := w.fake.Client("a")
				done := false
				client.Fail(func(op, key string) error {
					if op == "put" && key == ownersKey && !done {
						done = true
						c.act(w, b)
					}
					return nil
				})
				v, err := HandOver(t.Context(), client, a, moves("b", 1))
				require.NoError(t, err)
				require.True(t, done)
				require.Equal(t, int64(1), v.Generation(1, a.Incarnation()), "it is kept")
				require.Equal(t, w.view(), v)
			})
		})
	}
	t.Run("against another change", func(t *testing.T) {
		simulated(t, func(t *testing.T, w *world) {
			b := w.pserver("b")
			m := interposed(t, w, func() { w.claim(b, 3) })
			w.claim(m, 0)
			v, err := HandOver(t.Context(), m.c.Store, m, moves("b", 0))
			require.NoError(t, err)
			require.Equal(t, []int{0, 3}, Mine(v, b.Incarnation()))
		})
	})
}

// The answer to the transaction is lost: asked again, the shard has gone.
func TestAHandOverWhoseAnswerWasLost(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a, b := w.pserver("a"), w.pserver("b")
		w.claim(a, 0)
		client := w.fake.Client("a")
		client.FailAfter(func(op, _ string) error {
			if op == "put" {
				return errors.New("no answer")
			}
			return nil
		})
		_, err := HandOver(t.Context(), client, a, moves("b", 0))
		require.ErrorContains(t, err, "no answer")
		v, err := HandOver(t.Context(), client, a, moves("b", 0))
		require.NoError(t, err)
		require.Equal(t, int64(2), v.Generation(0, b.Incarnation()), "handed over once")
	})
}

func TestLeave(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a := w.pserver("a")
		require.NoError(t, a.Leave(t.Context()))
		require.True(t, w.roster().Members["a"].Leaving)
		require.Equal(t, a.Registered().Rev, w.roster().Members["a"].Revision)
		require.Equal(t, a.Lease(), w.roster().Members["a"].Lease)
		require.NoError(t, a.Leave(t.Context()), "it may be repeated")
		time.Sleep(time.Hour)
		require.True(t, a.Alive(), "it is a member until it closes")
		require.False(t, isLost(a))
		require.Equal(t, []int{0}, Mine(w.claim(a, 0), a.Incarnation()), "and owns what it owns")

		client := w.fake.Client("b")
		c := w.config("b")
		c.Store = client
		b := w.register(c)
		client.FailAfter(func(op, key string) error {
			if op == "put" && key == b.c.key() {
				return errors.New("no answer")
			}
			return nil
		})
		require.ErrorContains(t, b.Leave(t.Context()), "no answer")
		client.FailAfter(nil)
		require.NoError(t, b.Leave(t.Context()))
		require.Equal(t, b.Registered().Rev, w.roster().Members["b"].Revision)
		synctest.Wait()
		require.False(t, isLost(b), "its own change is no other process")

		w.commit(store.Delete(b.c.key()))
		require.ErrorIs(t, b.Leave(t.Context()), ErrLost)
	})
}

func TestStall(t *testing.T) {
	simulated(t, func(t *testing.T, w *world) {
		a := w.pserver("a")
		for _, stalled := range []bool{true, true, false} {
			require.NoError(t, a.Stall(t.Context(), stalled))
			require.Equal(t, stalled, w.roster().Members["a"].Stalled)
			require.Equal(t, a.Registered().Rev, w.roster().Members["a"].Revision)
			require.False(t, w.roster().Members["a"].Leaving)
		}
		synctest.Wait()
		require.False(t, isLost(a), "its own change is no other process")
		w.commit(store.Delete(a.c.key()))
		require.ErrorIs(t, a.Stall(t.Context(), true), ErrLost)
	})
}

func TestPlanBalance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		shards     string
		registered string
		most       int
		moves      map[string]string // by giver: shard and receiver, …
	}{
		{"even", "aabb", "ab", 9, nil},
		{"within one", "aaabb", "ab", 9, nil},
		{"a second one", "aaaa", "ab", 9, map[string]string{"a": "3b 2b"}},
		{"one at a time", "aaaa", "ab", 1, map[string]string{"a": "3b"}},
		{"three more", "aaaaaaaa", "abcd", 9, map[string]string{"a": "7b 6c 5d 4b 3c 2d"}},
		{"two givers", "aaaabbbb", "abcd", 9, map[string]string{"a": "3c 2c", "b": "7d 6d"}},
		{"claims come first", "aaaaCC", "ab", 9, nil},
		{"free shards too", "aaaa.", "ab", 9, nil},
		{"somebody leaves", "aaaa", "abC", 9, nil},
		{"I leave", "aaaa", "Ab", 9, nil},
		{"alone", "aaaa", "a", 9, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, r := drawView(c.shards), drawRoster(c.registered)
			for name, member := range r.Members {
				plan := PlanBalance(v, r, Owner{Name: name, Incarnation: member.Incarnation}, c.most)
				require.Equal(t, c.moves[name], drawMoves(plan), name)
			}
		})
	}
	require.Empty(t, PlanBalance(drawView("aaaa"), drawRoster("ab"), Owner{Name: "a", Incarnation: "old"}, 9))
}

func TestPlanLeave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		shards     string
		registered string
		unwilling  string
		moves      string
	}{
		{"to the poorest", "aaaabbc", "Abc", "", "0c 1b 2c 3b"},
		{"not to one that leaves too", "aab", "ABc", "", "0c 1c"},
		{"not to one that is silent", "aabbb", "Abc", "c", "0b 1b"},
		{"nobody stays", "aab", "AB", "", "0 1"},
		{"it has nothing", "bb", "Ab", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := drawRoster(c.registered)
			willing := map[string]bool{}
			for name := range r.Members {
				willing[name] = name != c.unwilling
			}
			me := Owner{Name: "a", Incarnation: incarnationOf('a')}
			require.Equal(t, c.moves, drawMoves(PlanLeave(drawView(c.shards), r, me, willing)))
		})
	}
}

func drawMoves(plan []Move) string {
	text := ""
	for i, m := range plan {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprint(m.Shard) + m.To
	}
	return text
}

// Whatever the holdings are, and whoever acts first on a plan that is old by then,
// by his own moves, those of others in the same round, or also those of the rounds
// before: the moves come to an end, balanced within one, and each one makes the sum
// of the squares of the holdings smaller. With plans that are not that old no shard
// moves twice, and nobody is both giver and receiver.
func TestBalanceComesToAnEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "pservers")]
		r := drawRoster(strings.Join(names, ""))
		v := View{Shards: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Owner {
			name := rapid.SampledFrom(names).Draw(t, "owner")
			return Owner{Name: name, Incarnation: name + "1", Generation: 1}
		}), 1, 40).Draw(t, "shards")}
		most, old := rapid.IntRange(1, 4).Draw(t, "most"), rapid.Bool().Draw(t, "old plans")
		gave, got, moved := map[string]bool{}, map[string]bool{}, map[int]bool{}
		plan := func(v View, name string) []Move {
			return PlanBalance(v, r, Owner{Name: name, Incarnation: name + "1"}, most)
		}
		act := func(name string, moves []Move) {
			for _, m := range moves {
				if v.Shards[m.Shard].Name != name || !Uneven(v, r, name, m.To) {
					continue
				}
				if !old {
					require.False(t, moved[m.Shard], "shard %d goes to and fro", m.Shard)
				}
				before := squares(r.held(v))
				moved[m.Shard], gave[name], got[m.To] = true, true, true
				v = View{Shards: slices.Clone(v.Shards)}
				v.Shards[m.Shard] = v.Shards[m.Shard].to(Owner{Name: m.To, Incarnation: m.To + "1"})
				require.Less(t, squares(r.held(v)), before)
			}
		}
		views := []View{v}
		for rounds := 0; ; rounds++ {
			require.LessOrEqual(t, rounds, len(v.Shards), "it does not end")
			now, any := v, false
			for _, name := range names {
				any = any || len(plan(now, name)) > 0
			}
			if !any {
				break
			}
			order := rapid.Permutation(names).Draw(t, "order")
			for _, name := range order {
				act(name, plan(now, name))
			}
			views = append(views, v)
			for _, name := range order {
				if old {
					act(name, plan(rapid.SampledFrom(views).Draw(t, "view"), name))
				}
			}
		}
		held := r.held(v)
		require.LessOrEqual(t, held[richest(held)]-held[poorest(held)], 1)
		for name := range gave {
			require.False(t, !old && got[name], "%s gives and gets", name)
		}
	})
}

// A move is judged by what is the case when it is made, whatever was planned.
func TestUneven(t *testing.T) {
	t.Parallel()
	for shards, uneven := range map[string]bool{"": false, "a": false, "aa": true, "ab": false, "aab": false, "aaab": true, "abb": false, "bbb": false, "aaAA": true, "aAA": false} {
		require.Equal(t, uneven, Uneven(drawView(shards), drawRoster("ab"), "a", "b"), shards)
	}
}

func squares(held map[string]int) (sum int) {
	for _, n := range held {
		sum += n * n
	}
	return sum
}
