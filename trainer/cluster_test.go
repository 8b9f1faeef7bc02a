package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	"starfish/internal/store/fake"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver"
	"starfish/reader"
	"starfish/trainer"
	"starfish/trainer/model"
)

// seeds is how many schedules of each kind are run.
var seeds = flag.Uint64("seeds", 8, "how many schedules of each kind of fault to run")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a whole job in one process: the real code over the fake store, an
// in-memory network, an in-memory file system and, in a synctest bubble,
// virtual time.
type cluster struct {
	t     *testing.T
	ctx   context.Context
	store *fake.Store
	net   *transport.Memory
	disk  *disk
	spec  *job.Spec
	log   *diary
	ends  chan ended
	n     int // processes that were started and have not been waited for
	hosts int
	// latency is the time that a message between two processes takes.
	latency time.Duration
	// storeLatency is the time that a request to the store takes, for each of its
	// operations; up to storeJitter longer.
	storeLatency, storeJitter time.Duration
	// diskLatency is the time that an operation on the disk takes.
	diskLatency time.Duration
	// models replace the built-in ones.
	models map[string]trainer.Builder
	// started, if not nil, is told of the end of each process instead of ends.
	started func(*process, error)
	// prepare, if not nil, is given each process before it starts.
	prepare func(*process)
}

// pulled is the count model as one that pulls values, and so waits for the
// answer to each batch.
// Each of its methods takes its time, and must not be called again meanwhile,
// as a model may hold scratch memory.
type pulled struct {
	model.Model
	keys, steps *atomic.Bool
}

func newPulled(spec *job.Spec) (model.Model, error) {
	m, err := model.New(spec)
	return pulled{m, &atomic.Bool{}, &atomic.Bool{}}, err
}

func alone(busy *atomic.Bool) (done func()) {
	if busy.Swap(true) {
		panic("a model is used by two goroutines at a time")
	}
	time.Sleep(time.Millisecond)
	return func() { busy.Store(false) }
}

func (p pulled) Keys(b *reader.Batch, table int) []uint64 {
	defer alone(p.keys)()
	return p.Model.Keys(b, table)
}

func (p pulled) Gradient(s *model.Step) float64 {
	defer alone(p.steps)()
	return p.Model.Gradient(s)
}

func (p pulled) Predict(s *model.Step, out []float64) {
	defer alone(p.steps)()
	p.Model.Predict(s, out)
}

type ended struct {
	name string
	err  error
}

// process is a daemon that was started, on a host of its own.
type process struct {
	name   string
	host   string
	client *fake.Client
	cancel context.CancelFunc
	server *pserver.Server // nil for a trainer
	done   chan struct{}   // closed at its end
	err    error           // after done
	clock  processClock

	mu   sync.Mutex
	dead bool
	// before is asked before each request to the store.
	before  fake.Hook
	trainer *trainer.Trainer // nil for a pserver
}

// intercept makes hook see each request to the store, before it is made.
func (p *process) intercept(hook fake.Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = hook
}

func (p *process) ask(op, key string) error {
	p.mu.Lock()
	hook := p.before
	p.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op, key)
}

