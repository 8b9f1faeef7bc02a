package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// requestKey asks the owner of each shard for a checkpoint. Its mod revision is
// the number of the request; what it holds only tells one from another.
const requestKey = "requests/checkpoint"

// requestRecord is the record's value.
type requestRecord struct {
	V  int    `json:"v"`
	ID string `json:"id"`
}

// Request asks the owners of all shards to save them at once, if guard holds,
// and returns the request's number: a save answers it if its cut was taken after
// the owner had seen this number or a later one. A request replaces the one
// before. After an error it may have been made.
func Request(ctx context.Context, st store.Store, guard store.Cmp) (int64, error) {
	value, err := json.Marshal(requestRecord{V: 1, ID: uuid.NewString()})
	if err != nil {
		return 0, fmt.Errorf("checkpoint: request: %w", err)
	}
	r, err := st.Txn(ctx, store.Txn{If: []store.Cmp{guard}, Then: []store.Op{store.Put(requestKey, value, 0)}})
	switch {
	case err != nil:
		return 0, fmt.Errorf("checkpoint: request: %w", err)
	case !r.Succeeded:
		return 0, fmt.Errorf("checkpoint: request: %w", errConflict)
	}
	return r.Revision, nil
}

// Withdraw removes a request, unless another has taken its place. A request that
// stays costs each new owner of a shard one save.
func Withdraw(ctx context.Context, st store.Store, number int64) error {
	_, err := st.Txn(ctx, store.Txn{If: []store.Cmp{store.Unchanged(requestKey, number)}, Then: []store.Op{store.Delete(requestKey)}})
	if err != nil {
		return fmt.Errorf("checkpoint: withdraw the request: %w", err)
	}
	return nil
}

// WatchRequests delivers the number of the present request and of each later
// one; a slow receiver gets the latest only. The channel is closed when ctx ends
// or the store's history went backwards.
func WatchRequests(ctx context.Context, st store.Store, clk clock.Clock) <-chan int64 {
	out := make(chan int64, 1)
	go func() {
		defer close(out)
		_ = store.Follow(ctx, st, clk, requestKey, "", func(s store.Snapshot) {
			number := s.KVs[requestKey].ModRev
			if number == 0 {
				return
			}
			select {
			case <-out:
			default:
			}
			out <- number // has room: this is the only sender
		})
	}()
	return out
}
