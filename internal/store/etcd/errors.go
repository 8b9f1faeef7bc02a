package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"starfish/internal/store"
)

// translate is an error of etcd's client in the words of package store. What
// is not translated is retryable, and may hide a success.
func translate(ctx context.Context, err error) error {
	var refused rpctypes.EtcdError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.ErrLeaseNotFound
	case errors.As(err, &refused) && refused.Code() == codes.InvalidArgument:
		return fmt.Errorf("%w: %w", store.ErrInvalid, err)
	case status.Code(err) == codes.InvalidArgument || status.Code(err) == codes.ResourceExhausted && tooLarge(err):
		return fmt.Errorf("%w: %w", store.ErrInvalid, err)
	case ctx.Err() != nil:
		return fmt.Errorf("etcd request: %w", context.Cause(ctx))
	}
	return fmt.Errorf("etcd request: %w", err)
}

// tooLarge tells a message over gRPC's limit from an etcd that is short of
// space or overloaded.
func tooLarge(err error) bool {
	var refused rpctypes.EtcdError
	return !errors.As(err, &refused)
}

func unavailable(err error) bool {
	var refused rpctypes.EtcdError
	if errors.As(err, &refused) {
		return refused.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}
