package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/job"
	"starfish/pserver/client"
	"starfish/reader"
	"starfish/trainer/model"
)

// drainTime bounds an orderly stop: chunks handed back, lease revoked.
const drainTime = 5 * time.Second

// Trainer is the trainer daemon.
type Trainer struct {
	cfg     Config
	metrics *metrics

	mu          sync.Mutex
	worker      *worker
	incarnation string
	steward     bool
	starting    string // what it waits for before it works
}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Trainer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, job.Exit(job.ExitUsage, err)
	}
	cfg = cfg.withDefaults()
	return &Trainer{cfg: cfg, metrics: newMetrics(cfg.Registerer), starting: "the job"}, nil
}

// Run trains until the job is complete (nil), until ctx ends (an orderly stop:
// nil), or until something is fatal: the error's job.ExitCode says what.
func (t *Trainer) Run(ctx context.Context) error {
	err := t.run(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return exitCode(err)
}

func (t *Trainer) run(ctx context.Context) error {
	j, m, plan, err := t.loadJob(ctx)
	if err != nil {
		return err
	}
	if plan == nil {
		return t.ended(ctx, j)
	}
	id, err := listenIdentity(t.cfg, j)
	if err != nil {
		return err
	}
	defer id.close()

	previous := ""
	for {
		t.setStarting("its registration")
		member, err := t.register(ctx, j, id, previous)
		if err != nil {
			return err
		}
		id.set(member.Incarnation())
		err = t.member(ctx, j, m, plan, member)
		if !errors.Is(err, membership.ErrLost) {
			return err
		}
		t.cfg.Log.WithField("incarnation", member.Incarnation()).Warn("the lease was lost, registering again")
		previous = member.Incarnation()
	}
}

func (t *Trainer) register(ctx context.Context, j job.Job, id *identity, previous string) (*membership.Member, error) {
	return membership.Register(ctx, membership.Config{
		Store: t.cfg.Store, Clock: t.cfg.Clock, Role: membership.Trainers,
		Name: t.cfg.Name, Address: id.address, Version: t.cfg.Version,
		TTL: j.Spec.LeaseTTL, SpecRev: j.SpecRev, Takeover: t.cfg.Takeover, Previous: previous,
		Probe: func(ctx context.Context, address string) (string, error) {
			who, err := client.Identify(ctx, t.cfg.Network, address)
			return who.Incarnation, err
		},
		Log: t.cfg.Log,
	})
}

// member works under one registration. It returns membership.ErrLost if the
// registration ended.
func (t *Trainer) member(ctx context.Context, j job.Job, m model.Model, plan *reader.Plan, member *membership.Member) error {
	defer t.deregister(ctx, member)
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		select {
		case <-member.Lost():
			cancel(member.Err())
		case <-work.Done():
		}
	}()
	defer func() { cancel(nil); <-lost }()

	w, closeWorker, err := t.newWorker(work, j, m, plan, member)
	if err != nil {
		return err
	}
	defer closeWorker()
	t.setWorker(w, member.Incarnation())
	defer t.setWorker(nil, "")

	g, groupCtx := errgroup.WithContext(work)
	g.Go(func() error { return w.run(groupCtx) })
	g.Go(func() error {
		s := &steward{still: make(chan struct{}, 1), w: w, member: member, log: w.log, holding: t.setSteward}
		return s.run(groupCtx)
	})
	g.Go(func() error { return w.awaitEnd(groupCtx) })
	err = g.Wait()
	if errors.Is(err, errComplete) {
		return nil
	}
	if member.Err() != nil {
		return member.Err()
	}
	leaving, done := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer done()
	if e := w.leave(leaving); e != nil {
		t.cfg.Log.WithError(e).Warn("chunks were not handed back; they return to the queue when the lease ends")
	}
	return err
}

