package pserver_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"starfish/checkpoint"
	"starfish/checkpoint/memfs"
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

// The job of these tests: every batch adds 1 to `total` for each of its records
// and 1 to its chunk's row of `seen`, exactly (sgd with rate 1 and gradient −1).
const (
	dir     = "checkpoints"
	shards  = 3
	lanes   = 4
	chunks  = 6
	batches = 4 // of a chunk
	records = 5 // of a batch
)

const specText = `
job: test
data: {train: [data]}
model: {type: linear}
shards: 3
queue: {lanes: 4, stall_timeout: 20s}
train: {passes: %d, batch: 5, shuffle: true}
checkpoint: {dir: %s, interval: %s, keep: 2}
lease_ttl: 3s
recovery: {policy: %s}
run: {pservers: %d, trainers: 1}
`

// world is a job whose processes live in one bubble of virtual time: a store
// with etcd's semantics, a network and a disk in memory, real pservers, a
// scripted trainer and a scripted steward.
type world struct {
	t      *testing.T
	store  *fake.Store
	net    *transport.Memory
	disk   *memfs.FS
	log    *logrus.Logger
	job    job.Job
	queue  *etcdqueue.Queue // the tests' own
	passes int
	// slow is how long the trainer takes for a batch.
	slow      time.Duration
	processes int
	// completed counts the chunks that trainers have completed.
	completed atomic.Int64
}

type options struct {
	passes   int
	pservers int
	interval time.Duration
	policy   string
}

// inWorld runs a test in a new world.
func inWorld(t *testing.T, o options, f func(t *testing.T, w *world)) {
	t.Helper()
	o.passes, o.pservers, o.interval = cmp.Or(o.passes, 1), cmp.Or(o.pservers, 2), cmp.Or(o.interval, time.Minute)
	o.policy = cmp.Or(o.policy, job.PolicyReplay)
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, store: fake.New(fake.Options{}), net: transport.NewMemory(clock.System), disk: memfs.New(),
			log: logrus.New(), passes: o.passes, slow: 20 * time.Millisecond,
		}
		w.log.SetOutput(testWriter{t})
		w.log.SetLevel(logrus.DebugLevel)
		text := fmt.Sprintf(specText, o.passes, "/"+dir, o.interval, o.policy, o.pservers)
		spec, err := job.ParseSpec([]byte(text), "/", nil)
		require.NoError(t, err)
		w.job, err = job.Create(t.Context(), w.client("creator"), spec, parameters(),
			append(etcdqueue.InitialOps(etcdqueue.Manifest{Chunks: chunks}, lanes), membership.InitialOwners(shards))...)
		require.NoError(t, err)
		w.queue = w.openQueue("test")
		f(t, w)
		w.queue.Close()
	})
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p[:len(p)-1]))
	return len(p), nil
}

func parameters() job.Parameters {
	sgd := job.OptimizerSettings{Type: job.OptimizerSGD, LearningRate: 1}
	zero := job.Initializer{Kind: job.InitZeros}
	return job.Parameters{V: 1, Seed: 1, Shards: shards, List: []job.Parameter{
		{Name: "total", Init: zero, Optimizer: sgd, Reduction: job.ReductionSum, Divisor: 1},
		{Name: "seen", Sparse: true, Dim: 1, Init: zero, Optimizer: sgd, Reduction: job.ReductionSum, Divisor: 1},
	}}
}

const prefix = "/starfish/test/"

// client is one process's way to the store.
func (w *world) client(name string) store.Store {
	return store.Prefixed(w.store.Client(name), prefix)
}

func (w *world) openQueue(name string) *etcdqueue.Queue {
	w.t.Helper()
	q, err := etcdqueue.New(etcdqueue.Config{Store: w.client(name), Lanes: lanes, Shuffle: true, Seed: 1, Passes: w.passes,
		Name: name, Incarnation: name, StallTimeout: 20 * time.Second, Log: w.log})
	require.NoError(w.t, err)
	return q
}

