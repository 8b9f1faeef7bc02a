// Package etcd implements store.Store over an etcd cluster (3.6 or later; Check
// warns of an older one).
//
// Requests. Every request is bounded: by its context and by
// Config.RequestTimeout, so that an unreachable etcd is an error and never a
// hang. Read-only transactions are repeated while etcd is briefly unavailable;
// writes never are, because an error may hide a success and only the caller
// can tell. All transactions are linearizable.
//
// History. A linearizable answer at a revision below one that was seen before
// the request was sent, or an answer of another cluster, means that etcd was
// restored from a backup or replaced. Everything that this process believes
// may then be wrong, so the store remembers it: that request and every later
// one ends with store.ErrHistory, as do the watches that meet it.
//
// Access. What is wrong with certificates, user or password is told apart from an
// etcd that is not there (ErrTLS, ErrLogin, ErrNoUser, ErrForbidden), when the store is
// dialled or checked. The user needs the prefix /starfish/ only.
//
// Close the store before the server it talks to is stopped: etcd waits for
// the watches that are still open.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"starfish/internal/clock"
	"starfish/internal/store"
)

const (
	defaultDialTimeout    = 5 * time.Second
	defaultRequestTimeout = 10 * time.Second
	// A server that is gone without a word is noticed after their sum. gRPC
	// does not ping more often than this.
	pingInterval = 10 * time.Second
	pingTimeout  = 3 * time.Second
	// Reconnecting is cheap, and an outage should not last longer than it does.
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Second
)

// ErrClosed: the store was closed.
var ErrClosed = errors.New("etcd: store closed")

// Config says where etcd is.
type Config struct {
	// Endpoints, each host:port or a URL. At least one.
	Endpoints []string
	// DialTimeout bounds one attempt to connect to one endpoint, and the
	// authentication, if there is any; default 5 s.
	DialTimeout time.Duration
	// RequestTimeout bounds each request whose context has no earlier
	// deadline; default 10 s.
	RequestTimeout time.Duration
	// TLS of the connections; nil: none.
	TLS *tls.Config
	// Username and Password for etcd's authentication; empty: none.
	Username, Password string
	// Log gets what an error has no room for; default: nothing.
	Log logrus.FieldLogger
}

// Store is a client of an etcd cluster.
type Store struct {
	client    *clientv3.Client
	endpoints string
	timeout   time.Duration
	clock     clock.Clock
	history   history
	release   context.CancelFunc // of the client's context

	mu      sync.Mutex // guards closed, and watches.Add against Close
	closed  bool
	stop    chan struct{}
	watches sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// Dial makes a client. It does not wait for a connection, unless there is TLS, or
// a password: certificates and password are tried, while ctx and DialTimeout
// allow. ctx does not bound the life of the store.
func Dial(ctx context.Context, c Config) (*Store, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints")
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = defaultDialTimeout
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = defaultRequestTimeout
	}
	endpoints := strings.Join(c.Endpoints, ",")
	if c.TLS != nil {
		if err := Probe(ctx, c); errors.Is(err, ErrTLS) {
			return nil, fmt.Errorf("connect to etcd at %s: %w", endpoints, err)
		}
	}
	s := &Store{
		endpoints: endpoints,
		timeout:   c.RequestTimeout,
		clock:     clock.System,
		history:   history{log: c.Log},
		stop:      make(chan struct{}),
	}
	var life context.Context
	life, s.release = context.WithCancel(context.WithoutCancel(ctx))
	free := context.AfterFunc(ctx, s.release)
	client, err := clientv3.New(clientConfig(life, c))
	free()
	if err != nil {
		s.release()
		return nil, fmt.Errorf("connect to etcd at %s: %w", endpoints, translate(ctx, err))
	}
	s.client = client
	return s, nil
}

func clientConfig(life context.Context, c Config) clientv3.Config {
	return clientv3.Config{
		Context:              life,
		Endpoints:            c.Endpoints,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    pingInterval,
		DialKeepAliveTimeout: pingTimeout,
		TLS:                  c.TLS,
		Username:             c.Username,
		Password:             c.Password,
		Logger:               zap.NewNop(), // each error is returned
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: c.DialTimeout,
		})},
	}
}

// ground is the least that a user may read: the start of all keys of starfish.
const ground = "/starfish/"

// Check makes one linearizable request, so that nil means: a cluster with a
// leader answers. It warns of an etcd that is not supported.
func (s *Store) Check(ctx context.Context) error {
	_, err := store.Lookup(ctx, s, ground)
	if isAccess(err) {
		return fmt.Errorf("connect to etcd at %s: %w", s.endpoints, err)
	}
	if err != nil {
		return fmt.Errorf("etcd at %s does not answer: %w", s.endpoints, err)
	}
	s.warnOfVersion(ctx)
	return nil
}

// Close ends all watches and connections. It may be called more than once.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	if first {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	if !first {
		return nil
	}
	err := s.client.Close()
	s.release()
	s.watches.Wait()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}

// request bounds ctx and refuses to go on with a broken history.
func (s *Store) request(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := s.history.broken(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	return ctx, cancel, nil
}
