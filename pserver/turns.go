package pserver

import (
	"context"
	"time"

	"github.com/google/uuid"

	"starfish/internal/membership"
	"starfish/internal/wire"
	"starfish/job"
)

// awaitTime is how long a message waits for steps to close before it is answered
// that they are open still. Meanwhile nothing else of its stream is handled: so it
// also bounds how late a trainer hears what another shard wants of it.
const awaitTime = 100 * time.Millisecond

// turns is what a message needs to wait for the steps of its sections.
type turns struct {
	// until is when the message is answered at the latest; hurry, that the trainer
	// has to act on something that one of its sections is answered.
	until time.Time
	hurry bool
}

// turn handles what a section means to its shard's barrier.
func (x *exchanger) turn(ctx context.Context, r *wire.ShardRequest, h *held) (out Outcome, err error) {
	now := x.cfg.Clock.Now()
	x.seen[h.core] = struct{}{}
	switch r.Barrier.Kind {
	case wire.Arrive:
		out, err = h.core.Arrive(x.source, r.Barrier, r.Push, now, h.ok)
		x.hurry = x.hurry || err != nil || out.Code().Refused() && !out.Waiting
	case wire.Await:
		out, err = x.await(ctx, r, h)
	default:
		err = h.core.Idle(x.source, r.Barrier, now, h.ok)
	}
	return out, err
}

// await waits until it is known what became of a batch, as long as the message
// may wait.
func (x *exchanger) await(ctx context.Context, r *wire.ShardRequest, h *held) (Outcome, error) {
	for {
		now := x.cfg.Clock.Now()
		if x.until.IsZero() {
			x.until = now.Add(awaitTime)
		}
		out, moved, due, err := h.core.Await(x.source, r.Barrier, now, h.ok)
		if err != nil || moved == nil {
			return out, err
		}
		pause := x.until.Sub(now)
		if x.hurry || pause <= 0 {
			return out, nil
		}
		if !due.IsZero() {
			pause = min(pause, due.Sub(now))
		}
		timer := x.cfg.Clock.Timer(pause)
		select {
		case <-moved:
		case <-timer.C():
		case <-ctx.Done():
			x.hurry = true
		}
		timer.Stop()
	}
}

// view is what a stream knows of the values of one shard that it was given: for
// each batch that it will push, how many updates they had seen that were not its
// own.
type view struct {
	own    int64
	others [4]int64 // of the pulls that no push has followed yet, oldest first
	n      int
}

// pulled notes a pull. One that is larger than a message, or follows too many,
// is not told apart from the one before.
func (v *view) pulled(updates int64) {
	if v.n < len(v.others) {
		v.others[v.n] = updates - v.own
		v.n++
	}
}

// seen is how many updates the values had seen that a push was computed from,
// the stream's own included; negative if it is not known. The last part of a push
// takes what its pull has left.
func (v *view) seen(p *wire.PushData) int64 {
	if v.n == 0 {
		return -1
	}
	seen := v.others[0] + v.own
	if !p.More {
		copy(v.others[:], v.others[1:v.n])
		v.n--
	}
	return seen
}

// trainerList is who is live, at a revision of the store.
type trainerList struct {
	revision int64
	live     map[[16]byte]string
}

// stepped tells whether the trainers of the job keep step.
func (s *Server) stepped() bool {
	return s.job.Spec.Train.Mode == job.ModeSync || s.job.Spec.Train.Staleness > 0
}

// steps is how they do.
func (s *Server) steps() *Steps {
	if !s.stepped() {
		return nil
	}
	t := s.job.Spec.Train
	return &Steps{
		Together: t.Mode == job.ModeSync, Ahead: int64(t.Staleness),
		Closed: func(waited time.Duration) { s.metrics.barrierWait.Observe(waited.Seconds()) },
	}
}

// watchTrainers follows who is live; a channel on which nothing ever comes where
// nobody has to know.
func (t *tenure) watchTrainers(ctx context.Context) <-chan membership.Roster {
	if !t.stepped() {
		return nil
	}
	return membership.WatchRoster(ctx, t.cfg.Store, membership.Trainers)
}

// setTrainers tells every shard who is live. A trainer that is leaving, or whose
// work has come to a stand, need not be waited for.
func (t *tenure) setTrainers(r membership.Roster) {
	list := &trainerList{revision: r.Revision, live: make(map[[16]byte]string, len(r.Members))}
	for name, m := range r.Members {
		if id, err := uuid.Parse(m.Incarnation); err == nil && !m.Leaving && !m.Stalled {
			list.live[id] = name
		}
	}
	t.trainers.Store(list)
	for _, h := range *t.table.Load() {
		if h != nil && h.loaded.Load() {
			t.showTrainers(h)
		}
	}
}

// showTrainers tells a shard who is live.
func (t *tenure) showTrainers(h *held) {
	if list := t.trainers.Load(); list != nil {
		h.core.SetTrainers(list.revision, list.live, t.cfg.Clock.Now(), h.ok)
	}
}

// startSteps says what a shard knows of the open step when it begins to be
// served: nothing, if there was an owner before whose memory is lost.
func (t *tenure) startSteps(h *held, source string) {
	how := StartZero
	lost := h.generation > 1 && source != sourceMemory
	switch {
	case t.cfg.Recovery == RecoveryAlways, t.cfg.Recovery == RecoveryAuto && lost:
		how = StartRecovery
	case lost:
		how = StartUnknown
		if t.stepped() {
			t.logOf(h).Warn("the shard does not know the open step, and --recovery never forbids to adopt one: its steps stay open")
		}
	}
	h.core.StartSteps(how, t.job.Spec.Recovery.BarrierTimeout)
}