// records writes n libsvm records and returns how often each key occurs.
func records(t *testing.T, n int) (file string, seen map[uint64]int64) {
	t.Helper()
	seen = map[uint64]int64{}
	var b strings.Builder
	for i := range n {
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

func newCluster(t *testing.T, file, extra string) *cluster {
	t.Helper()
	text := fmt.Sprintf(`
job: test
data: {train: [%s], format: libsvm, chunk: 300}
model: {type: count}
optimizer: {type: sgd, learning_rate: 0.1}
train: {passes: 2, batch: 8, seed: 3}
shards: 4
queue: {lanes: 8}
checkpoint: {dir: /checkpoints, interval: 30s}
run: {pservers: 2, trainers: 2}
%s`, file, extra)
	spec, err := job.ParseSpec([]byte(text), "/", nil)
	require.NoError(t, err)
	c := &cluster{t: t, ctx: t.Context(), store: fake.New(fake.Options{Clock: clock.System}), spec: spec,
		net: transport.NewMemory(clock.System), disk: &disk{fs: memfs.New()}, log: &diary{}, ends: make(chan ended, 100), latency: 200 * time.Microsecond, storeLatency: 200 * time.Microsecond}
	// Requests that are under way when a test ends are let come to their end: virtual
	// time stands still afterwards.
	t.Cleanup(func() { time.Sleep(time.Second) })
	return c
}

// prefix is that of the job's keys.
func (c *cluster) prefix() string { return job.Prefix(c.spec.Job) }

func (c *cluster) logger() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.AddHook(c.log)
	if testing.Verbose() {
		l.SetOutput(os.Stderr)
	}
	return l
}

func (c *cluster) host(name string) *process {
	c.hosts++
	p := &process{name: name, host: fmt.Sprintf("%s-on-%d", name, c.hosts), done: make(chan struct{})}
	p.client = c.store.Client(p.host)
	var mu sync.Mutex
	jitter := rand.New(rand.NewPCG(uint64(c.hosts), 10))
	p.client.Fail(func(op, key string) error {
		if op != "watch" {
			mu.Lock()
			d := c.storeLatency + time.Duration(jitter.Int64N(int64(c.storeJitter)+1))
			mu.Unlock()
			time.Sleep(d)
		}
		return p.ask(op, key)
	})
	c.net.Delay(p.host, c.latency/2)
	if c.prepare != nil {
		c.prepare(p)
	}
	return p
}

func (c *cluster) start(p *process, run func(ctx context.Context) error) *process {
	ctx, cancel := context.WithCancel(c.ctx)
	p.cancel = cancel
	c.n++
	go func() {
		p.err = run(ctx)
		close(p.done)
		if c.started != nil {
			c.started(p, p.err)
			return
		}
		c.ends <- ended{p.name, p.err}
	}()
	return p
}

func (c *cluster) pserver(name string, change ...func(*pserver.Config)) *process {
	p := c.host(name)
	cfg := pserver.Config{
		Store: store.Prefixed(p.client, c.prefix()), Network: c.net.Host(p.host), FS: processDisk{c.disk, p, c.diskLatency},
		Log: c.logger(), Name: name, Clock: &p.clock,
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := pserver.New(cfg)
	require.NoError(c.t, err)
	p.server = s
	return c.start(p, s.Run)
}

func (c *cluster) trainer(name string, change ...func(*trainer.Config)) *process {
	return c.trainerAt(name, func(*fake.Client) {}, change...)
}

// trainerAt starts a trainer whose handle of the store was prepared.
func (c *cluster) trainerAt(name string, prepare func(*fake.Client), change ...func(*trainer.Config)) *process {
	p := c.host(name)
	prepare(p.client)
	cfg := trainer.Config{
		Store: store.Prefixed(p.client, c.prefix()), Network: c.net.Host(p.host),
		Log: c.logger(), Job: c.spec.Job, Spec: c.spec, Name: name, Models: c.models,
		Clock: &p.clock,
	}
	for _, f := range change {
		f(&cfg)
	}
	t, err := trainer.New(cfg)
	require.NoError(c.t, err)
	p.trainer = t
	return c.start(p, t.Run)
}

// kill ends a process as SIGKILL does: from now on nothing that it says is
// heard, by the store or by anybody else.
func (c *cluster) kill(p *process) {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.client.Partition(true)
	c.net.Silence(p.host, true)
	c.net.Cut(p.host)
	c.freeze(p, false) // it does not see much of it
	p.cancel()
}

// wait waits for every process and requires that each ended in order.
func (c *cluster) wait() {
	c.t.Helper()
	limit := time.After(30 * time.Minute)
	for ; c.n > 0; c.n-- {
		select {
		case e := <-c.ends:
			require.NoError(c.t, e.err, e.name)
		case <-limit:
			c.t.Fatalf("%d processes have not ended; the store holds:\n%s", c.n, c.dump())
		}
	}
}

func (c *cluster) dump() string {
	var b strings.Builder
	records := c.store.Dump()
	for _, k := range slices.Sorted(maps.Keys(records)) {
		fmt.Fprintf(&b, "%s = %s\n", k, records[k])
	}
	return b.String()
}

func (c *cluster) result() job.Result {
	c.t.Helper()
	var r job.Result
	kv, err := store.Lookup(c.ctx, c.store, c.prefix()+job.KeyResult)
	require.NoError(c.t, err)
	require.True(c.t, kv.Exists(), "no result: %s", c.dump())
	require.NoError(c.t, json.Unmarshal(kv.Value, &r))
	return r
}

func (c *cluster) state() etcdqueue.State {
	kv, err := store.Lookup(c.ctx, c.store, c.prefix()+"state")
	require.NoError(c.t, err)
	s, err := etcdqueue.DecodeState(kv)
	require.NoError(c.t, err)
	return s
}

// exact requires that every record changed every part of the model exactly
// once per pass.
func (c *cluster) exact(n int, seen map[uint64]int64) {
	c.t.Helper()
	passes := int64(c.spec.Train.Passes)
	r := c.result()
	require.EqualValues(c.t, int64(n)*passes, r.Records)
	require.Len(c.t, r.Shards, c.spec.Shards)
	for _, s := range r.Shards {
		require.Equal(c.t, r.Queue.Batches, s.Batches+s.Skipped, "shard %d", s.Shard)
		require.Zero(c.t, s.Lost)
	}
	require.Equal(c.t, r.Records, r.Queue.Records)
	want := map[string]string{"total 0": fmt.Sprint(int64(n) * passes)}
	for k, v := range seen {
		want[fmt.Sprintf("seen %d", k)] = fmt.Sprint(v * passes)
	}
	require.Equal(c.t, want, c.export())
}

// export reads the newest checkpoint of every shard.
func (c *cluster) export() map[string]string {
	c.t.Helper()
	st := store.Prefixed(c.store, c.prefix())
	j, err := job.Load(c.ctx, st)
	require.NoError(c.t, err)
	metas, _, err := checkpoint.ListAll(c.ctx, st, c.spec.Shards)
	require.NoError(c.t, err)
	got := map[string]string{}
	for i, ms := range metas {
		s, err := pserver.NewShard(j.Parameters, i, c.spec.Queue.Lanes, pserver.ShardOptions{})
		require.NoError(c.t, err)
		l := checkpoint.Loader{FS: c.disk, Dir: c.spec.Checkpoint.Dir, Job: j.UUID}
		_, skipped, err := l.Load(c.ctx, ms, s.NewLoader())
		require.NoError(c.t, err)
		require.Empty(c.t, skipped)
		for p, parameter := range j.Parameters.List {
			for r := range s.Export(p) {
				add := func(key uint64, i int) { // dim is 1 in all of them
					name := fmt.Sprintf("%s %d", parameter.Name, key)
					if r.Counts != nil {
						got[name] = fmt.Sprint(r.Counts[i])
					} else {
						got[name] = fmt.Sprint(r.Floats[i])
					}
				}
				for i, key := range r.Keys {
					add(key, i)
				}
				for i := 0; !parameter.Sparse && i < len(r.Floats)+len(r.Counts); i++ {
					add(r.First+uint64(i), i)
				}
			}
		}
	}
	return got
}

// reopened is how many chunks were Complete and had to be trained again.
func (c *cluster) reopened() int64 { return c.totals().Reopened }

// totals are the sums of the lanes.
func (c *cluster) totals() etcdqueue.Totals {
	q, err := etcdqueue.New(etcdqueue.Config{Store: store.Prefixed(c.store, c.prefix())})
	require.NoError(c.t, err)
	defer q.Close()
	totals, _, err := q.Totals(c.ctx)
	if errors.Is(err, etcdqueue.ErrNoQueue) {
		return etcdqueue.Totals{}
	}
	require.NoError(c.t, err)
	return totals
}

var errKilled = errors.New("killed")
