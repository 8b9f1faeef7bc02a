package checkpoint_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
)

// many is a store in which one process owns so many shards.
func many(t *testing.T, shards int) *fake.Store {
	t.Helper()
	st := fake.New(fake.Options{})
	v := membership.View{Shards: make([]membership.Owner, shards)}
	for i := range v.Shards {
		own := owner(i, 1)
		v.Shards[i] = membership.Owner{Name: "p", Incarnation: own.Incarnation, Generation: own.Generation}
	}
	_, err := st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", v.Encode(), 0)}})
	require.NoError(t, err)
	return st
}

func listing(shard int) checkpoint.Listing {
	id := uuid.NewString()
	return checkpoint.Listing{Owner: owner(shard, 1), Keep: 2, Meta: checkpoint.Meta{
		UUID: id, Path: fmt.Sprintf("%04d-%010d-%s.ckpt", shard, 1, id), MD5: "0", Shard: shard, Generation: 1,
	}}
}

// newest are the UUIDs of the shards' newest records, "" if there is none, and
// whether they are marked as listed.
func newest(t *testing.T, st store.Store, shards int) (ids []string, marked []bool) {
	t.Helper()
	all, _, err := checkpoint.ListAll(t.Context(), st, shards)
	require.NoError(t, err)
	v, err := membership.ReadView(t.Context(), st)
	require.NoError(t, err)
	for i, metas := range all {
		id := ""
		if len(metas) > 0 {
			id = metas[0].UUID
		}
		ids, marked = append(ids, id), append(marked, v.Shards[i].Listed)
	}
	return ids, marked
}

func TestPublishAllIsOneTransaction(t *testing.T) {
	t.Parallel()
	const shards = checkpoint.MaxListings
	st := many(t, shards)
	var before []checkpoint.Listing
	for round := range 4 {
		var ls []checkpoint.Listing
		for i := range shards {
			ls = append(ls, listing(i))
		}
		owners, rev := view(t, st).Revision, st.Revision()
		for i, out := range checkpoint.PublishAll(t.Context(), st, ls) {
			require.NoError(t, out.Err)
			if round < 2 {
				require.Empty(t, out.Dropped)
				continue
			}
			require.Len(t, out.Dropped, 1)
			require.NotEqual(t, before[i].Meta.UUID, out.Dropped[0].UUID, "the oldest")
		}
		require.Equal(t, rev+1, st.Revision())
		require.Equal(t, round > 0, view(t, st).Revision == owners, "marked once")
		ids, marked := newest(t, st, shards)
		for i := range ls {
			require.Equal(t, ls[i].Meta.UUID, ids[i])
			require.True(t, marked[i])
		}
		before = ls
	}
}

func view(t *testing.T, st store.Store) membership.View {
	t.Helper()
	v, err := membership.ReadView(t.Context(), st)
	require.NoError(t, err)
	return v
}

// One that may not be listed does not keep the others from it.
func TestPublishAllFailsOneByOne(t *testing.T) {
	t.Parallel()
	st := many(t, 4)
	ls := []checkpoint.Listing{listing(0), listing(1), listing(2), listing(3)}
	ls[1].Owner.Incarnation = "another"
	ls[2].Meta.Path = "../elsewhere"
	_, err := st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("checkpoints/0003/0000000001", []byte("{}"), 0)}})
	require.NoError(t, err)
	out := checkpoint.PublishAll(t.Context(), st, ls)
	require.NoError(t, out[0].Err)
	require.ErrorIs(t, out[1].Err, checkpoint.ErrNotOwner)
	require.ErrorContains(t, out[1].Err, "shard 1")
	require.ErrorIs(t, out[2].Err, checkpoint.ErrFormat)
	require.ErrorContains(t, out[3].Err, "record")
	require.Equal(t, []bool{true, false, false, false}, func() (marked []bool) {
		for _, o := range view(t, st).Shards {
			marked = append(marked, o.Listed)
		}
		return marked
	}())
}

// All of them are found again, and what they dropped is still told.
func TestPublishAllLosesTheAnswer(t *testing.T) {
	t.Parallel()
	st := many(t, 3)
	c := st.Client("p")
	var last []checkpoint.Listing
	for round := range 3 {
		last = []checkpoint.Listing{listing(0), listing(1), listing(2)}
		lost := false
		c.FailAfter(func(op, key string) error {
			if op == "put" && !lost {
				lost = true
				return errors.New("no answer")
			}
			return nil
		})
		rev := st.Revision()
		for _, out := range checkpoint.PublishAll(t.Context(), c, last) {
			require.NoError(t, out.Err)
			require.Equal(t, round == 2, len(out.Dropped) == 1)
		}
		require.True(t, lost)
		require.Equal(t, rev+1, st.Revision(), "written once")
	}
	ids, _ := newest(t, st, 3)
	for i := range last {
		require.Equal(t, last[i].Meta.UUID, ids[i])
	}
}

