package membership

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"starfish/internal/store/storetest"
)

// The essentials again, on a real etcd in real time.
const patience = 20 * time.Second

func TestOnEtcdALeaseThatIsNotRenewedIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storetest.Embedded(t))
	c := w.config("a")
	c.TTL = 2 * time.Second
	m := w.register(c)
	require.True(t, m.Alive())
	w.claim(m, 0, 1)
	require.NoError(t, w.st.Revoke(t.Context(), m.Lease()))
	select {
	case <-m.Lost():
	case <-time.After(patience):
		require.Fail(t, "the loss was not noticed")
	}
	require.ErrorIs(t, m.Err(), ErrLost)
	require.False(t, m.Alive())
	require.Empty(t, w.roster().Members)

	c.Previous = m.Incarnation()
	again := w.register(c)
	require.Equal(t, int64(2), w.claim(again, 0).Generation(0, again.Incarnation()))
}

func TestOnEtcdALeaseIsKeptAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storetest.Embedded(t))
	c := w.config("a")
	c.TTL = time.Second
	m := w.register(c)
	other := c // it is not kept alive: when it is gone, m would be as well
	other.Name = "b"
	idle := w.register(other)
	idle.cancel()
	require.Eventually(t, func() bool {
		_, registered := w.roster().Members["b"]
		return !registered
	}, patience, 50*time.Millisecond)
	require.True(t, m.Alive())
	require.False(t, isLost(m))
	require.False(t, idle.Alive(), "it stopped by its own clock")
}

func TestOnEtcdATakeoverByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storetest.Embedded(t))
	old := w.pserver("a")
	w.claim(old, 0, 3)
	views := WatchView(t.Context(), w.st, w.view())
	c := w.config("a")
	c.Address, c.Probe = "a:2", answering(map[string]string{"a:1": old.Incarnation()})
	_, err := Register(t.Context(), c)
	require.ErrorIs(t, err, ErrNameInUse)
	c.Takeover = true
	m := w.register(c)
	select {
	case <-old.Lost():
	case <-time.After(patience):
		require.Fail(t, "the takeover was not noticed")
	}
	var superseded *SupersededError
	require.ErrorAs(t, old.Err(), &superseded)
	require.Equal(t, m.Incarnation(), superseded.By.Incarnation)
	require.Equal(t, []int{0, 3}, Mine(<-views, m.Incarnation()))
	require.True(t, m.Alive())
	require.Equal(t, m.Incarnation(), w.roster().Members["a"].Incarnation, "the old lease did not take the key along")
}

// All start at once, each with the plan that it sees: every shard is claimed
// once.
func TestOnEtcdStartersShareTheShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, storetest.Embedded(t))
	const n, shards = 5, 16
	w.commit(InitialOwners(shards))
	g, ctx := errgroup.WithContext(t.Context())
	for i := range n {
		m := w.pserver(fmt.Sprint("p", i))
		g.Go(func() error { return claimShare(ctx, w, m, n) })
	}
	require.NoError(t, g.Wait())
	v := w.view()
	held := map[string]int{}
	for i, o := range v.Shards {
		require.Equal(t, int64(1), o.Generation, "shard %d", i)
		held[o.Name]++
	}
	require.Equal(t, map[string]int{"p0": 4, "p1": 3, "p2": 3, "p3": 3, "p4": 3}, held)
}

func claimShare(ctx context.Context, w *world, m *Member, want int) error {
	for {
		v, roster, err := ReadClaims(ctx, w.st)
		if err != nil {
			return err
		}
		if len(v.Free()) == 0 {
			return nil
		}
		plan := PlanClaim(v, roster, m.c.me(), want, false)
		if _, err := Claim(ctx, w.st, m, w.spec, plan); err != nil {
			return err
		}
	}
}
