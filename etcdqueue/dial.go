package etcdqueue

import (
	"context"
	"strings"

	"starfish/internal/store"
	"starfish/internal/store/etcd"
)

// Dial opens the queue below prefix in an etcd cluster, for programs that use
// the queue alone. Close also closes the connection. c.Store is ignored.
func Dial(endpoints []string, prefix string, c Config) (*Queue, error) {
	s, err := etcd.Dial(context.Background(), etcd.Config{Endpoints: endpoints, Log: c.Log})
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
