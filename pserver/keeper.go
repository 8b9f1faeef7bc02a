package pserver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/failpoint"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/pserver/ledger"
)

// held is one ownership of one shard. Its core may outlive it: see successor.
type held struct {
	shard      int
	generation int64
	claim      membership.Owner // its entry in owners when it was claimed
	member     *membership.Member
	core       *Shard // nil until the keeper has made it
	// before is this process's ownership of the shard before this one, if there
	// was one: its keeper has to end first.
	before *held
	// ok is Owns as a value, made once for the hot path.
	ok func() bool

	// loaded: core has its content. serving: and may be asked.
	loaded  atomic.Bool
	serving atomic.Bool
	ended   atomic.Bool
	// steady: it has been compared with the queue. giving: it is to be handed
	// over. away: and is not served any more meanwhile.
	steady atomic.Bool
	giving atomic.Pointer[giving]
	away   atomic.Bool
	// gaps are the batches that were lost in chunks in flight and not told of yet.
	gaps atomic.Int64

	ctx    context.Context // the ownership's life
	cancel context.CancelCauseFunc
	done   chan struct{}
	served chan struct{} // closed when serving is true
	nudged chan struct{}

	// For the keeper alone.
	reinit  bool // it began anew although there had been checkpoints
	orphans bool // a file may lie about that is not listed
	fresh   bool // nothing was saved under this generation yet
	settled int64
	covered bool
	broken  time.Time // when the keeper saw that the shard is
	trouble remind.Reminder
	// answered is the newest request that its checkpoints answer.
	answered int64

	mu     sync.Mutex
	step   string
	saved  lastSave
	saving error
	// recovered is how long the shard was not served after it was claimed, pauses
	// for how many seconds it was not served in all its hand-overs.
	recovered time.Duration
	pauses    float64
}

// lastSave is the newest checkpoint of this ownership.
type lastSave struct {
	at      time.Time
	meta    checkpoint.Meta
	summary ledger.Summary
}

func newHeld(t *tenure, shard int, claim membership.Owner) *held {
	h := &held{
		shard: shard, generation: claim.Generation, claim: claim, member: t.member, fresh: true,
		done: make(chan struct{}), served: make(chan struct{}), nudged: make(chan struct{}, 1), step: "claimed",
	}
	h.ok = h.owns
	h.ctx, h.cancel = context.WithCancelCause(t.hold)
	return h
}

// owns tells whether the shard is certain to be owned here. It is asked under
// the shard's lock before anything changes, and again before an answer goes out.
func (h *held) owns() bool { return !h.ended.Load() && !h.away.Load() && h.member.Alive() }

// nudge makes the keeper look again.
func (h *held) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// end makes the ownership serve nothing any more.
func (h *held) end(why error) {
	h.ended.Store(true)
	h.cancel(why)
}

// letGo takes the content out of the account of the memory, once the keeper has
// ended and nobody has taken it over.
func (h *held) letGo() {
	if h.core != nil {
		h.core.Release()
	}
}

func (h *held) doing(step string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step = step
}

func (h *held) owner() checkpoint.Owner {
	return checkpoint.Owner{Shard: h.shard, Incarnation: h.member.Incarnation(), Generation: h.generation}
}

func (s *Server) logOf(h *held) *logrus.Entry {
	return s.log.WithFields(logrus.Fields{"shard": h.shard, "generation": h.generation})
}

// keep is a shard's keeper: restore, serve, compare with the queue, save, until
// the ownership ends. An error that is fatal to the process goes to faults.
func (t *tenure) keep(h *held) {
	defer close(h.done)
	if h.before != nil {
		<-h.before.done
		h.reinit = h.core != nil && h.before.reinit
		h.pauses = h.before.pauses
		h.before = nil
	}
	err := t.restore(h.ctx, h)
	if err == nil {
		err = t.tend(h)
	}
	if err != nil && h.ctx.Err() == nil {
		t.logOf(h).WithError(err).Error("the shard cannot be kept")
		t.fail(err)
	}
}