// newWorker makes what works under one registration.
func (t *Trainer) newWorker(ctx context.Context, j job.Job, m model.Model, plan *reader.Plan, member *membership.Member) (*worker, func(), error) {
	w := &worker{
		st: t.cfg.Store, clock: t.cfg.Clock, log: t.cfg.Log, job: j, plan: plan, model: m,
		member: member, telling: make(chan struct{}, 1), watcher: newWatcher(j.Spec, m), skip: j.Spec.Recovery.Policy == job.PolicySkip,
		metrics: t.metrics, fixedTake: t.cfg.Take, items: make(chan *item, 2*itemsAhead+maxUnacknowledged),
	}
	var err error
	if w.evaluator, err = t.cfg.model(j.Spec); err != nil {
		return nil, nil, job.Exit(job.ExitUsage, err)
	}
	w.hand.wait("pservers")
	if p, ok := m.(model.PushOnly); ok {
		w.pushOnly = p.PushOnly()
	}
	peers := &atomic.Int64{}
	peers.Store(1)
	w.queue, err = etcdqueue.New(queueConfig(t.cfg.Store, j, etcdqueue.Config{
		Clock: t.cfg.Clock, Log: t.cfg.Log, Name: member.Name(), Incarnation: member.Incarnation(),
		Peers: func() int { return int(peers.Load()) }, Pace: w.chunkTime,
	}))
	if err != nil {
		return nil, nil, err
	}
	incarnation, err := uuid.Parse(member.Incarnation())
	if err != nil {
		return nil, nil, fmt.Errorf("the incarnation %q: %w", member.Incarnation(), err)
	}
	w.client, err = client.New(client.Config{
		Network: t.cfg.Network, Store: t.cfg.Store, Job: j.UUID, Parameters: j.Parameters, Trainer: incarnation,
		Clock: t.cfg.Clock, Log: t.cfg.Log, Waiting: w.hand.wait,
	})
	if err != nil {
		w.queue.Close()
		return nil, nil, err
	}
	var watching sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	watching.Go(func() {
		for roster := range membership.WatchRoster(ctx, t.cfg.Store, membership.Trainers) {
			peers.Store(int64(max(len(roster.Members), 1)))
		}
	})
	return w, func() {
		cancel()
		watching.Wait()
		w.queue.Close()
	}, nil
}

// ended answers a job that has ended before this process began.
func (t *Trainer) ended(ctx context.Context, j job.Job) error {
	q, err := etcdqueue.New(queueConfig(t.cfg.Store, j, etcdqueue.Config{}))
	if err != nil {
		return err
	}
	defer q.Close()
	var state etcdqueue.State
	err = t.patiently(ctx, retryable, func() (err error) {
		state, err = q.State(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if state.Phase == etcdqueue.PhaseFailed {
		return &etcdqueue.ErrFailed{Reason: state.Reason}
	}
	t.cfg.Log.Info("the job is complete")
	return nil
}

func (t *Trainer) deregister(ctx context.Context, member *membership.Member) {
	leaving, done := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer done()
	if err := member.Close(leaving); err != nil {
		t.cfg.Log.WithError(err).Debug("the lease was not revoked; it ends by itself")
	}
}

func (t *Trainer) setStarting(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting = what
}

func (t *Trainer) setWorker(w *worker, incarnation string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.worker, t.incarnation, t.starting = w, incarnation, ""
}

func (t *Trainer) setSteward(holding bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steward = holding
}

// exitCode gives an error the exit code that the contract names for it.
func exitCode(err error) error {
	var superseded *membership.SupersededError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &superseded):
		return job.Exit(job.ExitSuperseded, err)
	case errors.Is(err, membership.ErrNameInUse), errors.Is(err, job.ErrSpecDiffers):
		return job.Exit(job.ExitUsage, err)
	case errors.Is(err, reader.ErrData):
		return job.Exit(job.ExitData, err)
	}
	return fmt.Errorf("trainer: %w", err)
}
