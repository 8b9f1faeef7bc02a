package membership

import (
	"context"

	"starfish/internal/store"
)

// Owner is one shard's entry in the record `owners`. An empty Incarnation
// means that nobody owns the shard.
type Owner struct {
	Name        string `json:"name,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Address     string `json:"address,omitempty"`
	Generation  int64  `json:"generation"`
	Listed      bool   `json:"listed"`
}

// View is the record `owners` at one revision: Revision is its mod revision.
type View struct {
	Revision int64
	Shards   []Owner
}

// InitialOwners is the put of a record of free shards, for the transaction that creates a job.
func InitialOwners(shards int) store.Op { return store.Op{} }

// DecodeView reads the record.
func DecodeView(kv store.KV) (View, error) { return View{}, nil }

// Encode is the record's value.
func (v View) Encode() []byte { return nil }

// ReadView reads the record.
func ReadView(ctx context.Context, st store.Store) (View, error) { return View{}, nil }

// ReadClaims reads the record and the registered pservers at one revision.
func ReadClaims(ctx context.Context, st store.Store) (View, Roster, error) {
	return View{}, Roster{}, nil
}

// WatchView delivers each later view.
func WatchView(ctx context.Context, st store.Store, from View) <-chan View { return nil }

// Guard is the condition that the record has not changed.
func (v View) Guard() store.Cmp { return store.Unchanged("owners", v.Revision) }

// Sized is v with at least n shards; the added ones are free.
func (v View) Sized(n int) View { return v }

// Mine lists the shards owned by an incarnation.
func Mine(v View, incarnation string) []int { return nil }

// Generation of a shard that incarnation owns; 0 if it does not own it.
func (v View) Generation(shard int, incarnation string) int64 { return 0 }

// Claim claims those of shards that are free.
func Claim(ctx context.Context, st store.Store, m *Member, specRev int64, shards []int) (View, error) {
	return View{}, nil
}

// Release gives up shards.
func Release(ctx context.Context, st store.Store, m *Member, shards []int) (View, error) {
	return View{}, nil
}

// PlanClaim says which shards to claim now.
func PlanClaim(v View, registered map[string]string, me Owner, want int, waited bool) []int {
	return nil
}
