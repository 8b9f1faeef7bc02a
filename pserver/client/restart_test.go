package client_test

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"starfish/internal/clock"
	"starfish/internal/loopback"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/pserver/client/clienttest"
)

// A pserver is started anew ten times at the same port of a real network. Each
// time the session breaks, once, and the next one works; neither goroutines nor
// descriptors add up. It counts those of the process and therefore runs alone.
func TestRestartsLeaveNothing(t *testing.T) { //nolint:paralleltest // see above
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{{Name: "w", Sparse: true, Dim: 1}}}
	st, id := fake.New(fake.Options{Clock: clock.System}), uuid.New()
	c, err := client.New(client.Config{Network: transport.TCP, Store: st, Job: id, Parameters: p, Log: quiet()})
	require.NoError(t, err)
	batch, address := c.NewBatch(), net.JoinHostPort(loopback.Host(), "0")
	begin := func(generation int64) *clienttest.Server {
		s := &clienttest.Server{Name: "pserver-0", Incarnation: uuid.NewString(), Job: id, Parameters: p, Generations: map[int]int64{0: generation}}
		s.Start(t, transport.TCP, address)
		v := membership.View{Shards: []membership.Owner{s.Owner(0)}}
		address = v.Shards[0].Address
		_, err := st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("owners", v.Encode(), 0)}})
		require.NoError(t, err)
		return s
	}
	life := func(generation int64) {
		server := begin(generation)
		s, err := c.Connect(t.Context())
		require.NoError(t, err)
		defer s.Close()
		batch.Prepare([][]uint64{{1, 2, 3}})
		exchange(t, s, batch, client.PushMeta{}, nil)
		require.NoError(t, s.Err())
		server.Stop()
		<-s.Done()
		var f *client.FaultError
		require.ErrorAs(t, s.Err(), &f)
	}
	life(1)
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)
	for i := range int64(10) {
		life(i + 2)
	}
	for limit := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines || openFiles(t) > descriptors; { //nolint:forbidigo // real time
		if time.Now().After(limit) { //nolint:forbidigo // real time
			t.Fatalf("%d goroutines and %d descriptors, %d and %d before the restarts",
				runtime.NumGoroutine(), openFiles(t), goroutines, descriptors)
		}
		runtime.Gosched() // what has ended may take a moment to be gone
	}
}

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("descriptors cannot be counted here")
	}
	return len(list)
}
