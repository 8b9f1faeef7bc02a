package overetcd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/store"
	"starfish/internal/store/etcd"
	"starfish/internal/store/storetest"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver"
	"starfish/trainer"
	"starfish/trainer/model"
)

func TestMain(m *testing.M) {
	storetest.ServeIfAsked()
	goleak.VerifyTestMain(m)
}

// patience is more than any test takes; it only ends one that hangs.
const patience = time.Minute

// world is a whole job over an etcd: two pservers and two trainers, each with a
// connection of its own.
type world struct {
	t         *testing.T
	endpoints []string
	spec      *job.Spec
	net       *transport.Memory
	disk      *memfs.FS
	store     store.Store // the job's part
	log       safeBuffer
	pace      atomic.Int64 // nanoseconds that a batch takes
	trainers  []*trainer.Trainer
	ends      chan error
	running   int
}

// slow is how long a batch takes until hurry is called: a job that is to meet a
// fault must not end before it.
const slow = 100 * time.Millisecond

const (
	rows   = 2000
	passes = 2
)

func newWorld(t *testing.T, endpoints []string, ttl time.Duration) (w *world, seen map[uint64]int64) {
	t.Helper()
	file, seen := records(t)
	spec, err := job.ParseSpec(fmt.Appendf(nil, `
job: test
data: {train: [%s], format: libsvm, chunk: 300}
model: {type: count}
train: {passes: %d, batch: 8, seed: 3}
shards: 4
queue: {lanes: 8}
checkpoint: {dir: /checkpoints, interval: 1s}
lease_ttl: %v
`, file, passes, ttl), "/", nil)
	require.NoError(t, err)
	w = &world{t: t, endpoints: endpoints, spec: spec, net: transport.NewMemory(clock.System), disk: memfs.New(), ends: make(chan error, 4)}
	w.pace.Store(int64(slow))
	w.store = w.dial()
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 2 {
		w.pserver(ctx, fmt.Sprintf("pserver-%d", i))
		w.trainer(ctx, fmt.Sprintf("trainer-%d", i))
	}
	t.Cleanup(func() { // before the connections end, also of a test that has failed
		cancel()
		for ; w.running > 0; w.running-- {
			<-w.ends
		}
	})
	return w, seen
}

// records writes libsvm records and returns how often each key occurs.
func records(t *testing.T) (file string, seen map[uint64]int64) {
	t.Helper()
	seen = map[uint64]int64{}
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, "%d", i%2)
		for k := range 1 + i%4 {
			key := uint64(i*7+k*13) % 97
			seen[key]++
			fmt.Fprintf(&b, " %d:1", key)
		}
		b.WriteByte('\n')
	}
	file = filepath.Join(t.TempDir(), "data.libsvm")
	require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	return file, seen
}

func (w *world) dial() store.Store {
	w.t.Helper()
	s, err := etcd.Dial(w.t.Context(), etcd.Config{Endpoints: w.endpoints})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Close()) })
	return store.Prefixed(s, job.Prefix("test"))
}

func (w *world) logger() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(&w.log)
	return l
}

func (w *world) pserver(ctx context.Context, name string) {
	w.t.Helper()
	s, err := pserver.New(pserver.Config{Store: w.dial(), Network: w.net.Host(name), FS: w.disk, Log: w.logger(), Name: name})
	require.NoError(w.t, err)
	w.start(func() error { return s.Run(ctx) })
}

func (w *world) trainer(ctx context.Context, name string) {
	w.t.Helper()
	tr, err := trainer.New(trainer.Config{
		Store: w.dial(), Network: w.net.Host(name), Log: w.logger(), Job: "test", Spec: w.spec, Name: name,
		Models: map[string]trainer.Builder{model.Count: func(spec *job.Spec) (model.Model, error) {
			m, err := model.New(spec)
			return paced{m, &w.pace}, err
		}},
	})
	require.NoError(w.t, err)
	w.trainers = append(w.trainers, tr)
	w.start(func() error { return tr.Run(ctx) })
}

func (w *world) start(run func() error) {
	w.running++
	go func() { w.ends <- run() }()
}

// paced is a model whose batches take their time.
type paced struct {
	model.Model
	pace *atomic.Int64
}

func (p paced) Gradient(s *model.Step) float64 {
	time.Sleep(time.Duration(p.pace.Load()))
	return p.Model.Gradient(s)
}

