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

// What is wrong with the configuration of a client that etcd does not let in.
// Once it was let in they are retryable: access that was taken away may be
// given again.
var (
	// ErrTLS: no endpoint could be connected to, and one because of the
	// certificates of either side.
	ErrTLS = errors.New("no secure connection")
	// ErrLogin: the user is unknown, or the password another one.
	ErrLogin = errors.New("user or password is wrong")
	// ErrNoUser: etcd's authentication is on, and no user was named.
	ErrNoUser = errors.New("it asks for a user and a password")
	// ErrForbidden: the user may not read or write what was asked for.
	ErrForbidden = errors.New("the user has no access")
)

// access are the errors of etcd's authentication by etcd's own.
var access = map[error]error{
	rpctypes.ErrAuthFailed:       ErrLogin,
	rpctypes.ErrUserEmpty:        ErrNoUser,
	rpctypes.ErrPermissionDenied: ErrForbidden,
}

// denied is err if it is one of those, else nil.
func denied(err error) error {
	for theirs, ours := range access {
		if errors.Is(err, theirs) {
			return ours // theirs says no more
		}
	}
	return nil
}

// isAccess tells the errors of the configuration.
func isAccess(err error) bool {
	return errors.Is(err, ErrTLS) || errors.Is(err, ErrLogin) || errors.Is(err, ErrNoUser) || errors.Is(err, ErrForbidden)
}

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
	case denied(err) != nil:
		return denied(err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return store.ErrFull
	case errors.Is(err, rpctypes.ErrAuthOldRevision):
		return fmt.Errorf("etcd request: %w", err) // users were changed meanwhile
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
