package membership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/store"
	"starfish/internal/store/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTTL = 10 * time.Second

var errRefused = errors.New("connection refused")

// world is a job on a store, for one test.
type world struct {
	t    *testing.T
	fake *fake.Store // nil on a real etcd
	st   store.Store
	spec int64
}

// simulated runs a test over the fake store in virtual time.
func simulated(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fake.New(fake.Options{})
		w := newWorld(t, f)
		w.fake = f
		test(t, w)
	})
}

func newWorld(t *testing.T, st store.Store) *world {
	t.Helper()
	w := &world{t: t, st: st}
	w.spec = w.commit(store.Put(specKey, []byte("{}"), 0), InitialOwners(4)).Revision
	return w
}

func (w *world) commit(ops ...store.Op) store.Result {
	w.t.Helper()
	r, err := w.st.Txn(w.t.Context(), store.Txn{Then: ops})
	require.NoError(w.t, err)
	return r
}

func (w *world) config(name string) Config {
	return Config{
		Store: w.st, Role: PServers, Name: name, Address: name + ":1", Version: "test",
		TTL: testTTL, SpecRev: w.spec,
	}
}

// resubmit replaces the job by another one of the same name.
func (w *world) resubmit() {
	w.t.Helper()
	w.commit(store.Delete(specKey))
	w.commit(store.Put(specKey, []byte("{}"), 0))
}

// register registers and closes at the end of the test.
func (w *world) register(c Config) *Member {
	w.t.Helper()
	m, err := Register(w.t.Context(), c)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = m.Close(context.WithoutCancel(w.t.Context())) })
	return m
}

func (w *world) pserver(name string) *Member {
	w.t.Helper()
	return w.register(w.config(name))
}

func (w *world) claim(m *Member, shards ...int) View {
	w.t.Helper()
	v, err := Claim(w.t.Context(), w.st, m, w.spec, shards)
	require.NoError(w.t, err)
	return v
}

func (w *world) view() View {
	w.t.Helper()
	v, err := ReadView(w.t.Context(), w.st)
	require.NoError(w.t, err)
	return v
}

func (w *world) roster() Roster {
	w.t.Helper()
	r, err := ReadRoster(w.t.Context(), w.st, PServers)
	require.NoError(w.t, err)
	return r
}

// answering is a probe that finds the process at each address to be of an
// incarnation; it refuses elsewhere.
func answering(processes map[string]string) func(context.Context, string) (string, error) {
	return func(_ context.Context, address string) (string, error) {
		if incarnation, ok := processes[address]; ok {
			return incarnation, nil
		}
		return "", errRefused
	}
}

func isLost(m *Member) bool {
	select {
	case <-m.Lost():
		return true
	default:
		return false
	}
}
