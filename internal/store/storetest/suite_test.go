package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/store/etcd"
	"starfish/internal/store/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFake(t *testing.T) {
	t.Parallel()
	Run(t, openFake)
}

func TestFakeClient(t *testing.T) {
	t.Parallel()
	Run(t, func(t *testing.T) Subject {
		t.Helper()
		s := fake.New(fake.Options{})
		return Subject{Store: s.Client("a"), Compact: s.Compact}
	})
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	Run(t, openEtcd)
}

func openFake(t *testing.T) Subject {
	t.Helper()
	s := fake.New(fake.Options{})
	return Subject{Store: s, Compact: s.Compact}
}

// openEtcd starts an etcd of its own, so that revisions start at the same
// point as the fake's and a compaction disturbs nobody.
func openEtcd(t *testing.T) Subject {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	s, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: server.Endpoints()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return Subject{Store: s, Compact: func(rev int64) { compact(t, server, rev) }}
}

func compact(t *testing.T, server *embedded.Server, rev int64) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: server.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = c.Compact(t.Context(), rev, clientv3.WithCompactPhysical())
	require.NoError(t, err)
}

func TestEmbeddedIsOfTheTestAlone(t *testing.T) {
	a, b := Embedded(t), Embedded(t)
	put(t, a, "k", "1")
	require.Equal(t, "1", string(get(t, a, "k").Value))
	require.False(t, get(t, b, "k").Exists())
	kvs, _, err := store.List(t.Context(), b, "", "\x00")
	require.NoError(t, err)
	require.Empty(t, kvs)
}
