package membership

import (
	"context"
	"fmt"
	"slices"
	"time"

	"starfish/internal/failpoint"
	"starfish/internal/store"
)

// Move is a change of owner that the present owner makes itself.
type Move struct {
	Shard int
	// To is the name of a registered pserver that is not leaving; empty gives
	// the shard up to whoever claims it.
	To string
	// Paused is how long the shard has not been served yet.
	Paused time.Duration
}

// HandOver changes the owners of shards that m owns, in one transaction: each
// receiver owns its shards from that revision on, with the next generation. A
// receiver gets nothing unless it is registered at that revision and not leaving.
//
// plan says what is to be done, by the owners and pservers at one revision; it is
// asked again after each conflict. Moves of shards that m does not own, and those
// to pservers that cannot be receivers, are left out. So HandOver may be repeated
// after an error, and its view tells what has become of it: a move whose answer
// was lost is not m's to make any more.
func HandOver(ctx context.Context, st store.Store, m *Member, plan func(View, Roster) []Move) (View, error) {
	for {
		v, roster, err := ReadClaims(ctx, st)
		if err != nil {
			return View{}, fmt.Errorf("hand over: %w", err)
		}
		t, next := handOver(v, roster, m, plan(v, roster))
		if len(t.Then) == 0 {
			return v, nil
		}
		failpoint.Hit(failpoint.BeforeHandOver)
		r, err := st.Txn(ctx, t)
		if err != nil {
			return View{}, fmt.Errorf("hand over: %w", err)
		}
		if r.Succeeded {
			failpoint.Hit(failpoint.AfterHandOver)
			next.Revision = r.Revision
			return next, nil
		}
	}
}

// handOver is the transaction for moves, and the view after it; nothing to do
// if it has no operations.
func handOver(v View, roster Roster, m *Member, moves []Move) (store.Txn, View) {
	t := store.Txn{If: []store.Cmp{v.Guard()}}
	next := View{Shards: slices.Clone(v.Shards)}
	guarded := map[string]bool{}
	changed := false
	for _, move := range moves {
		if v.Generation(move.Shard, m.Incarnation()) == 0 {
			continue
		}
		old := v.Shards[move.Shard]
		if move.To == "" {
			next.Shards[move.Shard] = old.free()
			changed = true
			continue
		}
		to, ok := roster.Members[move.To]
		if !ok || to.Leaving || to.Incarnation == m.Incarnation() {
			continue
		}
		if !guarded[move.To] {
			if len(t.If) == store.MaxOps {
				continue
			}
			guarded[move.To] = true
			t.If = append(t.If, store.Unchanged(PServers+"/"+move.To, to.Revision))
		}
		o := old.to(Owner{Name: to.Name, Incarnation: to.Incarnation, Address: to.Address})
		o.HandOvers++
		o.From, o.Paused = m.Name(), move.Paused.Seconds()
		next.Shards[move.Shard] = o
		changed = true
	}
	if !changed {
		return store.Txn{}, v
	}
	t.Then = []store.Op{next.put()}
	return t, next
}

// PlanBalance says which of its shards me should hand over now, and to whom:
// while the richest registered pserver holds at least 2 shards more than the
// poorest, the richest hands one over to the poorest, the first by name among
// equals. The moves of the others are thought of and left out, so pservers that
// see the same state may act at once. At most `most` moves are planned, of the last
// shards that me owns.
//
// Nothing is planned while a shard has no living owner (claims come first) or a
// pserver is leaving (it hands over what it has). Uneven says, for the state at
// which a move is made, whether it is still right: each move for which it holds
// makes the sum of the squares of the holdings smaller, so moves come to an end,
// whoever makes them and in whatever order, and no shard goes to and fro.
func PlanBalance(v View, r Roster, me Owner, most int) []Move {
	if r.Members[me.Name].Incarnation != me.Incarnation || me.Incarnation == "" {
		return nil
	}
	held := r.held(v)
	sum := 0
	for name, n := range held {
		if r.Members[name].Leaving {
			return nil
		}
		sum += n
	}
	if sum < len(v.Shards) {
		return nil
	}
	mine := Mine(v, me.Incarnation)
	var moves []Move
	for len(moves) < most {
		from, to := richest(held), poorest(held)
		if held[from]-held[to] < 2 {
			break
		}
		held[from]--
		held[to]++
		if from == me.Name {
			moves = append(moves, Move{Shard: mine[len(mine)-1-len(moves)], To: to})
		}
	}
	return moves
}

// Uneven tells whether a pserver holds at least 2 shards more than another.
func Uneven(v View, r Roster, from, to string) bool {
	held := r.held(v)
	return held[from]-held[to] >= 2
}

// PlanLeave says who gets the shards of me, which is leaving: each one goes to
// the pserver that holds the fewest by then, of those that are registered, stay,
// and are in willing; to nobody if there is none.
func PlanLeave(v View, r Roster, me Owner, willing map[string]bool) []Move {
	held := r.held(v)
	for name, member := range r.Members {
		if member.Leaving || !willing[name] || name == me.Name {
			delete(held, name)
		}
	}
	var moves []Move
	for _, shard := range Mine(v, me.Incarnation) {
		to := poorest(held)
		if to != "" {
			held[to]++
		}
		moves = append(moves, Move{Shard: shard, To: to})
	}
	return moves
}

// held counts for each registered pserver the shards that it owns.
func (r Roster) held(v View) map[string]int {
	held := make(map[string]int, len(r.Members))
	for name := range r.Members {
		held[name] = 0
	}
	for _, o := range v.Shards {
		if o.Owned() && r.Members[o.Name].Incarnation == o.Incarnation {
			held[o.Name]++
		}
	}
	return held
}

// richest is the first by name of those that hold the most, "" of nobody.
func richest(held map[string]int) string {
	best, found := "", false
	for name, n := range held {
		if !found || n > held[best] || n == held[best] && name < best {
			best, found = name, true
		}
	}
	return best
}

// poorest is the first by name of those that hold the fewest, "" of nobody.
func poorest(held map[string]int) string {
	best, found := "", false
	for name, n := range held {
		if !found || n < held[best] || n == held[best] && name < best {
			best, found = name, true
		}
	}
	return best
}
