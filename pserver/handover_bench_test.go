package pserver_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver"
	"starfish/pserver/client"
)

const handOverSpec = `
job: test
data: {train: [data]}
model: {type: linear}
shards: 1
checkpoint: {dir: %s, interval: 1h}
run: {pservers: 1, trainers: 1}
`

// ferry is a job of one shard that goes to and fro between pservers, on the
// machine's disk and clock; the store and the network are in memory.
type ferry struct {
	b     *testing.B
	store *fake.Store
	net   *transport.Memory
	job   job.Job
	n     int
}

func newFerry(b *testing.B) *ferry {
	b.Helper()
	f := &ferry{b: b, store: fake.New(fake.Options{}), net: transport.NewMemory(clock.System)}
	spec, err := job.ParseSpec(fmt.Appendf(nil, handOverSpec, b.TempDir()), "/", nil)
	require.NoError(b, err)
	p := job.Parameters{V: 1, Shards: 1, List: []job.Parameter{
		{Name: "rows", Sparse: true, Dim: 1, Optimizer: job.OptimizerSettings{Type: "adagrad", LearningRate: 0.1, Epsilon: 1e-10}, Init: job.Initializer{Kind: job.InitZeros}, Reduction: job.ReductionSum, Divisor: 1},
	}}
	f.job, err = job.Create(b.Context(), f.client("creator"), spec, p,
		append(etcdqueue.InitialOps(etcdqueue.Manifest{Chunks: 1 << 20}, spec.Queue.Lanes), membership.InitialOwners(1))...)
	require.NoError(b, err)
	return f
}

func (f *ferry) client(name string) store.Store { return store.Prefixed(f.store.Client(name), prefix) }

// start starts a pserver; stop is SIGTERM, and waits.
func (f *ferry) start() (s *pserver.Server, stop func()) {
	f.b.Helper()
	f.n++
	name := fmt.Sprintf("pserver-%d", f.n)
	log := logrus.New()
	log.SetOutput(io.Discard)
	s, err := pserver.New(pserver.Config{Store: f.client(name), Network: f.net.Host(name), Log: log, Name: name, Drain: time.Minute})
	require.NoError(f.b, err)
	ctx, cancel := context.WithCancel(f.b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, func() {
		cancel()
		require.NoError(f.b, <-done)
	}
}

func (f *ferry) until(ok func() bool) {
	f.b.Helper()
	for range 60_000 {
		if ok() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.b.Fatal("waited in vain")
}

// fill makes so many rows.
func (f *ferry) fill(rows int) {
	f.b.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	c, err := client.New(client.Config{Network: f.net.Host("trainer"), Store: f.client("trainer"), Job: f.job.UUID, Parameters: f.job.Parameters, Log: log})
	require.NoError(f.b, err)
	s, err := c.Connect(f.b.Context())
	require.NoError(f.b, err)
	defer s.Close()
	batch, keys := c.NewBatch(), make([]uint64, 0, 1<<17)
	for n := 0; rows > 0; n++ {
		keys = keys[:0]
		for range min(rows, cap(keys)) {
			keys = append(keys, uint64(rows))
			rows--
		}
		batch.Prepare([][]uint64{keys})
		call, err := s.Exchange(f.b.Context(), batch, client.PushMeta{N: int64(n), Token: 1, Records: 1}, nil)
		require.NoError(f.b, err)
		require.NoError(f.b, call.Wait(f.b.Context()))
	}
}

// size is that of the newest listed checkpoint, in MiB.
func (f *ferry) size() float64 {
	f.b.Helper()
	ms, _, err := checkpoint.List(f.b.Context(), f.client("bench"), 0)
	require.NoError(f.b, err)
	return float64(ms[0].Size) / (1 << 20)
}

// BenchmarkHandOver prints for how long a shard is not served when it is handed
// over, by the size of its checkpoint: the giver's part (cut, file, fsync, listing,
// transaction) and the receiver's (load and verify), median and p90.
//
//	go test -run - -bench HandOver -benchtime 11x ./pserver
func BenchmarkHandOver(b *testing.B) {
	for _, mb := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("%d MB", mb), func(b *testing.B) {
			f := newFerry(b)
			owner, stop := f.start()
			f.until(func() bool { return len(owner.Status().Shards) == 1 && owner.Status().Shards[0].Serving })
			f.fill(mb << 20 / 16)
			var gives, loads, pauses []float64
			for b.Loop() {
				next, stopNext := f.start()
				f.until(func() bool { return next.Status().Registered })
				before := owner.Status().Shards[0].HandOverSeconds
				stop()
				f.until(func() bool { s := next.Status().Shards; return len(s) == 1 && s[0].Serving })
				s := next.Status().Shards[0]
				pause := s.HandOverSeconds - before
				pauses, loads, gives = append(pauses, pause), append(loads, s.Recovered), append(gives, pause-s.Recovered)
				owner, stop = next, stopNext
			}
			stop()
			b.ReportMetric(f.size(), "MiB")
			report := func(name string, x []float64) {
				slices.Sort(x)
				b.ReportMetric(1000*x[len(x)/2], name+"-median-ms")
				b.ReportMetric(1000*x[(9*len(x)-1)/10], name+"-p90-ms")
			}
			report("pause", pauses)
			report("give", gives)
			report("load", loads)
			b.ReportMetric(0, "ns/op")
		})
	}
}