// process is one pserver process, on a machine of its own.
type process struct {
	*pserver.Server
	w       *world
	name    string
	host    string
	client  *fake.Client
	machine *machine
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // after done
}

// machine is disk and network as one process sees them. A dead process neither
// writes nor dials, and nobody gets through to it.
type machine struct {
	checkpoint.FS
	transport.Network
	mu        sync.Mutex
	dead      bool
	listeners []net.Listener
}

var errDead = errors.New("the process is dead")

func (m *machine) alive() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errDead
	}
	return nil
}

func (m *machine) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	for _, l := range m.listeners {
		_ = l.Close()
	}
}

func (m *machine) Listen(addr string) (net.Listener, error) {
	l, err := m.Network.Listen(addr)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.listeners = append(m.listeners, l)
	}
	return l, err
}

func (m *machine) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Network.Dial(ctx, addr)
}

func (m *machine) Create(name string) (checkpoint.Writer, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.FS.Create(name)
}

func (m *machine) Rename(from, to string) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.FS.Rename(from, to)
}

func (m *machine) Remove(name string) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.FS.Remove(name)
}

// start starts a pserver process on a host of its own.
func (w *world) start(name string, change ...func(*pserver.Config)) *process {
	w.t.Helper()
	w.processes++
	return w.startOn(fmt.Sprintf("%s-host-%d", name, w.processes), name, change...)
}

func (w *world) startOn(host, name string, change ...func(*pserver.Config)) *process {
	w.t.Helper()
	p := &process{w: w, name: name, host: host, client: w.store.Client(name), done: make(chan struct{})}
	p.machine = &machine{FS: w.disk, Network: w.net.Host(p.host)}
	cfg := pserver.Config{
		Store: store.Prefixed(p.client, prefix), Network: p.machine, FS: p.machine,
		Log: w.log.WithField("process", p.host), Name: name, Drain: 5 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	p.Server, err = pserver.New(cfg)
	require.NoError(w.t, err)
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(w.t.Context())
	go func() {
		defer close(p.done)
		p.err = p.Run(ctx)
	}()
	w.t.Cleanup(func() {
		p.kill()
		<-p.done
	})
	return p
}

// stop is SIGTERM.
func (p *process) stop() error {
	p.cancel()
	<-p.done
	return p.err
}

// kill is SIGKILL: from this moment nothing of the process reaches anything.
// What its goroutines still do is a dead man's dream.
func (p *process) kill() {
	p.machine.die()
	p.client.Partition(true)
	p.w.net.Cut(p.host)
	p.cancel()
}

// exitCode waits for the end of the process.
func (p *process) exitCode() int {
	select {
	case <-p.done:
	case <-time.After(time.Hour): // of virtual time
		p.w.t.Fatalf("%s has not ended", p.name)
	}
	return job.ExitCode(p.err)
}

// eventually waits, in virtual time.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for range 6000 {
		synctest.Wait()
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.FailNow(w.t, "never happened: "+what)
}

// owns lists the shards that the process serves.
func (p *process) owns() []int {
	var own []int
	for _, s := range p.Status().Shards {
		if s.Serving {
			own = append(own, s.Shard)
		}
	}
	return own
}

func (w *world) serving(ps ...*process) {
	w.t.Helper()
	w.eventually("every shard is served", func() bool {
		var all []int
		for _, p := range ps {
			all = append(all, p.owns()...)
		}
		slices.Sort(all)
		return slices.Equal(all, []int{0, 1, 2})
	})
}

func (w *world) view() membership.View {
	w.t.Helper()
	v, err := membership.ReadView(w.t.Context(), w.client("test"))
	require.NoError(w.t, err)
	return v
}

func (w *world) state() etcdqueue.State {
	w.t.Helper()
	st, err := w.queue.State(w.t.Context())
	require.NoError(w.t, err)
	return st
}

func (w *world) metas(shard int) []checkpoint.Meta {
	w.t.Helper()
	metas, _, err := checkpoint.List(w.t.Context(), w.client("test"), shard)
	require.NoError(w.t, err)
	return metas
}

