package membership

import (
	"context"
	"fmt"
	"slices"

	"starfish/internal/store"
)

// Claim gives m those of shards that nobody holds: that have no owner, or
// whose owner's incarnation is not registered any more. It returns the view
// afterwards; Mine and View.Generation say what m has got. Shards that m owns
// already or that others hold are left as they are, so Claim may be repeated
// after an error. ErrLost or *SupersededError: m is not registered any more.
func Claim(ctx context.Context, st store.Store, m *Member, specRev int64, shards []int) (View, error) {
	for {
		v, roster, err := ReadClaims(ctx, st)
		if err != nil {
			return View{}, fmt.Errorf("claim: %w", err)
		}
		t, next := claim(v, roster, m, specRev, shards)
		if len(t.Then) == 0 {
			return v, nil
		}
		r, err := st.Txn(ctx, t)
		switch {
		case err != nil:
			return View{}, fmt.Errorf("claim: %w", err)
		case r.Succeeded:
			next.Revision = r.Revision
			return next, nil
		}
		if err := m.judge(r.First(0)); err != nil {
			return View{}, fmt.Errorf("claim: %w", err)
		}
		if r.First(1).CreateRev != specRev {
			return View{}, fmt.Errorf("claim: %w", ErrJobChanged)
		}
	}
}

// claim is the transaction that claims what is free of shards, and the view
// after it; nothing to do if it has no operations.
func claim(v View, roster Roster, m *Member, specRev int64, shards []int) (store.Txn, View) {
	if len(shards) == 0 {
		return store.Txn{}, v
	}
	v = v.Sized(slices.Max(shards) + 1)
	guards := map[string]bool{}
	t := store.Txn{If: []store.Cmp{m.Registered(), store.Created(specKey, specRev), v.Guard()}}
	var free []int
	for _, i := range shards {
		old := v.Shards[i]
		if old.Owned() && roster.Members[old.Name].Incarnation == old.Incarnation {
			continue
		}
		if old.Owned() && old.Name != m.Name() && !guards[old.Name] {
			if len(t.If) == store.MaxOps {
				continue // the next claim takes it
			}
			guards[old.Name] = true
			t.If = append(t.If, store.Unchanged(PServers+"/"+old.Name, roster.revision(old.Name)))
		}
		free = append(free, i)
	}
	if len(free) == 0 {
		return store.Txn{}, v
	}
	next := v.with(m.c.me(), free)
	t.Then = []store.Op{next.put()}
	t.Else = []store.Op{store.Get(m.c.key()), store.Get(specKey)}
	return t, next
}

// Release gives up those of shards that m owns, in an orderly stop: generation
// and Listed stay. It may be repeated after an error.
func Release(ctx context.Context, st store.Store, m *Member, shards []int) (View, error) {
	for {
		v, err := ReadView(ctx, st)
		if err != nil {
			return View{}, fmt.Errorf("release: %w", err)
		}
		held := slices.DeleteFunc(Mine(v, m.Incarnation()), func(i int) bool { return !slices.Contains(shards, i) })
		if len(held) == 0 {
			return v, nil
		}
		next := v.without(held)
		r, err := st.Txn(ctx, store.Txn{If: []store.Cmp{v.Guard()}, Then: []store.Op{next.put()}})
		if err != nil {
			return View{}, fmt.Errorf("release: %w", err)
		}
		if r.Succeeded {
			next.Revision = r.Revision
			return next, nil
		}
	}
}

// PlanClaim says which shards me should claim now. It is deterministic, so
// pservers that see the same state claim different shards: each free shard
// goes, in order, to the registered pserver that holds the fewest by then,
// the first by name among equals.
//
//   - v must have all the job's shards (View.Sized); registered maps the names
//     of the registered pservers to their incarnations (Roster.Incarnations).
//   - While no shard has a living owner the job is just starting: nothing is
//     claimed until want pservers are registered, or waited says that me has
//     waited long enough for them.
//
// A pserver to which free shards were given and which does not claim them may
// be left out of registered by the caller, after a while.
func PlanClaim(v View, registered map[string]string, me Owner, want int, waited bool) []int {
	if registered[me.Name] != me.Incarnation || me.Incarnation == "" {
		return nil
	}
	held := make(map[string]int, len(registered))
	var free []int
	for i, o := range v.Shards {
		if o.Owned() && registered[o.Name] == o.Incarnation {
			held[o.Name]++
		} else {
			free = append(free, i)
		}
	}
	if len(free) == len(v.Shards) && len(registered) < want && !waited {
		return nil
	}
	var mine []int
	for _, i := range free {
		name := poorest(registered, held)
		held[name]++
		if name == me.Name {
			mine = append(mine, i)
		}
	}
	return mine
}

func poorest(registered map[string]string, held map[string]int) string {
	best, found := "", false
	for name := range registered {
		if !found || held[name] < held[best] || held[name] == held[best] && name < best {
			best, found = name, true
		}
	}
	return best
}
