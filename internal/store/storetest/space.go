package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"starfish/internal/store/embedded"
)

// Small is an etcd with little space, which others may use up.
type Small struct {
	Server *embedded.Server

	t     testing.TB
	admin *clientv3.Client
}

const filler = "/filler/"

// NewSmall starts an etcd that takes so many bytes, until the end of the test.
func NewSmall(t testing.TB, bytes int64) *Small {
	t.Helper()
	srv, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Tune: func(c *embed.Config) { c.QuotaBackendBytes = bytes }})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	admin, err := clientv3.New(clientv3.Config{Endpoints: srv.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	return &Small{Server: srv, t: t, admin: admin}
}

// Fill writes until etcd raises its alarm.
func (s *Small) Fill() {
	s.t.Helper()
	value := string(make([]byte, 1<<19))
	for i := 0; ; i++ {
		_, err := s.admin.Put(s.t.Context(), fmt.Sprint(filler, i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		require.NoError(s.t, err)
		require.Less(s.t, i, 1000)
	}
}

// Mend does what an operator does: it removes, compacts, defragments and disarms.
func (s *Small) Mend() {
	s.t.Helper()
	ctx := s.t.Context()
	r, err := s.admin.Delete(ctx, filler, clientv3.WithPrefix())
	require.NoError(s.t, err)
	_, err = s.admin.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(s.t, err)
	_, err = s.admin.Defragment(ctx, s.Server.Endpoints()[0])
	require.NoError(s.t, err)
	_, err = s.admin.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	require.NoError(s.t, err)
}
