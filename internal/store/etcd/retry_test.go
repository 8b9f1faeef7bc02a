package etcd_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"starfish/internal/store"
	"starfish/internal/store/etcd"
)

// flaky is an etcd that has lost its leader for some transactions.
type flaky struct {
	pb.UnimplementedKVServer

	failures, calls atomic.Int64
}

func (f *flaky) Txn(_ context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if len(r.Success)+len(r.Failure) == 0 {
		return nil, rpctypes.ErrGRPCNotCapable // etcd would not read linearizably
	}
	if f.calls.Add(1) <= f.failures.Load() {
		return nil, rpctypes.ErrGRPCLeaderChanged
	}
	return &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 7}, Succeeded: true}, nil
}

func TestReadsAreRepeatedAndWritesAreNot(t *testing.T) {
	t.Parallel()
	read := store.Txn{If: []store.Cmp{store.Absent("k")}, Then: []store.Op{store.Get("k")}}
	write := store.Txn{Then: []store.Op{store.Get("k")}, Else: []store.Op{store.Put("k", nil, 0)}}
	for name, c := range map[string]struct {
		txn             store.Txn
		failures, calls int64
		fails           bool
	}{
		"a read":                  {read, 2, 3, false},
		"a read in a long outage": {read, 100, 5, true},
		"a write":                 {write, 1, 1, true},
		"conditions only":         {store.Txn{If: read.If}, 2, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{}
			f.failures.Store(c.failures)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			server := grpc.NewServer()
			pb.RegisterKVServer(server, f)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
			s := dial(t, etcd.Config{Endpoints: []string{l.Addr().String()}})

			r, err := s.Txn(t.Context(), c.txn)
			require.Equal(t, c.calls, f.calls.Load())
			if c.fails {
				require.ErrorIs(t, err, rpctypes.ErrLeaderChanged, "the cause is not hidden")
				return
			}
			require.NoError(t, err)
			require.Equal(t, int64(7), r.Revision)
		})
	}
}
