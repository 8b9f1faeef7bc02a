package storetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/embedded"
	"starfish/internal/store/etcd"
)

// startTimeout is generous: tests run on machines that do other work too.
const startTimeout = time.Minute

// Embedded gives a test its own part of an embedded etcd: a store in which
// nobody else's keys can be seen, with a client of its own. The server is
// shared by the tests that run at the same time and stops with the last of
// them, so goleak finds nothing.
func Embedded(t testing.TB) store.Store {
	t.Helper()
	return store.Prefixed(Dial(t), fmt.Sprintf("/test/%d/", shared.number()))
}

// Dial is a client of the shared embedded etcd that sees every test's keys.
// It is closed at the end of the test.
func Dial(t testing.TB) *etcd.Store {
	t.Helper()
	s, err := etcd.Dial(t.Context(), etcd.Config{Endpoints: Endpoints(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Endpoints is where the shared embedded etcd listens. It does so until the
// end of the test; the test must close its clients by then.
func Endpoints(t testing.TB) []string {
	t.Helper()
	endpoints, err := shared.use()
	require.NoError(t, err)
	t.Cleanup(shared.release)
	return endpoints
}

var shared server

// server is an embedded etcd that runs while somebody uses it.
type server struct {
	mu     sync.Mutex
	users  int
	tests  int
	dir    string
	server *embedded.Server
}

func (s *server) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tests++
	return s.tests
}

func (s *server) use() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		if err := s.start(); err != nil {
			return nil, err
		}
	}
	s.users++
	return s.server.Endpoints(), nil
}

func (s *server) start() error {
	dir, err := os.MkdirTemp("", "starfish-etcd-")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.server, err = embedded.Start(ctx, embedded.Config{Dir: dir})
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	s.dir = dir
	return nil
}

func (s *server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	if s.users > 0 {
		return
	}
	s.server.Close()
	s.server = nil
	_ = os.RemoveAll(s.dir)
}