// trainer is a trainer's loop: take, train, complete, until the job ends.
type trainer struct {
	w      *world
	name   string
	queue  *etcdqueue.Queue
	routes *fake.Client // by which the client learns who owns what
	client *client.Client
	batch  *client.Batch
}

func (w *world) newTrainer(name string) *trainer {
	w.t.Helper()
	t := &trainer{w: w, name: name, routes: w.store.Client(name), queue: w.openQueue(name)}
	c, err := client.New(client.Config{Network: w.net.Host(name), Store: store.Prefixed(t.routes, prefix), Job: w.job.UUID,
		Parameters: w.job.Parameters, Log: w.log.WithField("process", name)})
	require.NoError(w.t, err)
	t.client, t.batch = c, c.NewBatch()
	return t
}

// train runs a trainer in the background and returns when to wait for its end.
func (w *world) train(ctx context.Context, name string) (wait func()) {
	t := w.newTrainer(name)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer t.queue.Close()
		t.run(ctx)
	})
	return wg.Wait
}

func (t *trainer) run(ctx context.Context) {
	for ctx.Err() == nil {
		tasks, err := t.queue.Take(ctx, 2)
		switch {
		case errors.Is(err, etcdqueue.ErrEmpty):
			_ = t.queue.Changed(ctx)
			continue
		case err != nil:
			return
		}
		for _, task := range tasks {
			for ctx.Err() == nil {
				err := t.chunk(ctx, task)
				if err == nil {
					t.w.completed.Add(1)
				}
				if err == nil || errors.Is(err, etcdqueue.ErrStale) {
					break
				}
				t.w.log.WithField("process", t.name).WithError(err).Debug("repairing")
			}
		}
	}
}

// chunk brings a chunk to its end under one view, from wherever the shards are.
func (t *trainer) chunk(ctx context.Context, task etcdqueue.Task) error {
	s, err := t.client.Connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	progress, err := s.Progress(ctx, []client.Chunk{{Pass: task.Pass, Rank: task.Rank}})
	if err != nil {
		return err
	}
	n := int64(math.MaxInt64)
	for _, p := range progress[0] {
		if !p.Finished {
			n = min(n, p.Next)
		}
	}
	for ; n < batches; n++ {
		time.Sleep(t.w.slow)
		if err := t.push(ctx, s, task, n); err != nil {
			return err
		}
	}
	done := etcdqueue.Done{Task: task, Sums: etcdqueue.Sums{Batches: batches, Records: batches * records}}
	return t.queue.Complete(ctx, []etcdqueue.Done{done}, s.View().Guard())
}

func (t *trainer) push(ctx context.Context, s *client.Session, task etcdqueue.Task, n int64) error {
	keys := []uint64{uint64(task.Chunk), uint64(task.Chunk) + 1000, uint64(task.Chunk) + 2000}
	t.batch.Prepare([][]uint64{keys})
	t.batch.DenseGrad[0][0] = -records
	for i := range t.batch.Tables[0].Grad {
		t.batch.Tables[0].Grad[i] = -1
	}
	meta := client.PushMeta{Pass: task.Pass, Rank: task.Rank, N: n, Token: task.Token,
		Last: n == batches-1, Records: records, Loss: 0.5 * records}
	c, err := s.Exchange(ctx, t.batch, meta, nil)
	if err != nil {
		return err
	}
	return c.Wait(ctx)
}

