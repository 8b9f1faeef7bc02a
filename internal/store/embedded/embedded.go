// Package embedded runs a single-member etcd inside this process: for
// `starfish run`, and for tests.
//
// The server listens on the loopback interface only. It keeps its data in one
// directory and goes on from there when it is started again; the directory
// belongs to one process at a time. History older than a minute is compacted,
// so that a long job does not grow it. Without Durable the data survives the
// death of the process but not that of the machine. A server that cannot start
// or go on, because the disk is full or its data are damaged, is an error of
// Start or of Failed, never the end of the process.
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
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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

	defaultPatience = 30 * time.Second
	// closePatience bounds the stop of a server; one in order takes far less.
	closePatience = 20 * time.Second
)

// ErrInUse: another process runs an etcd in the directory.
var ErrInUse = errors.New("directory in use by another process")

// errNotReady: etcd waits for ever if its log was cut off, for instance.
var errNotReady = errors.New("it did not become ready: what it kept may be damaged; " +
	"use another directory, or move this one away to begin anew")

// Config of a server.
type Config struct {
	// Dir holds the data; it is made if it does not exist.
	Dir string
	// Durable syncs every write to the disk.
	Durable bool
	// ClientURL to listen at; default: a free port of 127.0.0.1.
	ClientURL string
	// Patience is how long it may take to start; default 30 s.
	Patience time.Duration
	// Tune changes the rest of the settings, in tests: one of several members,
	// certificates, a small quota. nil: nothing.
	Tune func(*embed.Config)
	// Log gets etcd's errors, and its warnings at level debug; default: nothing.
	Log logrus.FieldLogger
}

// Server is a running etcd.
type Server struct {
	etcd    *embed.Etcd
	lock    *os.File
	closing *atomic.Bool
	broken  *breakage
	failed  chan error
}

// Start starts a server and waits until it serves.
func Start(ctx context.Context, c Config) (*Server, error) {
	closing, broken := new(atomic.Bool), newBreakage()
	cfg, err := config(c, closing, broken)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	limit, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.Patience, fmt.Errorf("after %v %w", c.Patience, errNotReady))
	defer cancel()
	e, err := launch(limit, cfg, broken)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
	}
	s := &Server{etcd: e, lock: lock, closing: closing, broken: broken, failed: make(chan error, 1)}
	select {
	case <-e.Server.ReadyNotify():
		go s.watch()
		return s, nil
	case err = <-e.Err():
	case <-e.Server.StopNotify():
		err = errStopped
	case <-broken.done:
		err = broken.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-limit.Done():
		err = context.Cause(limit)
	}
	s.Close()
	return nil, fmt.Errorf("start etcd in %s: %w", c.Dir, err)
}

var errStopped = errors.New("it stopped")

// launch starts etcd on a goroutine that may not come back.
func launch(limit context.Context, cfg *embed.Config, broken *breakage) (*embed.Etcd, error) {
	type started struct {
		etcd *embed.Etcd
		err  error
	}
	result := make(chan started, 1)
	go func() {
		var s started
		defer func() {
			if p := recover(); p != nil {
				s.err = fmt.Errorf("panic: %v", p)
			}
			result <- s
		}()
		s.etcd, s.err = embed.StartEtcd(cfg)
	}()
	select {
	case s := <-result:
		return s.etcd, s.err
	case <-broken.done:
		return nil, broken.err
	case <-limit.Done():
		return nil, context.Cause(limit)
	}
}

// watch reports if the server stops by itself.
func (s *Server) watch() {
	var err error
	select {
	case err = <-s.etcd.Err():
	case <-s.etcd.Server.StopNotify():
	case <-s.broken.done:
		err = s.broken.err
	}
	if s.closing.Load() {
		return
	}
	if err == nil {
		err = errStopped
	}
	s.failed <- err
}

func config(c Config, closing *atomic.Bool, broken *breakage) (*embed.Config, error) {
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
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(bridge(c.Log, closing, broken))
	if c.Tune != nil {
		c.Tune(cfg)
	}
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

// Leases is how many leases there are.
func (s *Server) Leases(ctx context.Context) (int, error) {
	ctx = s.etcd.Server.AuthStore().WithRoot(ctx) // who may ask, if users must say who they are
	r, err := s.etcd.Server.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return 0, fmt.Errorf("list the leases of etcd: %w", err)
	}
	return len(r.Leases), nil
}

// Failed delivers an error if the server stops by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Close stops the server and keeps its data. It may be called more than once.
func (s *Server) Close() {
	if s.lock == nil {
		return
	}
	s.closing.Store(true)
	within, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.stop()
	}()
	select {
	case <-closed:
	case <-s.broken.done:
	case <-within.Done():
	}
	_ = s.lock.Close() // releases it
	s.lock = nil
}

func (s *Server) stop() {
	select {
	case <-s.etcd.Server.ReadyNotify():
	default:
		s.etcd.Server.HardStop() // else its Close waits for it to become ready
	}
	s.etcd.Close()
}
