// Package membership says who takes part in a job and who owns which shard.
// It keeps two kinds of record, both below the job's prefix:
//
//	pservers/<name>, trainers/<name>   a registration, under its process's lease
//	owners                             for each shard its owner and generation
//
// # Registration
//
// A process is its incarnation, a UUID; the name only says which seat it takes
// and may be taken over. Register writes the registration under a new lease,
// and a Member keeps the lease alive until Close. A lease has three states, by
// the member's own clock:
//
//   - alive: an answered keep-alive was sent less than TTL−Margin ago, so the
//     store cannot have ended the lease. Alive reports it and is cheap; a
//     process asks it before it does anything that only a member may do.
//   - unknown: no keep-alive has been answered for that long. Alive is false:
//     the process pauses. Keep-alives go on; if one is answered the lease never
//     ended and the process goes on as if nothing had happened.
//   - lost: the store says that lease or registration is gone, or that another
//     incarnation holds the name. Lost is closed and Err says which; a process
//     that was only forgotten (ErrLost) calls Register again under a new
//     incarnation, one that was superseded ends.
//
// A registration is changed by its own process only once, by Leave, so its mod
// revision is the condition "still mine" (Registered). A create revision would
// not do: a takeover overwrites the key. It is also the condition "still there,
// and not leaving" for whoever hands a shard over.
//
// # Takeover by name
//
// A process started under a registered name asks the predecessor's address who
// it is. If it answers as itself the newcomer is refused (ErrNameInUse), unless
// Takeover is set. If it refuses, answers as another or is silent for a second,
// one transaction overwrites the registration and, for a pserver, its entries
// in `owners` (generation+1) under the newcomer's lease; then the old lease is
// revoked. The predecessor, if it lives, learns that it is superseded from its
// keep-alive or its watch; what it does until then is fenced by `owners`.
//
// # Ownership
//
// `owners` is one record, changed only by compare-and-swap. A View is that
// record at one revision: views are never put together from separate reads.
// The generation of a shard grows by one whenever it gets an owner. Claim takes
// a shard only if the incarnation that held it is no longer registered. HandOver
// gives a shard away: only its owner can, and only to a pserver that is registered
// and not leaving. Both change the record in one transaction that compares it, and
// the registrations that they rely on. So a pserver that has said that it leaves
// owns from then on no more than it does at that moment.
//
// Errors: ErrNameInUse, SupersededError, ErrJobChanged and store.ErrHistory are
// fatal to the process; ErrLost asks for a new registration; ErrVersion means
// that a newer starfish wrote the record; all others are retryable and may hide
// a success, and every function here may be called again after them.
//
// Locks: Member.mu only, never held during a request.
package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// The roles, which are also the directories of registrations.
const (
	PServers = "pservers"
	Trainers = "trainers"
)

const (
	specKey       = "spec"
	ownersKey     = "owners"
	formatVersion = 1
)

var (
	// ErrNameInUse: a process that answers as itself is registered under the
	// name (exit code 2).
	ErrNameInUse = errors.New("name in use")
	// ErrLost: the registration ended without a successor; register again.
	ErrLost = errors.New("registration lost")
	// ErrJobChanged: the job's spec is gone or another one.
	ErrJobChanged = errors.New("the job was deleted or submitted anew")
	// ErrVersion: a record is of a format that this version does not know.
	ErrVersion = errors.New("unknown format version")
)

// SupersededError: another process took the name over (exit code 4).
type SupersededError struct {
	Name string
	By   Registration
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("superseded: the name %s was taken over by incarnation %s at %s",
		e.Name, e.By.Incarnation, orUnknown(e.By.Address))
}

func orUnknown(address string) string {
	if address == "" {
		return "an unknown address"
	}
	return address
}

// Registration is one registered process.
type Registration struct {
	Name        string
	Incarnation string
	Address     string
	Version     string
	Leaving     bool // it is stopping, and takes no shard any more
	// Stalled: a trainer whose work has come to a stand, though it lives.
	Stalled bool
	// MaxMemory is a pserver's memory limit in bytes; 0: none.
	MaxMemory int64
	Lease     store.LeaseID
	Revision  int64 // at which it was written
}

