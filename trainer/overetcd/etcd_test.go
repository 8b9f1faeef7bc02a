package overetcd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/storetest"
)

// endpoints are those of all members.
func endpoints(members []*storetest.Process) []string {
	var all []string
	for _, m := range members {
		all = append(all, m.Endpoint)
	}
	return all
}

// whole skips what takes seconds.
func whole(t *testing.T) {
	t.Helper()
	t.Parallel()
	if testing.Short() {
		t.Skip("takes seconds")
	}
}

// An etcd without space takes no writes: the job pauses and says why, and goes on
// when there is space again.
func TestOutOfSpace(t *testing.T) {
	whole(t)
	small := storetest.NewSmall(t, 16<<20)
	w, seen := newWorld(t, small.Server.Endpoints(), 5*time.Second)
	w.underway()
	before := w.members()
	small.Fill()
	w.hurry() // the chunks in hand come to their end
	const says = "etcd is out of space"
	for _, tr := range w.trainers {
		w.until("each trainer says why it waits", func() bool {
			err := tr.Ready()
			return err != nil && strings.Contains(err.Error(), says) && strings.Contains(tr.Status().Waiting, says)
		})
	}
	require.Contains(t, w.log.String(), says)
	require.ErrorIs(t, store.TryWrite(t.Context(), w.store, "state"), store.ErrFull)
	paused, err := w.totals()
	require.NoError(t, err, "it can still be read")
	require.Positive(t, paused.Todo+paused.Pending)
	require.Equal(t, before, w.members(), "leases are renewed")
	small.Mend()
	w.finish(seen)
}

// An etcd of three members that loses one goes on: nobody loses a lease. Every
// client talks to all of them in turn.
func TestAMemberIsLost(t *testing.T) {
	whole(t)
	cases := map[string]struct {
		leads  bool
		strike func(*storetest.Process)
	}{
		"the leader is killed":    {true, (*storetest.Process).Kill},
		"a follower is killed":    {false, (*storetest.Process).Kill},
		"the leader falls silent": {true, (*storetest.Process).Stop},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members := storetest.Processes(t, 3)
			w, seen := newWorld(t, endpoints(members), 10*time.Second)
			w.underway()
			before := w.members()
			for _, m := range members {
				if m.Leads() == c.leads {
					c.strike(m)
					break
				}
			}
			w.goesOn()
			require.Equal(t, before, w.members(), "nobody had to register again")
			r := w.finish(seen)
			for _, s := range r.Shards {
				require.EqualValues(t, 1, s.Generation, "shard %d", s.Shard)
			}
		})
	}
}

// An etcd that is stopped for a while, with its connections open: leases that
// are longer than that live on; after shorter ones everybody registers again, and
// nothing is lost.
func TestEtcdIsStopped(t *testing.T) {
	whole(t)
	const away = 8 * time.Second
	for name, ttl := range map[string]time.Duration{"for longer than a lease": 5 * time.Second, "for less": 15 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := storetest.Processes(t, 1)
			w, seen := newWorld(t, endpoints(server), ttl)
			w.underway()
			before := w.members()
			server[0].Stop()
			time.Sleep(away)
			server[0].Continue()
			w.goesOn()
			if ttl > away {
				require.Equal(t, before, w.members(), "nobody had to register again")
			}
			r := w.finish(seen)
			for _, s := range r.Shards {
				require.True(t, ttl < away || s.Generation == 1, "shard %d", s.Shard)
			}
		})
	}
}
