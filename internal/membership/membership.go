// Package membership keeps a process's registration in the store and the
// record of who owns which shard.
package membership

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// The roles, which are also the names of the directories of registrations.
const (
	PServers = "pservers"
	Trainers = "trainers"
)

var (
	// ErrNameInUse: the name is registered by a process that answers as itself (exit 2).
	ErrNameInUse = errors.New("name in use")
	// ErrLost: the lease ended; register again.
	ErrLost = errors.New("membership lost")
	// ErrJobChanged: the job's spec is gone or was submitted anew.
	ErrJobChanged = errors.New("the job was deleted or submitted anew")
)

// SupersededError: another incarnation holds the name (exit 4).
type SupersededError struct {
	Name string
	By   string
}

func (e *SupersededError) Error() string { return "superseded by " + e.By }

// Registration is the value of one registration.
type Registration struct {
	Name        string
	Incarnation string
	Address     string
	Version     string
	Lease       store.LeaseID
	Revision    int64
}

// Roster is who is registered in one role at one revision.
type Roster struct {
	Revision int64
	Members  map[string]Registration
}

// Incarnations maps each name to its incarnation, as PlanClaim wants it.
func (r Roster) Incarnations() map[string]string { return nil }

// Live is the set of registered incarnations.
func (r Roster) Live() map[string]bool { return nil }

// ReadRoster reads who is registered in role.
func ReadRoster(ctx context.Context, st store.Store, role string) (Roster, error) {
	return Roster{}, nil
}

// WatchRoster delivers the roster now and after each change.
func WatchRoster(ctx context.Context, st store.Store, role string) <-chan Roster { return nil }

// Config describes a registration.
type Config struct {
	Store store.Store
	// Clock defaults to clock.System.
	Clock clock.Clock
	// Role is PServers or Trainers.
	Role                   string
	Name, Address, Version string
	// Incarnation defaults to a new UUID.
	Incarnation string
	// Previous is the incarnation under which this process was a member
	// before (a lost lease); empty at its start.
	Previous string
	// TTL of the lease.
	TTL time.Duration
	// Margin, default TTL/5.
	Margin time.Duration
	// SpecRev is the create revision of `spec`.
	SpecRev int64
	// Takeover overwrites a predecessor even if it answers.
	Takeover bool
	// Probe asks the process at address who it is.
	Probe func(ctx context.Context, address string) (incarnation string, err error)
	// Extra adds to the transaction that takes over by name.
	Extra func(ctx context.Context, old Registration, incarnation string) ([]store.Cmp, []store.Op, error)
	Log   logrus.FieldLogger
}

// Member is a registration that is kept alive.
type Member struct{}

// Register registers.
func Register(ctx context.Context, c Config) (*Member, error) { return nil, nil }

// Name of the member.
func (m *Member) Name() string { return "" }

// Address of the member.
func (m *Member) Address() string { return "" }

// Incarnation of the member.
func (m *Member) Incarnation() string { return "" }

// Lease of the member.
func (m *Member) Lease() store.LeaseID { return 0 }

// Registered is the condition that the registration is still the member's own.
func (m *Member) Registered() store.Cmp { return store.Cmp{} }

// Alive tells whether the lease is certain not to have ended.
func (m *Member) Alive() bool { return false }

// Lost is closed when the registration is gone.
func (m *Member) Lost() <-chan struct{} { return nil }

// Err says why: nil, ErrLost or *SupersededError.
func (m *Member) Err() error { return nil }

// Close ends the registration.
func (m *Member) Close(ctx context.Context) error { return nil }
