package etcd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/loopback"
	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/store/etcd"
	"starfish/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func dial(t *testing.T, c etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Dial(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func put(t *testing.T, s store.Store, key string) int64 {
	t.Helper()
	r, err := s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put(key, nil, 0)}})
	require.NoError(t, err)
	return r.Revision
}

// place is where an etcd can be started, stopped and started again.
type place struct {
	t   *testing.T
	url string
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(loopback.Host(), "0"))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return &place{t: t, url: "http://" + l.Addr().String(), dir: t.TempDir()}
}

func (p *place) start(dir string) *embedded.Server {
	p.t.Helper()
	s, err := embedded.Start(p.t.Context(), embedded.Config{Dir: filepath.Join(p.dir, dir), ClientURL: p.url})
	require.NoError(p.t, err)
	p.t.Cleanup(s.Close)
	return s
}

func TestNothingIsWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	_, err := etcd.Dial(t.Context(), etcd.Config{})
	require.ErrorContains(t, err, "no endpoints")

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	for name, endpoint := range map[string]string{
		"it refuses":   "127.0.0.1:1",
		"it is silent": silent.Addr().String(),
	} {
		t.Run(name, func(t *testing.T) {
			for _, bound := range []string{"context", "config"} {
				s := dial(t, etcd.Config{Endpoints: []string{endpoint}, RequestTimeout: 200 * time.Millisecond})
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if bound == "context" {
					cancel()
					s = dial(t, etcd.Config{Endpoints: []string{endpoint}, RequestTimeout: patience})
					ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				}
				err := s.Check(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, endpoint)
				_, _, err = s.Grant(ctx, time.Second)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, err = s.KeepAlive(ctx, 1)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, s.Revoke(ctx, 1), context.DeadlineExceeded)
				require.Equal(t, bound == "context", ctx.Err() != nil)
				cancel()
				_, ok := <-s.Watch(ctx, "k", "", 0)
				require.False(t, ok)
			}
		})
	}
}

func TestCloseEndsTheWatches(t *testing.T) {
	t.Parallel()
	s := storetest.Dial(t)
	rev := put(t, s, "close/k")
	idle := s.Watch(t.Context(), "close/other", "", 0)
	unread := s.Watch(t.Context(), "close/k", "", rev)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing again is no error")
	for range idle {
	}
	for range unread {
	}
	late := s.Watch(t.Context(), "close/k", "", rev)
	require.ErrorIs(t, (<-late).Err, etcd.ErrClosed)
	_, ok := <-late
	require.False(t, ok)
}

func TestARestartOfTheServerIsSurvived(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	server := p.start("a")
	s := dial(t, etcd.Config{Endpoints: server.Endpoints()})
	id, _, err := s.Grant(t.Context(), time.Minute)
	require.NoError(t, err)
	rev := put(t, s, "k")
	server.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, s.Check(ctx), "it is down")
	p.start("a")
	require.Eventually(t, func() bool { return s.Check(t.Context()) == nil }, patience, time.Millisecond)
	require.Equal(t, rev+1, put(t, s, "k"))
	_, err = s.KeepAlive(t.Context(), id)
	require.NoError(t, err, "leases outlive a restart")
}

// An answer of another cluster, or of the same one as it was earlier, ends
// everything.
func TestAHistoryThatGoesBackIsNoticed(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, p *place, more func(*embedded.Server) *embedded.Server){
		"another cluster at the same address": func(_ *testing.T, p *place, more func(*embedded.Server) *embedded.Server) {
			more(p.start("a")).Close()
			p.start("b")
		},
		"restored from a backup": func(t *testing.T, p *place, more func(*embedded.Server) *embedded.Server) {
			t.Helper()
			more(p.start("a")).Close()
			require.NoError(t, os.CopyFS(filepath.Join(p.dir, "backup"), os.DirFS(filepath.Join(p.dir, "a"))))
			more(p.start("a")).Close()
			p.start("backup")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, entries := test.NewNullLogger()
			p := newPlace(t)
			s := dial(t, etcd.Config{Endpoints: []string{p.url}, Log: log})
			replace(t, p, func(server *embedded.Server) *embedded.Server {
				for range 5 {
					put(t, s, "k")
				}
				return server
			})
			var err error
			require.Eventually(t, func() bool {
				_, err = store.Lookup(t.Context(), s, "k")
				return err != nil && !errors.Is(err, context.DeadlineExceeded)
			}, patience, time.Millisecond)
			require.ErrorIs(t, err, store.ErrHistory)

			_, err = s.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("k", nil, 0)}})
			require.ErrorIs(t, err, store.ErrHistory, "it stays so")
			_, _, err = s.Grant(t.Context(), time.Second)
			require.ErrorIs(t, err, store.ErrHistory)
			_, err = s.KeepAlive(t.Context(), 1)
			require.ErrorIs(t, err, store.ErrHistory)
			require.ErrorIs(t, s.Revoke(t.Context(), 1), store.ErrHistory)
			require.Len(t, entries.AllEntries(), 1, "and is logged once")
			require.Equal(t, logrus.ErrorLevel, entries.LastEntry().Level)
		})
	}
}

func TestAWatchNoticesAnotherCluster(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	server := p.start("a")
	s := dial(t, etcd.Config{Endpoints: server.Endpoints()})
	rev := put(t, s, "k")
	in := s.Watch(t.Context(), "k", "", rev)
	require.Len(t, (<-in).Events, 1)
	server.Close()
	p.start("b")
	other := dial(t, etcd.Config{Endpoints: server.Endpoints()})
	for range 10 {
		put(t, other, "k")
	}
	select {
	case r := <-in:
		require.ErrorIs(t, r.Err, store.ErrHistory)
	case <-time.After(patience):
		require.Fail(t, "nothing comes from the watch")
	}
}
