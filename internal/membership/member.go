package membership

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"starfish/internal/store"
)

// Member is a registration that is kept alive. It is safe for concurrent use.
type Member struct {
	c     Config
	lease store.LeaseID
	ttl   time.Duration

	start  time.Time
	until  atomic.Int64 // alive until so long after start
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex
	registered store.Cmp
	err        error
	over       bool // lost or closed: until does not move any more
	lost       chan struct{}
}

func newMember(ctx context.Context, c Config, lease store.LeaseID, rev int64, sent time.Time, ttl time.Duration) *Member {
	m := &Member{
		c: c, lease: lease, ttl: ttl,
		registered: store.Unchanged(c.key(), rev),
		start:      sent,
		lost:       make(chan struct{}),
	}
	m.extend(sent, ttl)
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.tasks.Go(func() { m.keepAlive(ctx) })
	m.tasks.Go(func() { m.watch(ctx) })
	return m
}

// Name of the seat.
func (m *Member) Name() string { return m.c.Name }

// Address under which the member is registered.
func (m *Member) Address() string { return m.c.Address }

// Incarnation of the member.
func (m *Member) Incarnation() string { return m.c.Incarnation }

// Lease under which the member is registered, and under which it may put what
// shall end with it.
func (m *Member) Lease() store.LeaseID { return m.lease }

// Registered is the condition that the registration is still the member's own.
func (m *Member) Registered() store.Cmp {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.registered
}

// Leave says in the registration that the member is stopping: from then on it
// gets no shard any more. What it owns stays its own. It may be repeated after an
// error. ErrLost or *SupersededError: m is not registered any more.
func (m *Member) Leave(ctx context.Context) error {
	if err := m.rewrite(ctx, Registration{Leaving: true}); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// Stall says in the registration of a trainer that its work has come to a stand,
// so that nobody waits for it, or that it goes on. It may be repeated after an
// error. ErrLost or *SupersededError: m is not registered any more.
func (m *Member) Stall(ctx context.Context, stalled bool) error {
	if err := m.rewrite(ctx, Registration{Stalled: stalled}); err != nil {
		return fmt.Errorf("tell of a stall: %w", err)
	}
	return nil
}

// rewrite writes the registration with what r says besides who the member is.
func (m *Member) rewrite(ctx context.Context, r Registration) error {
	r.Incarnation, r.Address, r.Version, r.MaxMemory = m.c.Incarnation, m.c.Address, m.c.Version, m.c.MaxMemory
	value := r.encode()
	for {
		res, err := m.c.Store.Txn(ctx, store.Txn{
			If:   []store.Cmp{m.Registered()},
			Then: []store.Op{store.Put(m.c.key(), value, m.lease)},
			Else: []store.Op{store.Get(m.c.key())},
		})
		if err != nil {
			return err
		}
		at := res.Revision
		if !res.Succeeded {
			kv := res.First(0)
			if err := m.judge(kv); err != nil {
				return err
			}
			at = kv.ModRev // of an attempt whose answer was lost
		}
		m.mu.Lock()
		m.registered = store.Unchanged(m.c.key(), at)
		m.mu.Unlock()
		if res.Succeeded {
			return nil
		}
	}
}

// Alive tells whether the lease cannot have ended yet, by the member's own
// clock. It is cheap.
func (m *Member) Alive() bool {
	return int64(m.c.Clock.Now().Sub(m.start)) < m.until.Load()
}

// Lost is closed when the registration is gone; Err says why.
func (m *Member) Lost() <-chan struct{} { return m.lost }

// Err is nil while the registration is not known to be gone, and then ErrLost,
// a *SupersededError or store.ErrHistory.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Close ends the registration: Alive is false from then on, and the lease is
// revoked. If that fails the lease ends by itself, after its time to live.
func (m *Member) Close(ctx context.Context) error {
	m.mu.Lock()
	m.end()
	m.mu.Unlock()
	m.cancel()
	m.tasks.Wait()
	if err := m.c.Store.Revoke(ctx, m.lease); err != nil {
		return fmt.Errorf("deregister %s: %w", m.c.key(), err)
	}
	return nil
}

// extend notes an answered keep-alive by the moment it was sent.
func (m *Member) extend(sent time.Time, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.over {
		m.until.Store(int64(sent.Sub(m.start) + ttl - m.c.Margin))
	}
}

// end makes Alive false for good. The caller holds mu.
func (m *Member) end() {
	m.over = true
	m.until.Store(math.MinInt64)
}

func (m *Member) lose(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.end()
	m.err = err
	close(m.lost)
}

// keepAlive renews the lease four times in its time to live, so that one
// renewal may fail before Alive turns false, and goes on until the store says
// that the lease is gone.
func (m *Member) keepAlive(ctx context.Context) {
	period, retry := m.ttl/4, m.ttl/20
	pause, failing := period, false
	for m.sleep(ctx, pause) {
		sent := m.c.Clock.Now()
		ttl, err := m.renew(ctx, period)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			m.extend(sent, ttl)
			if failing {
				m.c.Log.Info("the lease is renewed again")
			}
			pause, failing = period, false
		case errors.Is(err, store.ErrLeaseNotFound):
			m.lose(m.whyGone(ctx, period))
			return
		case errors.Is(err, store.ErrHistory):
			m.lose(err)
			return
		default:
			if !failing {
				m.c.Log.WithError(err).Warn("the lease was not renewed, trying again")
			}
			pause, failing = retry, true
		}
	}
}

func (m *Member) sleep(ctx context.Context, d time.Duration) bool {
	t := m.c.Clock.Timer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	case <-m.lost:
		return false
	}
}

func (m *Member) renew(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return m.c.Store.KeepAlive(ctx, m.lease)
}

// whyGone tells a lease that expired from one that a successor revoked.
func (m *Member) whyGone(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	kv, err := store.Lookup(ctx, m.c.Store, m.c.key())
	if err != nil {
		return ErrLost // whoever registers again will see
	}
	if err := m.judge(kv); err != nil {
		return err
	}
	return ErrLost
}

// watch follows the own registration.
func (m *Member) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := store.Follow(ctx, m.c.Store, m.c.Clock, m.c.key(), "", func(s store.Snapshot) {
		if err := m.judge(s.KVs[m.c.key()]); err != nil {
			m.lose(err)
			cancel()
		}
	})
	if errors.Is(err, store.ErrHistory) {
		m.lose(err)
	}
}

// judge says whether the registration in kv is still the member's own.
func (m *Member) judge(kv store.KV) error {
	if !kv.Exists() {
		return ErrLost
	}
	by, err := decodeRegistration(kv)
	if err != nil {
		by = Registration{Incarnation: "unknown"}
	}
	if by.Incarnation == m.c.Incarnation {
		return nil
	}
	return &SupersededError{Name: m.c.Name, By: by}
}
