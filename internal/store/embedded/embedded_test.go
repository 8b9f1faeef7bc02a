package embedded_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/store/etcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, c embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *embedded.Server) *etcd.Store {
	t.Helper()
	c, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: s.Endpoints()})
	require.NoError(t, err)
	return c
}

func TestItGoesOnFromItsDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "by", "start")
	for _, durable := range []bool{true, false} {
		s := start(t, embedded.Config{Dir: dir, Durable: durable})
		c := dial(t, s)
		kv, err := store.Lookup(t.Context(), c, "k")
		require.NoError(t, err)
		require.Equal(t, !durable, kv.Exists(), "written by the first, found by the second")
		_, err = c.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", []byte("1"), 0)}})
		require.NoError(t, err)
		require.NoError(t, c.Close())
		s.Close()
		s.Close() // is no error
	}
}

func TestManyRunSideBySide(t *testing.T) {
	t.Parallel()
	for range 3 {
		c := dial(t, start(t, embedded.Config{Dir: t.TempDir()}))
		require.NoError(t, c.Check(t.Context()))
		_, rev, err := store.List(t.Context(), c, "a", "z")
		require.NoError(t, err)
		require.Equal(t, int64(1), rev)
		require.NoError(t, c.Close())
	}
}

func TestShortLeasesAreGiven(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	c := dial(t, s)
	n, err := s.Leases(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	_, given, err := c.Grant(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "1s", given.String())
	n, err = s.Leases(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, c.Close())
}

func TestADirectoryIsUsedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{Dir: dir})
	_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir})
	require.ErrorIs(t, err, embedded.ErrInUse)
	require.ErrorContains(t, err, dir)
	s.Close()
	start(t, embedded.Config{Dir: dir})
}

func TestWhatCannotStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ended, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the user changed his mind")
	cancel(reason)
	_, err := embedded.Start(ended, embedded.Config{Dir: dir})
	if err != nil { // it may have been ready before it looked
		require.ErrorIs(t, err, reason)
	}
	for name, c := range map[string]embedded.Config{
		"no directory":   {},
		"impossible dir": {Dir: "/dev/null/x"},
		"malformed URL":  {Dir: t.TempDir(), ClientURL: "://"},
		"port in use":    {Dir: t.TempDir(), ClientURL: "http://" + start(t, embedded.Config{Dir: t.TempDir()}).Endpoints()[0]},
		"not an address": {Dir: t.TempDir(), ClientURL: "http://256.0.0.1:1"},
	} {
		_, err := embedded.Start(t.Context(), c)
		require.Error(t, err, name)
	}
}

func TestTheLogIsQuiet(t *testing.T) {
	t.Parallel()
	log, entries := test.NewNullLogger()
	log.SetLevel(logrus.InfoLevel)
	s := start(t, embedded.Config{Dir: t.TempDir(), Log: log})
	s.Close()
	for _, e := range entries.AllEntries() {
		t.Error(e.Message, e.Data)
	}
}
