package pserver

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/internal/transport"
	"starfish/job"
)

// Server is the pserver daemon: it owns shards as long as it is a member of
// the job, serves them, saves them, and restores those that it claims.
//
// One goroutine, in tenure, follows the records of the job and decides what is
// owned; each owned shard has a keeper, a goroutine that restores, compares
// and saves it, one thing after the other, so that saves of a shard never
// overlap; each stream of a trainer has the goroutine that gRPC gives it. They
// meet in the table, which the streams read without a lock.
//
// Lock order: Server.mu, then held.mu, then the shard's.
type Server struct {
	cfg     Config
	log     logrus.FieldLogger
	metrics *metrics
	stage   *Stage
	memory  *Memory

	// sources numbers the streams, for the parts that they stage.
	sources atomic.Uint64
	// table has for each shard what is owned here, or nil. It is replaced, never
	// changed; only the goroutine in tenure replaces it.
	table atomic.Pointer[[]*held]
	// stopping: an orderly stop has begun, and nothing is answered any more.
	stopping atomic.Bool
	// saving bounds the saves at one time: each keeps a processor busy with MD5.
	saving chan struct{}
	// requested is the newest request for checkpoints that was seen.
	requested atomic.Int64
	// trainers are those that are live, for the barriers.
	trainers atomic.Pointer[trainerList]
	// publisher lists what was saved.
	publisher *checkpoint.Publisher
	// faults takes what ends the process: the first one counts.
	faults chan error

	mu          sync.Mutex
	job         *job.Job
	queue       *etcdqueue.Queue
	member      *membership.Member
	incarnation string
	address     string
	state       etcdqueue.State
	waiting     string
	fullness    remind.Reminder // of being at the memory limit
}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, job.Exit(job.ExitUsage, err)
	}
	cfg.setDefaults()
	s := &Server{
		cfg: cfg, log: cfg.Log.WithField("pserver", cfg.Name), stage: NewStage(stageBytes(cfg.MaxMemory)),
		saving: make(chan struct{}, runtime.GOMAXPROCS(0)), publisher: checkpoint.NewPublisher(cfg.Store, cfg.Clock),
		faults: make(chan error, 1), incarnation: uuid.NewString(), waiting: "not started",
	}
	s.memory = NewMemory(cfg.MaxMemory, s.stage)
	s.table.Store(&[]*held{})
	m, err := newMetrics(cfg.Registerer, s)
	if err != nil {
		return nil, fmt.Errorf("pserver: register metrics: %w", err)
	}
	s.metrics = m
	return s, nil
}

// stageBytes is how much of a memory limit incomplete pushes may hold.
func stageBytes(limit int64) int64 {
	if limit <= 0 {
		return DefaultStageBytes
	}
	return min(DefaultStageBytes, limit/4)
}

// Run serves the job until it is complete, until ctx ends (an orderly stop:
// nil), or until something is fatal: job.ExitCode of the error says what.
func (s *Server) Run(ctx context.Context) error {
	err := s.run(ctx)
	s.step("stopped")
	if ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())) {
		return nil
	}
	return exit(err)
}

func (s *Server) run(ctx context.Context) error {
	stopService, err := s.listen()
	if err != nil {
		return job.Exit(job.ExitUsage, fmt.Errorf("listen on %s: %w", s.cfg.Listen, err))
	}
	defer stopService()
	if err := s.findJob(ctx); err != nil {
		return err
	}
	defer s.queue.Close()
	over, err := s.over(ctx)
	if over || err != nil {
		return err
	}
	if err := s.openDirectory(ctx); err != nil {
		return err
	}
	return s.live(ctx)
}

// findJob makes or awaits the job, and opens its queue.
func (s *Server) findJob(ctx context.Context) error {
	if s.cfg.Create != nil {
		s.step("creating the job")
		var trouble remind.Reminder
		for {
			err := s.cfg.Create(ctx)
			if err == nil {
				break
			}
			if !errors.Is(err, job.ErrUnanswered) {
				return err
			}
			if trouble.Due(s.cfg.Clock.Now()) {
				s.log.WithError(err).Warn("cannot create the job yet, trying again")
			}
			if err := clock.Sleep(ctx, s.cfg.Clock, retryPause); err != nil {
				return err
			}
		}
	}
	s.wait("for the job to be submitted")
	j, err := job.Wait(ctx, s.cfg.Store)
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	q, err := etcdqueue.New(etcdqueue.Config{
		Store: s.cfg.Store, Clock: s.cfg.Clock, Lanes: j.Spec.Queue.Lanes,
		Shuffle: j.Spec.Train.Shuffle, Seed: j.Spec.Train.Seed, Passes: j.Spec.Train.Passes,
		MaxFailures: j.Spec.Queue.MaxFailures, StallTimeout: j.Spec.Queue.StallTimeout,
		Log: s.log,
	})
	if err != nil {
		return fmt.Errorf("open the queue: %w", err)
	}
	if s.cfg.CheckpointDir == "" {
		s.cfg.CheckpointDir = j.Spec.Checkpoint.Dir
	}
	table := make([]*held, j.Parameters.Shards)
	s.table.Store(&table)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.job, s.queue = &j, q
	s.log = s.log.WithField("job", j.Spec.Job)
	return nil
}