// tend looks after a shard that is being served. It returns when the ownership
// ends, or with what is fatal.
func (t *tenure) tend(h *held) error {
	rhythm := newRhythm(t.job.Spec.Checkpoint.Interval, t.cfg.Clock.Now())
	for {
		pause, err := t.look(h, rhythm)
		if err != nil {
			return err
		}
		timer := t.cfg.Clock.Timer(pause)
		select {
		case <-h.ctx.Done():
			timer.Stop()
			return nil
		case <-h.nudged:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// look does for a shard whatever is due, and says when to look again at the
// latest. It goes by what is the case, not by what has happened: so a chunk
// that is reopened while the job drains just means that later it drains again.
func (t *tenure) look(h *held, r *rhythm) (time.Duration, error) {
	if err := h.core.Err(); err != nil {
		if wait := h.explained(t.cfg.Clock.Now()); wait > 0 {
			return wait, nil
		}
		if err := t.failJob(h.ctx, h, err); err != nil {
			return 0, err
		}
		return time.Minute, nil // not owned any more; the view will say so
	}
	if n := h.gaps.Swap(0); n > 0 {
		t.logOf(h).WithField("batches", n).Warn("batches of chunks in flight are lost")
	}
	if g := h.giving.Load(); g != nil {
		return t.give(h, g)
	}
	st := t.stateNow()
	if h.settled < max(st.Revision, 1) {
		if again, err := t.settle(h); err != nil || again > 0 {
			return again, err
		}
	}
	if h.covered && h.finalDue() {
		failpoint.Hit(failpoint.Draining)
		h.doing("writing the last checkpoint")
		if err := t.save(h.ctx, h, saveFinal); err != nil {
			return t.trouble(h, "no last checkpoint yet, trying again", err)
		}
	}
	if t.requested.Load() > h.answered {
		h.doing("writing a checkpoint on request")
		if err := t.save(h.ctx, h, saveRequest); err != nil {
			return t.trouble(h, "no checkpoint on request yet, trying again", err)
		}
	}
	h.doing("serving")
	now := t.cfg.Clock.Now()
	h.trouble.Over(now)
	if r.due(now) {
		if h.core.Unreckoned() > 0 { // it is not to grow with the pass
			if again, err := t.settle(h); err != nil || again > 0 {
				return again, err
			}
		}
		err := t.saveInterval(h)
		t.metrics.skipped(r.done(now, t.cfg.Clock.Now()))
		if err != nil && h.ctx.Err() == nil {
			t.logOf(h).WithError(err).Error("checkpoint not written")
		}
	}
	return r.wait(t.cfg.Clock.Now()), nil
}

// explainTime is how long the keeper of a broken shard leaves it to the trainer
// whose batch broke it to fail the job: that one can name file and lines.
const explainTime = 2 * time.Second

// explained is how long that still is.
func (h *held) explained(now time.Time) time.Duration {
	if h.broken.IsZero() {
		h.broken = now
	}
	return explainTime - now.Sub(h.broken)
}

// settle compares the ledger with the queue, and notes how far it came. A
// positive duration says when to try again.
func (t *tenure) settle(h *held) (time.Duration, error) {
	h.doing("comparing the ledger with the queue")
	st, covered, err := t.compare(h.ctx, h)
	if err != nil {
		return t.trouble(h, "cannot compare the ledger with the queue yet, trying again", err)
	}
	h.settled, h.covered = st.Revision, covered && st.Phase == etcdqueue.PhaseDraining
	h.steady.Store(true)
	return 0, nil
}

// trouble sorts the errors of a keeper: fatal ones come back, others are a
// reason to try again soon.
func (t *tenure) trouble(h *held, what string, err error) (time.Duration, error) {
	switch {
	case h.ctx.Err() != nil, errors.Is(err, ErrBroken):
		return retryPause, nil //nolint:nilerr // tend sees the first, look the second
	case errors.Is(err, errLostShard), errors.Is(err, checkpoint.ErrNotOwner),
		errors.Is(err, etcdqueue.ErrGuard), errors.Is(err, etcdqueue.ErrPhase):
		h.doing("waiting for news about the owners") // they decide, or the state does
		return retryPause, nil
	case !retryable(err):
		return 0, err
	}
	t.warn(h, what, err)
	h.doing(what + ": " + err.Error())
	return retryPause, nil
}

// warn says what a keeper tries again, at once and then more and more rarely.
func (t *tenure) warn(h *held, what string, err error) {
	if h.trouble.Due(t.cfg.Clock.Now()) {
		t.logOf(h).WithError(err).Warn(what)
	}
}

// finalDue tells whether the newest checkpoint of this ownership lacks a pass
// that the ledger covers.
func (h *held) finalDue() bool {
	h.mu.Lock()
	saved := h.saved
	h.mu.Unlock()
	return h.fresh || saved.meta.Passes < h.core.Stats().Summary.Passes
}
