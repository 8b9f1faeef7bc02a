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

// PlanClaim says which shards me should claim now. It is deterministic, so
// pservers that see the same state claim different shards: each free shard
// goes, in order, to the registered pserver that holds the fewest by then,
// the first by name among equals.
//
//   - v must have all the job's shards (View.Sized). A pserver that is leaving
//     keeps what it holds, and gets nothing.
//   - While no shard has a living owner the job is just starting: nothing is
//     claimed until want pservers are registered, or waited says that me has
//     waited long enough for them.
//
// A pserver to which free shards were given and which does not claim them may
// be left out of r by the caller, after a while.
func PlanClaim(v View, r Roster, me Owner, want int, waited bool) []int {
	registered := r.Incarnations()
	if registered[me.Name] != me.Incarnation || me.Incarnation == "" {
		return nil
	}
	held := r.held(v)
	var free []int
	for i, o := range v.Shards {
		if o.Owned() && registered[o.Name] == o.Incarnation {
			continue
		}
		free = append(free, i)
	}
	if len(free) == len(v.Shards) && len(registered) < want && !waited {
		return nil
	}
	for name, member := range r.Members {
		if member.Leaving {
			delete(held, name)
		}
	}
	if len(held) == 0 {
		return nil
	}
	var mine []int
	for _, i := range free {
		name := poorest(held)
		held[name]++
		if name == me.Name {
			mine = append(mine, i)
		}
	}
	return mine
}