// steward does a steward's duties until the job has ended.
func (w *world) steward(ctx context.Context) (wait func()) {
	q := w.openQueue("steward")
	var wg sync.WaitGroup
	wg.Go(func() {
		defer q.Close()
		for ctx.Err() == nil {
			st, err := q.Turn(ctx, nil)
			if err == nil && st.Phase.Ended() {
				return
			}
			if err == nil {
				w.endIfCovered(ctx, q, st)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return wg.Wait
}

// endIfCovered removes lanes that no listed checkpoint needs, and ends the job
// when the newest checkpoints of the present generations cover every pass.
func (w *world) endIfCovered(ctx context.Context, q *etcdqueue.Queue, st etcdqueue.State) {
	v, err := membership.ReadView(ctx, w.client("steward"))
	if err != nil {
		return
	}
	all, _, err := checkpoint.ListAll(ctx, w.client("steward"), shards)
	if err != nil {
		return
	}
	floor, complete := math.MaxInt, true
	for shard, metas := range all {
		if len(metas) == 0 {
			return
		}
		for _, m := range metas {
			floor = min(floor, m.Passes)
		}
		complete = complete && metas[0].Passes == w.passes && metas[0].Generation == v.Shards[shard].Generation
	}
	_ = q.RemovePasses(ctx, floor, v.Guard())
	if st.Phase == etcdqueue.PhaseDraining && complete {
		_ = q.Finish(ctx, etcdqueue.PhaseComplete, "", nil, st.Guard(), v.Guard())
	}
}

// finish trains the job to its end and checks the result.
func (w *world) finish(ps ...*process) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Minute)
	defer cancel()
	waits := []func(){w.train(ctx, "trainer-0"), w.steward(ctx)}
	for _, p := range ps {
		select {
		case <-p.done:
		case <-ctx.Done():
			require.FailNow(w.t, "the job does not end", "%+v\n%+v", p.Status(), w.state())
		}
		require.NoError(w.t, p.err, p.name)
	}
	for _, wait := range waits {
		wait()
	}
	require.Equal(w.t, etcdqueue.PhaseComplete, w.state().Phase)
	w.checkCounts()
}

// checkCounts loads the newest checkpoints and checks that every batch has
// changed every shard exactly once.
func (w *world) checkCounts() {
	w.t.Helper()
	want := int64(w.passes * chunks * batches)
	var total float64
	seen := map[uint64]float64{}
	for shard := range shards {
		core := w.load(shard)
		st := core.Stats()
		require.Equal(w.t, want, st.Total.Batches, "shard %d", shard)
		require.Equal(w.t, want*records, st.Total.Records, "shard %d", shard)
		require.InDelta(w.t, 0.5*float64(want*records), st.Total.Loss, 1e-6, "shard %d", shard)
		require.Zero(w.t, st.Total.Lost+st.Total.Skipped)
		for r := range core.Export(0) {
			total += float64(r.Floats[0])
		}
		for r := range core.Export(1) {
			for i, key := range r.Keys {
				seen[key] = float64(r.Floats[i])
			}
		}
	}
	require.InDelta(w.t, float64(want*records), total, 0)
	require.Len(w.t, seen, 3*chunks)
	for key, v := range seen {
		require.InDelta(w.t, float64(w.passes*batches), v, 0, "row %d", key)
	}
}

// load is the shard as its newest listed checkpoint has it.
func (w *world) load(shard int) *pserver.Shard {
	w.t.Helper()
	core, err := pserver.NewShard(w.job.Parameters, shard, lanes, pserver.ShardOptions{})
	require.NoError(w.t, err)
	l := checkpoint.Loader{FS: w.disk, Dir: "/" + dir, Job: w.job.UUID}
	_, skipped, err := l.Load(w.t.Context(), w.metas(shard), core.NewLoader())
	require.NoError(w.t, err)
	require.Empty(w.t, skipped)
	return core
}

// held is a trainer that holds one chunk, for tests that push by hand.
type held struct {
	*trainer
	task etcdqueue.Task
}

func (w *world) take(name string) held {
	w.t.Helper()
	tr := w.newTrainer(name)
	w.t.Cleanup(tr.queue.Close)
	tasks, err := tr.queue.Take(w.t.Context(), 1)
	require.NoError(w.t, err)
	return held{tr, tasks[0]}
}

func (h held) complete(s *client.Session) error {
	done := etcdqueue.Done{Task: h.task, Sums: etcdqueue.Sums{Batches: batches, Records: batches * records}}
	return h.queue.Complete(h.w.t.Context(), []etcdqueue.Done{done}, s.View().Guard())
}
