package membership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"starfish/internal/clock"
	"starfish/internal/store"
)

const (
	// silence is how long a predecessor may take to say who it is.
	silence       = time.Second
	registerPause = 250 * time.Millisecond
	// cleanupTimeout bounds what is done for tidiness only.
	cleanupTimeout = 2 * time.Second
	minTTL         = time.Second
)

// Config describes a registration.
type Config struct {
	// Store of the job (keys relative to the job's prefix).
	Store store.Store
	// Clock by which the lease's remaining time is counted; default clock.System.
	Clock clock.Clock
	// Role is PServers or Trainers.
	Role string
	// Name of the seat; without '/'.
	Name string
	// Address at which others reach the process; may be empty for a trainer.
	Address string
	// Version of the program, for operators.
	Version string
	// MaxMemory is the memory limit of a pserver in bytes; 0: none.
	MaxMemory int64
	// Incarnation of the process; default: a new UUID. A process that already
	// answers to probes under an incarnation passes it here.
	Incarnation string
	// Previous is the incarnation under which this process was a member until
	// its lease was lost; empty at the process's start. With it, a name that
	// is registered by anybody else means *SupersededError.
	Previous string
	// TTL of the lease, in whole seconds, at least 1 s. The store may give more.
	TTL time.Duration
	// Margin by which the member stops before the lease can end; default
	// a fifth of the TTL. It covers what lies between a check of Alive and
	// the effect that the check protects.
	Margin time.Duration
	// SpecRev is the create revision of the job's spec: the registration is
	// refused with ErrJobChanged if it is another by now.
	SpecRev int64
	// Takeover overwrites a predecessor even if it answers as itself.
	Takeover bool
	// Probe asks the process at address for its incarnation; nil: nobody
	// ever answers.
	Probe func(ctx context.Context, address string) (incarnation string, err error)
	// Extra adds conditions and operations to the transaction that takes over
	// from old; nil: none. It may be called more than once.
	Extra func(ctx context.Context, old Registration, incarnation string) ([]store.Cmp, []store.Op, error)
	// Log; default: nothing.
	Log logrus.FieldLogger
}

// withDefaults fills what was left out and reports all mistakes.
func (c Config) withDefaults() (Config, error) {
	if c.Clock == nil {
		c.Clock = clock.System
	}
	if c.Incarnation == "" {
		c.Incarnation = uuid.NewString()
	}
	if c.Margin == 0 {
		c.Margin = c.TTL / 5
	}
	if c.Log == nil {
		nop := logrus.New()
		nop.SetOutput(io.Discard)
		c.Log = nop
	}
	c.Log = c.Log.WithFields(logrus.Fields{"name": c.Name, "incarnation": c.Incarnation})
	var errs []error
	if c.Store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if c.Role != PServers && c.Role != Trainers {
		errs = append(errs, fmt.Errorf("role %q", c.Role))
	}
	if c.Name == "" || strings.Contains(c.Name, "/") {
		errs = append(errs, fmt.Errorf("name %q: must not be empty or contain '/'", c.Name))
	}
	if c.TTL < minTTL {
		errs = append(errs, fmt.Errorf("TTL %v: must be at least %v", c.TTL, minTTL))
	}
	if c.Margin < 0 || c.Margin >= c.TTL {
		errs = append(errs, fmt.Errorf("margin %v: must be below the TTL %v", c.Margin, c.TTL))
	}
	if c.Incarnation == c.Previous {
		errs = append(errs, errors.New("a new registration needs a new incarnation"))
	}
	return c, errors.Join(errs...)
}

func (c Config) key() string { return c.Role + "/" + c.Name }

func (c Config) me() Owner {
	return Owner{Name: c.Name, Incarnation: c.Incarnation, Address: c.Address}
}

