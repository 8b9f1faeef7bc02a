package etcdqueue

import (
	"context"
	"crypto/tls"
	"strings"

	"starfish/internal/store"
	"starfish/internal/store/etcd"
)

// Etcd is a cluster of etcd, and who its user is.
type Etcd struct {
	// Endpoints, each host:port or a URL. At least one.
	Endpoints []string
	// TLS of the connections; nil: none.
	TLS *tls.Config
	// Username and Password for etcd's authentication; empty: none.
	Username, Password string
}

// Dial opens the queue below prefix in an etcd cluster, for programs that use
// the queue alone. Close also closes the connection. It does not wait for a
// connection, unless there is TLS or a password: these are tried, as long as ctx
// lives; the queue may live longer. c.Store is ignored.
func Dial(ctx context.Context, cluster Etcd, prefix string, c Config) (*Queue, error) {
	s, err := etcd.Dial(ctx, etcd.Config{
		Endpoints: cluster.Endpoints, TLS: cluster.TLS, Username: cluster.Username, Password: cluster.Password, Log: c.Log,
	})
	if err != nil {
		return nil, err
	}
	c.Store = store.Prefixed(s, strings.TrimSuffix(prefix, "/")+"/")
	q, err := New(c)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	q.closer = s
	return q, nil
}
