package membership

import (
	"context"
	"fmt"
	"slices"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// Owner is one shard's entry in `owners`. An empty Incarnation means that
// nobody owns the shard; generation and Listed outlive every owner,
// and so does HandOvers.
type Owner struct {
	Name        string `json:"name,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Address     string `json:"address,omitempty"`
	// Generation is the number of ownerships that the shard has had.
	Generation int64 `json:"generation"`
	// Listed: the shard has ever had a checkpoint.
	Listed bool `json:"listed,omitempty"`
	// HandOvers is how often the shard was handed over by a living owner.
	HandOvers int64 `json:"handovers,omitempty"`
	// From is the pserver that has handed the shard over to this owner, and
	// Paused for how many seconds it had not been served by then. Empty if the
	// shard was claimed.
	From   string  `json:"from,omitempty"`
	Paused float64 `json:"paused,omitempty"`
}

// free is o after its owner has given the shard up.
func (o Owner) free() Owner {
	return Owner{Generation: o.Generation, Listed: o.Listed, HandOvers: o.HandOvers}
}

// to is o after next, of which only name, incarnation and address count, has
// got the shard.
func (o Owner) to(next Owner) Owner {
	return Owner{
		Name: next.Name, Incarnation: next.Incarnation, Address: next.Address,
		Generation: o.Generation + 1, Listed: o.Listed, HandOvers: o.HandOvers,
	}
}

// Owned tells whether the shard has an owner.
func (o Owner) Owned() bool { return o.Incarnation != "" }

// View is the record `owners` at one revision: the routing table. Revision is
// the record's mod revision, 0 if there is none yet.
type View struct {
	Revision int64
	Shards   []Owner
}

// ownersRecord is the value of `owners`.
type ownersRecord struct {
	V      int     `json:"v"`
	Shards []Owner `json:"shards"`
}

// InitialOwners is the put of a record of free shards, for the transaction
// that creates a job.
func InitialOwners(shards int) store.Op { return View{Shards: make([]Owner, shards)}.put() }

// DecodeView reads the record; the zero View for an absent key.
func DecodeView(kv store.KV) (View, error) {
	if !kv.Exists() {
		return View{}, nil
	}
	var r ownersRecord
	if err := decode(kv, &r, &r.V); err != nil {
		return View{}, err
	}
	return View{Revision: kv.ModRev, Shards: r.Shards}, nil
}

// Encode is the record's value.
func (v View) Encode() []byte { return mustJSON(ownersRecord{formatVersion, v.Shards}) }

func (v View) put() store.Op { return store.Put(ownersKey, v.Encode(), 0) }

// Guard is the condition that no shard has changed hands since the view.
func (v View) Guard() store.Cmp { return store.Unchanged(ownersKey, v.Revision) }

// Sized is v with at least n shards; those that are added are free.
func (v View) Sized(n int) View {
	v.Shards = slices.Clone(v.Shards)
	for len(v.Shards) < n {
		v.Shards = append(v.Shards, Owner{})
	}
	return v
}

// Free lists the shards that have no owner.
func (v View) Free() []int {
	return v.where(func(o Owner) bool { return !o.Owned() })
}

// Mine lists the shards that an incarnation owns.
func Mine(v View, incarnation string) []int {
	if incarnation == "" {
		return nil
	}
	return v.where(func(o Owner) bool { return o.Incarnation == incarnation })
}

// Generation of a shard if incarnation owns it, else 0.
func (v View) Generation(shard int, incarnation string) int64 {
	if shard < 0 || shard >= len(v.Shards) || !v.Shards[shard].Owned() || v.Shards[shard].Incarnation != incarnation {
		return 0
	}
	return v.Shards[shard].Generation
}

func (v View) where(holds func(Owner) bool) []int {
	var shards []int
	for i, o := range v.Shards {
		if holds(o) {
			shards = append(shards, i)
		}
	}
	return shards
}

// with is v after owner has got shards.
func (v View) with(owner Owner, shards []int) View {
	v.Shards = slices.Clone(v.Shards)
	for _, i := range shards {
		v.Shards[i] = v.Shards[i].to(owner)
	}
	return v
}

// ReadView reads the record.
func ReadView(ctx context.Context, st store.Store) (View, error) {
	kv, err := store.Lookup(ctx, st, ownersKey)
	if err != nil {
		return View{}, fmt.Errorf("read the owners: %w", err)
	}
	return DecodeView(kv)
}

// ReadClaims reads the record and the registered pservers at one revision:
// what PlanClaim needs.
func ReadClaims(ctx context.Context, st store.Store) (View, Roster, error) {
	start, end := span(PServers)
	r, err := store.Read(ctx, st, store.Get(ownersKey), store.Range(start, end, 0))
	if err != nil {
		return View{}, Roster{}, fmt.Errorf("read owners and pservers: %w", err)
	}
	v, err := DecodeView(r.First(0))
	if err != nil {
		return View{}, Roster{}, err
	}
	roster, err := decodeRoster(r.Revision, r.KVs[1])
	return v, roster, err
}

// WatchView delivers the views after from, each newer than the one before. A
// reader that is slow gets the latest only. It lists again after any break.
// The channel is closed when ctx ends or the store's history went backwards. A
// record that cannot be read is passed over: ReadView tells why.
func WatchView(ctx context.Context, st store.Store, from View) <-chan View {
	out := make(chan View, 1)
	last := from.Revision
	go func() {
		defer close(out)
		_ = store.Follow(ctx, st, clock.System, ownersKey, "", func(s store.Snapshot) {
			v, err := DecodeView(s.KVs[ownersKey])
			if err == nil && v.Revision != last {
				last = v.Revision
				offer(out, v)
			}
		})
	}()
	return out
}
