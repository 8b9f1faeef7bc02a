// Package embedded runs a single-member etcd inside this process: for
// `starfish run`, and for tests.
//
// The server listens on the loopback interface only. It keeps its data in one
// directory and goes on from there when it is started again; the directory
// belongs to one process at a time. History older than a minute is compacted,
// so that a long job does not grow it. Without Durable the data survives the
// death of the process but not that of the machine.
//
// Close its clients before the server: it waits for their watches.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
)

const (
	member = "starfish"
	// One member elects itself: a short election only makes it start sooner,
	// and allows leases of one second.
	heartbeatMillis = 10
	electionMillis  = 100
	// history that is kept for watches which were interrupted.
	history = "1m"
	anyPort = "http://127.0.0.1:0"
)

// ErrInUse: another process runs an etcd in the directory.
var ErrInUse = errors.New("directory in use by another process")

// Config of a server.
type Config struct {
	// Dir holds the data; it is made if it does not exist.
	Dir string
	// Durable syncs every write to the disk.
	Durable bool
	// ClientURL to listen at; default: a free port of 127.0.0.1.
	ClientURL string
	// Log gets etcd's errors, and its warnings at level debug; default: nothing.
	Log logrus.FieldLogger
}

// Server is a running etcd.
type Server struct {
	etcd    *embed.Etcd
	lock    *os.File
	closing *atomic.Bool
}

// Start starts a server and waits until it serves.
func Start(ctx context.Context, c Config) (*Server, error) {
	closing := new(atomic.Bool)
	cfg, err := config(c, closing)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	s := &Server{etcd: e, lock: lock, closing: closing}
	select {
	case <-e.Server.ReadyNotify():
		return s, nil
	case err = <-e.Err():
	case <-e.Server.StopNotify():
		err = errors.New("it stopped")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
}

func config(c Config, closing *atomic.Bool) (*embed.Config, error) {
	if c.Dir == "" {
		return nil, errors.New("embedded etcd: no directory")
	}
	if c.ClientURL == "" {
		c.ClientURL = anyPort
	}
	client, err := url.Parse(c.ClientURL)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: client URL: %w", err)
	}
	peer, err := url.Parse(anyPort)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: peer URL: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = member
	cfg.Dir = filepath.Join(c.Dir, "member-data")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// The token makes the cluster's identity, which tells two servers apart.
	// It counts only when the directory is empty.
	cfg.InitialClusterToken = uuid.NewString()
	cfg.TickMs, cfg.ElectionMs = heartbeatMillis, electionMillis
	cfg.UnsafeNoFsync = !c.Durable
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, history
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(bridge(c.Log, closing))
	return cfg, nil
}

// lockDir makes sure that nobody else uses the directory; etcd itself would
// wait for them without a word.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

// Endpoints are the addresses at which the server takes requests.
func (s *Server) Endpoints() []string {
	endpoints := make([]string, len(s.etcd.Clients))
	for i, listener := range s.etcd.Clients {
		endpoints[i] = listener.Addr().String()
	}
	return endpoints
}

// Failed delivers an error if the server stops by itself.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close stops the server and keeps its data. It may be called more than once.
func (s *Server) Close() {
	if s.lock == nil {
		return
	}
	s.closing.Store(true)
	s.etcd.Close()
	_ = s.lock.Close() // releases it
	s.lock = nil
}