// etcd bounds the size of a transaction.
func TestPublishAllOfLargeRecords(t *testing.T) {
	t.Parallel()
	st := many(t, 5)
	var ls []checkpoint.Listing
	for i := range 5 {
		l := listing(i)
		text, err := json.Marshal(strings.Repeat("x", 100<<10))
		require.NoError(t, err)
		l.Meta.Ledger = text
		ls = append(ls, l)
	}
	rev := st.Revision()
	for _, out := range checkpoint.PublishAll(t.Context(), st, ls) {
		require.NoError(t, out.Err)
	}
	require.Equal(t, rev+3, st.Revision(), "two at a time")
}

func TestPublisherGathers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const shards = checkpoint.MaxListings + 8
		st := many(t, shards)
		p := checkpoint.NewPublisher(st, clock.System)
		rev, began := st.Revision(), time.Now()
		var wg sync.WaitGroup
		for i := range shards {
			a := p.Announce()
			wg.Go(func() {
				defer a.Withdraw()
				time.Sleep(time.Duration(i) * time.Millisecond) // it is being written
				if i == 3 {
					return // and is not well
				}
				_, err := a.Publish(t.Context(), listing(i))
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Equal(t, rev+2, st.Revision(), "as many as fit, and the others")
		require.Less(t, time.Since(began), 50*time.Millisecond, "nobody waits longer than for the last")
		ids, _ := newest(t, st, shards)
		for i, id := range ids {
			require.Equal(t, i == 3, id == "", "shard %d", i)
		}
	})
}

func TestPublisherWaitsForNothingAndNobodyForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := many(t, 3)
		p := checkpoint.NewPublisher(st, clock.System)
		began := time.Now()
		_, err := p.Announce().Publish(t.Context(), listing(0))
		require.NoError(t, err)
		require.Zero(t, time.Since(began))

		slow := p.Announce() // a large shard
		_, err = p.Announce().Publish(t.Context(), listing(1))
		require.NoError(t, err)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		slow.Withdraw()
		slow.Withdraw()
		_, err = p.Announce().Publish(t.Context(), listing(2))
		require.NoError(t, err)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
	})
}

// gate lets no write through until it opens, or the request is given up.
type gate struct {
	store.Store
	open chan struct{}
}

func (g gate) Txn(ctx context.Context, t store.Txn) (store.Result, error) {
	if len(t.If) > 0 {
		select {
		case <-g.open:
		case <-ctx.Done():
			return store.Result{}, context.Cause(ctx)
		}
	}
	return g.Store.Txn(ctx, t)
}

// Who is given up leaves at once if its file is not under way, and else not
// before it is known what became of it; the others go on.
func TestPublisherIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := many(t, 4)
		g := gate{st, make(chan struct{})}
		p := checkpoint.NewPublisher(g, clock.System)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		var over [4]bool
		cancels := make([]context.CancelFunc, 4)
		start := func(i int, a *checkpoint.Announcement) {
			var ctx context.Context
			ctx, cancels[i] = context.WithCancel(t.Context())
			wg.Go(func() {
				_, errs[i] = a.Publish(ctx, listing(i))
				over[i] = true
			})
		}
		a, b := p.Announce(), p.Announce()
		start(0, a)
		start(1, b)
		synctest.Wait() // 0 and 1 are under way
		start(2, p.Announce())
		start(3, p.Announce())
		synctest.Wait()
		cancels[0]()
		cancels[2]()
		synctest.Wait()
		require.Equal(t, [4]bool{2: true}, over)
		require.ErrorIs(t, errs[2], context.Canceled)

		close(g.open)
		wg.Wait()
		require.NoError(t, errs[0], "it got through")
		require.NoError(t, errs[1])
		require.NoError(t, errs[3])
		ids, _ := newest(t, st, 4)
		require.Empty(t, ids[2])
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// When nobody wants it any more the writing ends, also one that gets no answer.
func TestPublisherIsGivenUpByAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate{many(t, 2), make(chan struct{})}
		p := checkpoint.NewPublisher(g, clock.System)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		as := []*checkpoint.Announcement{p.Announce(), p.Announce()}
		for i, a := range as {
			wg.Go(func() {
				_, err := a.Publish(ctx, listing(i))
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		ids, marked := newest(t, g.Store, 2)
		require.Equal(t, []string{"", ""}, ids)
		require.Equal(t, []bool{false, false}, marked)
	})
}