// registrationRecord is the value of a registration.
type registrationRecord struct {
	V           int    `json:"v"`
	Incarnation string `json:"incarnation"`
	Address     string `json:"address"`
	Version     string `json:"version"`
	Leaving     bool   `json:"leaving,omitempty"`
	MaxMemory   int64  `json:"max_memory,omitempty"`
	Stalled     bool   `json:"stalled,omitempty"`
}

func (r Registration) encode() []byte {
	return mustJSON(registrationRecord{formatVersion, r.Incarnation, r.Address, r.Version, r.Leaving, r.MaxMemory, r.Stalled})
}

// decodeRegistration reads a registration; the zero Registration for an absent key.
func decodeRegistration(kv store.KV) (Registration, error) {
	if !kv.Exists() {
		return Registration{}, nil
	}
	var r registrationRecord
	if err := decode(kv, &r, &r.V); err != nil {
		return Registration{}, err
	}
	return Registration{
		Name:        kv.Key[strings.LastIndexByte(kv.Key, '/')+1:],
		Incarnation: r.Incarnation,
		Address:     r.Address,
		Version:     r.Version,
		Leaving:     r.Leaving,
		Stalled:     r.Stalled,
		MaxMemory:   r.MaxMemory,
		Lease:       kv.Lease,
		Revision:    kv.ModRev,
	}, nil
}

// decode reads a record whose format version is v.
func decode(kv store.KV, record any, v *int) error {
	if err := json.Unmarshal(kv.Value, record); err != nil {
		return fmt.Errorf("read %s: %w", kv.Key, err)
	}
	if *v != formatVersion {
		return fmt.Errorf("read %s: version %d: %w", kv.Key, *v, ErrVersion)
	}
	return nil
}

func mustJSON(record any) []byte {
	b, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("membership: encode %T: %v", record, err)) // plain structs always encode
	}
	return b
}

// Roster is who is registered in one role at one revision.
type Roster struct {
	Revision int64
	Members  map[string]Registration // by name
}

// Incarnations maps each registered name to its incarnation.
func (r Roster) Incarnations() map[string]string {
	m := make(map[string]string, len(r.Members))
	for name, member := range r.Members {
		m[name] = member.Incarnation
	}
	return m
}

// Live is the set of the registered incarnations.
func (r Roster) Live() map[string]bool {
	m := make(map[string]bool, len(r.Members))
	for _, member := range r.Members {
		m[member.Incarnation] = true
	}
	return m
}

// revision of a name's registration; 0 if it is not registered.
func (r Roster) revision(name string) int64 { return r.Members[name].Revision }

// ReadRoster reads who is registered in role.
func ReadRoster(ctx context.Context, st store.Store, role string) (Roster, error) {
	start, end := span(role)
	kvs, rev, err := store.List(ctx, st, start, end)
	if err != nil {
		return Roster{}, fmt.Errorf("read the registered %s: %w", role, err)
	}
	return decodeRoster(rev, kvs)
}

// WatchRoster delivers who is registered in role, now and after each change.
// A reader that is slow gets the latest roster only. The channel is closed
// when ctx ends or the store's history went backwards. A roster that cannot be
// read is passed over.
func WatchRoster(ctx context.Context, st store.Store, role string) <-chan Roster {
	start, end := span(role)
	out := make(chan Roster, 1)
	go func() {
		defer close(out)
		_ = store.Follow(ctx, st, clock.System, start, end, func(s store.Snapshot) {
			kvs := make([]store.KV, 0, len(s.KVs))
			for _, kv := range s.KVs {
				kvs = append(kvs, kv)
			}
			if r, err := decodeRoster(s.Revision, kvs); err == nil {
				offer(out, r)
			}
		})
	}()
	return out
}

func decodeRoster(rev int64, kvs []store.KV) (Roster, error) {
	r := Roster{Revision: rev, Members: make(map[string]Registration, len(kvs))}
	for _, kv := range kvs {
		member, err := decodeRegistration(kv)
		if err != nil {
			return Roster{}, err
		}
		r.Members[member.Name] = member
	}
	return r, nil
}

func span(role string) (start, end string) { return role + "/", store.PrefixEnd(role + "/") }

// offer puts v into a channel of capacity 1 in place of what nobody has taken.
// There must be one sender only.
func offer[T any](out chan T, v T) {
	select {
	case <-out:
	default:
	}
	out <- v
}