// hurry lets the job come to its end.
func (w *world) hurry() { w.pace.Store(0) }

// until waits for a condition.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ok, patience, 20*time.Millisecond, what)
}

// totals are the sums of the lanes.
func (w *world) totals() (etcdqueue.Totals, error) {
	q, err := etcdqueue.New(etcdqueue.Config{Store: w.store})
	require.NoError(w.t, err)
	defer q.Close()
	totals, _, err := q.Totals(w.t.Context())
	return totals, err
}

// underway waits until everybody is registered and chunks are complete.
func (w *world) underway() {
	w.t.Helper()
	w.until("the job trains", func() bool {
		t, err := w.totals()
		return err == nil && t.Complete > 0 && len(w.members()) == 4
	})
}

// goesOn waits until more chunks are complete than now, or than when etcd can be
// asked again.
func (w *world) goesOn() {
	w.t.Helper()
	at := int64(-1)
	w.until("the job goes on", func() bool {
		now, err := w.totals()
		if err == nil && at < 0 {
			at = now.Complete
		}
		return err == nil && now.Complete > at+4
	})
}

// members are the registrations by name, each with the revision at which it was
// written.
func (w *world) members() map[string]int64 {
	w.t.Helper()
	pservers, trainers := store.Range("pservers/", store.PrefixEnd("pservers/"), 0), store.Range("trainers/", store.PrefixEnd("trainers/"), 0)
	all := map[string]int64{}
	w.until("etcd answers", func() bool { // one may be asked that has gone
		r, err := store.Read(w.t.Context(), w.store, pservers, trainers)
		for _, kvs := range r.KVs {
			for _, kv := range kvs {
				all[kv.Key] = kv.ModRev
			}
		}
		return err == nil
	})
	return all
}

// finish waits for the end of every process and demands that each record has
// counted once in every pass. It returns the result.
func (w *world) finish(seen map[uint64]int64) job.Result {
	w.t.Helper()
	w.hurry()
	limit := time.After(patience)
	for ; w.running > 0; w.running-- {
		select {
		case err := <-w.ends:
			require.NoError(w.t, err)
		case <-limit:
			require.Fail(w.t, "the job has not ended", w.log.String())
		}
	}
	var kv store.KV
	w.until("the result can be read", func() (ok bool) {
		var err error
		kv, err = store.Lookup(w.t.Context(), w.store, job.KeyResult)
		return err == nil
	})
	var r job.Result
	require.NoError(w.t, json.Unmarshal(kv.Value, &r))
	require.EqualValues(w.t, rows*passes, r.Records)
	require.Equal(w.t, r.Records, r.Queue.Records)
	for _, s := range r.Shards {
		require.Equal(w.t, r.Queue.Batches, s.Batches, "shard %d", s.Shard)
		require.Zero(w.t, s.Lost+s.Skipped)
	}
	want := map[uint64]int64{}
	for key, n := range seen {
		want[key] = n * passes
	}
	total, got := w.counts()
	require.EqualValues(w.t, rows*passes, total)
	require.Equal(w.t, want, got)
	return r
}

// counts reads the newest checkpoint of every shard.
func (w *world) counts() (total int64, seen map[uint64]int64) {
	w.t.Helper()
	ctx := w.t.Context()
	j, err := job.Load(ctx, w.store)
	require.NoError(w.t, err)
	metas, _, err := checkpoint.ListAll(ctx, w.store, w.spec.Shards)
	require.NoError(w.t, err)
	seen = map[uint64]int64{}
	for i, listed := range metas {
		s, err := pserver.NewShard(j.Parameters, i, w.spec.Queue.Lanes, pserver.ShardOptions{})
		require.NoError(w.t, err)
		l := checkpoint.Loader{FS: w.disk, Dir: w.spec.Checkpoint.Dir, Job: j.UUID}
		_, skipped, err := l.Load(ctx, listed, s.NewLoader())
		require.NoError(w.t, err)
		require.Empty(w.t, skipped)
		for p, parameter := range j.Parameters.List {
			for r := range s.Export(p) {
				for i, n := range r.Counts {
					if parameter.Sparse {
						seen[r.Keys[i]] += int64(n)
					} else {
						total += int64(n)
					}
				}
			}
		}
	}
	return total, seen
}

// safeBuffer may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