// Register registers the process and keeps the registration alive until
// Member.Close. While the store does not answer it tries again, until ctx
// ends; ctx does not bound the member's life.
func Register(ctx context.Context, c Config) (*Member, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	r := &registrar{Config: c}
	var last error // why the last attempt but the present one failed
	for {
		m, err := r.attempt(ctx)
		switch {
		case err == nil:
			return m, nil
		case fatal(err) || ctx.Err() != nil && last == nil:
			return nil, fmt.Errorf("register %s: %w", c.key(), err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("register %s: %w, after %w", c.key(), err, last)
		case last == nil:
			c.Log.WithError(err).Warn("cannot register yet, trying again")
		}
		last = err
		_ = clock.Sleep(ctx, c.Clock, registerPause) // the next attempt sees that ctx has ended
	}
}

// fatal tells the errors that no repetition heals.
func fatal(err error) bool {
	var superseded *SupersededError
	for _, sentinel := range []error{
		ErrNameInUse, ErrJobChanged, ErrVersion, errExtra, store.ErrHistory, store.ErrInvalid,
	} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return errors.As(err, &superseded)
}

// errExtra: the caller's Extra failed.
var errExtra = errors.New("prepare the takeover")

type registrar struct {
	Config

	// judged is the predecessor that has been found to be gone.
	judged string
}

// attempt registers under a new lease, or leaves nothing behind.
func (r *registrar) attempt(ctx context.Context) (*Member, error) {
	sent := r.Clock.Now()
	lease, ttl, err := r.Store.Grant(ctx, r.TTL)
	if err != nil {
		return nil, fmt.Errorf("get a lease: %w", err)
	}
	rev, err := r.write(ctx, lease)
	if err != nil {
		r.revoke(ctx, lease)
		return nil, err
	}
	return newMember(ctx, r.Config, lease, rev, sent, ttl), nil
}

// write puts the registration; it returns its revision.
func (r *registrar) write(ctx context.Context, lease store.LeaseID) (int64, error) {
	for {
		at, err := r.look(ctx)
		if err != nil {
			return 0, err
		}
		if err := r.mayOverwrite(ctx, at.old); err != nil {
			return 0, err
		}
		t, err := r.transaction(ctx, at, lease)
		if err != nil {
			return 0, err
		}
		res, err := r.Store.Txn(ctx, t)
		if err != nil {
			return 0, err
		}
		if !res.Succeeded {
			continue // somebody moved: look again
		}
		if at.old.Lease != 0 {
			r.Log.WithFields(logrus.Fields{"predecessor": at.old.Incarnation, "address": at.old.Address}).
				Info("took the name over")
			r.revoke(ctx, at.old.Lease)
		}
		return res.Revision, nil
	}
}

// situation is what a registration depends on, at one revision.
type situation struct {
	old  Registration
	view View
}

func (r *registrar) look(ctx context.Context) (situation, error) {
	res, err := store.Read(ctx, r.Store, store.Get(r.key()), store.Get(specKey), store.Get(ownersKey))
	if err != nil {
		return situation{}, err
	}
	if res.First(1).CreateRev != r.SpecRev {
		return situation{}, ErrJobChanged
	}
	old, err := decodeRegistration(res.First(0))
	if err != nil {
		return situation{}, err
	}
	view, err := DecodeView(res.First(2))
	if err != nil {
		return situation{}, err
	}
	return situation{old, view}, nil
}

// mayOverwrite decides about the predecessor.
func (r *registrar) mayOverwrite(ctx context.Context, old Registration) error {
	switch old.Incarnation {
	case "", r.Incarnation, r.Previous, r.judged:
		return nil // nobody, or an earlier attempt or life of ours
	}
	if r.Previous != "" {
		return &SupersededError{Name: r.Name, By: old}
	}
	if !r.Takeover && r.answers(ctx, old) {
		return fmt.Errorf("%w: %s at %s answers as incarnation %s (--takeover replaces it)",
			ErrNameInUse, r.key(), old.Address, old.Incarnation)
	}
	r.judged = old.Incarnation
	return nil
}

// answers tells whether the predecessor is there and is itself.
func (r *registrar) answers(ctx context.Context, old Registration) bool {
	if r.Probe == nil || old.Address == "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	incarnation, err := r.Probe(ctx, old.Address)
	return err == nil && incarnation == old.Incarnation
}

func (r *registrar) transaction(ctx context.Context, at situation, lease store.LeaseID) (store.Txn, error) {
	me := Registration{Incarnation: r.Incarnation, Address: r.Address, Version: r.Version, MaxMemory: r.MaxMemory}
	t := store.Txn{
		If:   []store.Cmp{store.Unchanged(r.key(), at.old.Revision), store.Created(specKey, r.SpecRev)},
		Then: []store.Op{store.Put(r.key(), me.encode(), lease)},
	}
	if at.old.Incarnation == "" {
		return t, nil
	}
	if shards := Mine(at.view, at.old.Incarnation); len(shards) > 0 {
		t.If = append(t.If, at.view.Guard())
		t.Then = append(t.Then, at.view.with(r.me(), shards).put())
	}
	if r.Extra != nil {
		conditions, ops, err := r.Extra(ctx, at.old, r.Incarnation)
		if err != nil {
			return store.Txn{}, fmt.Errorf("%w: %w", errExtra, err)
		}
		t.If, t.Then = append(t.If, conditions...), append(t.Then, ops...)
	}
	return t, nil
}

// revoke ends a lease that nobody needs; it would also end by itself.
func (r *registrar) revoke(ctx context.Context, lease store.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := r.Store.Revoke(ctx, lease); err != nil {
		r.Log.WithError(err).Debug("cannot revoke a lease, it will expire")
	}
}
