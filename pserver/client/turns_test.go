package client_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/wire"
	"starfish/pserver/client"
	"starfish/pserver/client/clienttest"
)

// Whoever waits for one shard asks the others now and then whether they know of the
// batch still, without a pull: an older word may have come to them since.
func TestAwaitAgainAsksEveryShard(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked, pulled []int
	forgotten := false
	b := setup(t, 1, func(s *clienttest.Server) {
		s.Refuse = func(r *wire.ShardRequest) (wire.Code, int64, string) {
			mu.Lock()
			defer mu.Unlock()
			if r.Barrier.Kind != wire.Await {
				return wire.OK, 0, ""
			}
			asked = append(asked, r.Shard)
			if len(r.Dense) > 0 {
				pulled = append(pulled, r.Shard)
			}
			switch {
			case r.Shard == 1:
				return wire.Waiting, 0, "step 7 waits for trainer-1"
			case r.Shard == 0 && forgotten:
				return wire.Closed, 8, ""
			}
			return wire.OK, 0, ""
		}
	})
	reset := func() (all, values []int) {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(asked)
		slices.Sort(pulled)
		all, values = asked, pulled
		asked, pulled = nil, nil
		return all, values
	}
	s := b.open(t)
	push, pull := b.client.NewBatch(), b.client.NewBatch()
	push.Prepare([][]uint64{nil, nil})
	pull.Prepare([][]uint64{nil, nil})
	call, err := s.Step(t.Context(), push, client.PushMeta{Records: 1, Token: 1}, 7, pull)
	require.NoError(t, err)
	require.NoError(t, call.Wait(t.Context()))
	closed, waiting, _ := call.Turn()
	require.EqualValues(t, -1, closed)
	require.Contains(t, waiting, "step 7 waits for trainer-1")
	all, _ := reset()
	require.Equal(t, []int{0, 1, 2, 3}, all)

	for _, again := range []bool{false, true, false, true} {
		call, err = s.Await(t.Context(), call, again)
		require.NoError(t, err)
		require.NoError(t, call.Wait(t.Context()))
		closed, waiting, _ = call.Turn()
		require.EqualValues(t, -1, closed)
		require.Contains(t, waiting, "shard 1")
		all, values := reset()
		want := []int{1}
		if again {
			want = []int{0, 1, 2, 3}
		}
		require.Equal(t, want, all)
		require.Subset(t, []int{1}, values)
	}

	mu.Lock()
	forgotten = true
	mu.Unlock()
	call, err = s.Await(t.Context(), call, true)
	require.NoError(t, err)
	require.NoError(t, call.Wait(t.Context()))
	closed, _, _ = call.Turn()
	require.EqualValues(t, 8, closed, "the batch has to go to all of them again")
}