// over tells whether the job has ended already.
func (s *Server) over(ctx context.Context) (bool, error) {
	s.step("reading the job's state")
	for {
		st, err := s.queue.State(ctx)
		if err == nil {
			return s.ended(st)
		}
		if !retryable(err) {
			return false, err
		}
		if err := clock.Sleep(ctx, s.cfg.Clock, retryPause); err != nil {
			return false, err
		}
	}
}

// ended notes the state, and tells whether it is the end.
func (s *Server) ended(st etcdqueue.State) (bool, error) {
	s.mu.Lock()
	s.state = st
	s.mu.Unlock()
	switch st.Phase {
	case "":
		return true, membership.ErrJobChanged
	case etcdqueue.PhaseComplete:
		s.log.Info("the job is complete")
		return true, nil
	case etcdqueue.PhaseFailed:
		return true, job.Exitf(job.ExitFailure, "the job has failed: %s", st.Reason)
	}
	return false, nil
}

// openDirectory makes sure that the directory is the job's. A process that
// does not see the checkpoints of a job that has some may not claim: it would
// take a shard away from those who can restore it.
func (s *Server) openDirectory(ctx context.Context) error {
	s.step("looking at the checkpoint directory")
	dir, id := s.cfg.CheckpointDir, s.job.UUID
	// The view first: whoever has listed a checkpoint had marked the directory.
	view, err := s.ownersNow(ctx)
	if err != nil {
		return err
	}
	err = checkpoint.CheckMarker(s.cfg.FS, dir, id)
	if !errors.Is(err, checkpoint.ErrNoMarker) {
		return err
	}
	for shard, o := range view.Shards {
		if o.Listed && !s.cfg.AllowReinit {
			return job.Exitf(job.ExitStateLost, "shard %d has checkpoints, but the directory %s does not hold the job's files "+
				"(no file JOB): is it mounted? --allow-reinit begins anew without them", shard, dir)
		}
	}
	return checkpoint.Mark(s.cfg.FS, dir, id)
}

// ownersNow reads the owners as soon as the store answers.
func (s *Server) ownersNow(ctx context.Context) (membership.View, error) {
	for {
		v, err := membership.ReadView(ctx, s.cfg.Store)
		if err == nil || !retryable(err) {
			return v, err
		}
		if err := clock.Sleep(ctx, s.cfg.Clock, retryPause); err != nil {
			return v, err
		}
	}
}

// live is a member of the job, again and again after each lost lease.
func (s *Server) live(ctx context.Context) error {
	previous := ""
	for {
		s.step("registering")
		m, err := membership.Register(ctx, membership.Config{
			Store: s.cfg.Store, Clock: s.cfg.Clock, Role: membership.PServers,
			Name: s.cfg.Name, Address: s.addressNow(), Version: s.cfg.Version, MaxMemory: s.cfg.MaxMemory,
			Incarnation: s.incarnationNow(), Previous: previous,
			TTL: s.job.Spec.LeaseTTL, SpecRev: s.job.SpecRev,
			Takeover: s.cfg.Takeover, Probe: s.probe, Log: s.log,
		})
		if err != nil {
			return err
		}
		err = s.tenure(ctx, m)
		if !errors.Is(err, membership.ErrLost) {
			return err
		}
		s.log.WithField("incarnation", m.Incarnation()).Warn("the lease was lost, registering again")
		s.metrics.leasesLost.Inc()
		previous = m.Incarnation()
		s.mu.Lock()
		s.member, s.incarnation = nil, uuid.NewString()
		s.mu.Unlock()
	}
}

// exit gives an error the exit code that it asks for.
func exit(err error) error {
	var e *job.ExitError
	var superseded *membership.SupersededError
	switch {
	case err == nil || errors.As(err, &e):
		return err
	case errors.As(err, &superseded):
		return job.Exit(job.ExitSuperseded, err)
	case errors.Is(err, membership.ErrNameInUse), errors.Is(err, checkpoint.ErrForeign):
		return job.Exit(job.ExitUsage, err)
	case errors.Is(err, checkpoint.ErrNoneLoads):
		return job.Exit(job.ExitStateLost, err)
	}
	return job.Exit(job.ExitFailure, err)
}

// retryPause lies between two attempts at something that failed and may heal.
const retryPause = 250 * time.Millisecond

// fail ends the process with err, unless something else does already.
func (s *Server) fail(err error) {
	select {
	case s.faults <- err:
	default:
	}
}

// step says what the process is doing on its way to serve, or to its end.
func (s *Server) step(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.waiting != what
	s.waiting = what
	return changed
}

// wait is step for what others have to bring about; it is worth a line.
func (s *Server) wait(what string) {
	if s.step(what) && what != "" {
		s.log.WithField("reason", what).Info("waiting")
	}
}

func (s *Server) incarnationNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation
}

func (s *Server) addressNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

func (s *Server) stateNow() etcdqueue.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (c *Config) setDefaults() {
	if c.Network == nil {
		c.Network = transport.TCP
	}
	if c.FS == nil {
		c.FS = checkpoint.OS
	}
	if c.Clock == nil {
		c.Clock = clock.System
	}
	if c.Log == nil {
		c.Log = discardLog()
	}
	if c.Listen == "" {
		c.Listen = ":0"
	}
	if c.Recovery == "" {
		c.Recovery = RecoveryAuto
	}
	if c.Drain == 0 {
		c.Drain = DefaultDrain
	}
}
