package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"starfish/internal/store"
)

// Grant implements store.Store.
func (s *Store) Grant(ctx context.Context, ttl time.Duration) (store.LeaseID, time.Duration, error) {
	rctx, cancel, err := s.request(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer cancel()
	seconds := max(1, int64((ttl+time.Second-1)/time.Second))
	r, err := s.client.Grant(rctx, seconds)
	if err != nil {
		return 0, 0, translate(ctx, err)
	}
	if err := s.history.identified(r.ResponseHeader); err != nil {
		return 0, 0, err
	}
	return store.LeaseID(r.ID), time.Duration(r.TTL) * time.Second, nil
}

// KeepAlive implements store.Store. It makes one request of its own, not the
// client's shared stream, so that the caller knows when the renewal was sent.
func (s *Store) KeepAlive(ctx context.Context, id store.LeaseID) (time.Duration, error) {
	rctx, cancel, err := s.request(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	r, err := s.client.KeepAliveOnce(rctx, clientv3.LeaseID(id))
	if r != nil {
		if err := s.history.identified(r.ResponseHeader); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, translate(ctx, err)
	}
	return time.Duration(r.TTL) * time.Second, nil
}

// Revoke implements store.Store.
func (s *Store) Revoke(ctx context.Context, id store.LeaseID) error {
	rctx, cancel, err := s.request(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	_, err = s.client.Revoke(rctx, clientv3.LeaseID(id))
	err = translate(ctx, err)
	if errors.Is(err, store.ErrLeaseNotFound) {
		return nil
	}
	return err
}
