package pserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
	"starfish/internal/remind"
	"starfish/internal/store"
	"starfish/job"
)

const (
	// startPause is how long a pserver waits at the job's start for the others
	// that are meant to come, before it claims without them.
	startPause = 2 * time.Second
	// requestTimeout bounds a request to the store in the tenure's loop, so
	// that the loop sees what else happens.
	requestTimeout = 3 * time.Second
	// stopTries is how often the last save of an orderly stop is tried.
	stopTries = 3
)

// tenure is what the process does as one member of the job.
type tenure struct {
	*Server
	member *membership.Member
	me     membership.Owner
	view   membership.View
	roster membership.Roster
	waited bool // startPause is over
	// moving are the hand-overs under way; calm is when the next may begin, and so
	// is failed after one that has failed.
	moving       []moving
	calm, failed time.Time
	// free is since when shards are free; needs what shards that are being loaded
	// will take; declined which shard cannot be held, if one cannot.
	free      time.Time
	needs     map[int]int64
	declined  string
	declining remind.Reminder
	// claiming that fails is tried again.
	claiming remind.Reminder
	// keepers run under hold, which ends with the tenure.
	keepers sync.WaitGroup
	hold    context.Context
	release context.CancelCauseFunc
}

// The reasons for which keepers end.
var (
	errEnded    = errors.New("pserver: the membership has ended")
	errDropped  = errors.New("pserver: the shard has another owner")
	errStopping = errors.New("pserver: stopping")
)

// tenure follows owners, pservers and state until the membership ends. It
// returns membership.ErrLost if the process may register again.
func (s *Server) tenure(ctx context.Context, m *membership.Member) error {
	t := &tenure{Server: s, member: m, me: membership.Owner{Name: m.Name(), Incarnation: m.Incarnation(), Address: m.Address()}, needs: map[int]int64{}}
	t.hold, t.release = context.WithCancelCause(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.member = m
	s.mu.Unlock()
	s.log.WithFields(logrus.Fields{"incarnation": m.Incarnation(), "address": m.Address()}).Info("registered")
	s.step("")
	err := t.follow(ctx)
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		t.drain(ctx)
		return nil
	case job.ExitCode(exit(err)) == int(job.ExitStateLost):
		t.drain(ctx) // the other shards are well
		return err
	}
	t.stopping.Store(!errors.Is(err, membership.ErrLost))
	t.release(errEnded)
	t.keepers.Wait()
	t.deregister(ctx)
	return err
}

// follow handles one event after the other until something ends the tenure.
func (t *tenure) follow(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	views := membership.WatchView(watch, t.cfg.Store, membership.View{})
	rosters := membership.WatchRoster(watch, t.cfg.Store, membership.PServers)
	trainers := t.watchTrainers(watch)
	states := t.queue.WatchState(watch)
	requests := checkpoint.WatchRequests(watch, t.cfg.Store, t.cfg.Clock)
	start := t.cfg.Clock.Timer(startPause)
	defer start.Stop()
	again := t.cfg.Clock.Timer(0) // also after a claim that failed
	defer func() { again.Stop() }()
	for {
		open := true
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.member.Lost():
			return t.member.Err()
		case err := <-t.faults:
			return err
		case st, ok := <-states:
			if open = ok; ok {
				if over, err := t.ended(st); over || err != nil {
					return err
				}
				t.nudge()
			}
		case v, ok := <-views:
			if open = ok; ok {
				t.adopt(v)
			}
		case r, ok := <-rosters:
			if open = ok; ok {
				if !maps.Equal(r.Members, t.roster.Members) {
					t.calmUntil(t.cfg.Clock.Now().Add(calmTime))
					t.failed = time.Time{}
				}
				t.roster = r
			}
		case r, ok := <-trainers:
			if open = ok; ok {
				t.setTrainers(r)
				continue // nor does this
			}
		case asked, ok := <-requests:
			if open = ok; ok {
				t.requested.Store(asked)
				t.nudge()
				continue // it changes nothing about who owns what
			}
		case <-start.C():
			t.waited = true
		case <-again.C():
		}
		if !open { // a watch ends with its context, or when it can never go on
			_, err := t.queue.State(ctx)
			return cmp.Or(context.Cause(ctx), err, store.ErrHistory)
		}
		err := t.claim(ctx)
		if err != nil && (!retryable(err) || errors.Is(err, membership.ErrLost)) {
			return err
		}
		if err != nil {
			if t.claiming.Due(t.cfg.Clock.Now()) {
				t.log.WithError(err).Warn("cannot claim yet, trying again")
			}
			again.Stop()
			again = t.cfg.Clock.Timer(retryPause)
			continue
		}
		t.claiming.Over(t.cfg.Clock.Now())
		pause := t.balance()
		if !t.free.IsZero() && (pause == 0 || pause > time.Second) {
			pause = time.Second // who was meant to claim may not do it
		}
		if pause > 0 {
			again.Stop()
			again = t.cfg.Clock.Timer(pause)
		}
	}
}

// claim claims what this process should own by the last view and roster.
func (t *tenure) claim(ctx context.Context) error {
	shards := t.plan()
	if len(shards) == 0 {
		t.wait(t.idle())
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// Shards also become free because others leave a job that has ended.
	if st, err := t.queue.State(ctx); err != nil || st.Phase.Ended() {
		return err
	}
	shards, err := t.affordable(ctx, shards)
	if err != nil || len(shards) == 0 {
		t.wait(t.declined)
		return err
	}
	v, err := membership.Claim(ctx, t.cfg.Store, t.member, t.job.SpecRev, shards)
	if err != nil {
		return err
	}
	t.adopt(v)
	return nil
}

// idle says why nothing is claimed, if nothing is owned.
func (t *tenure) idle() string {
	if t.roster.Revision == 0 {
		return ""
	}
	for _, h := range *t.table.Load() {
		if h != nil {
			return ""
		}
	}
	if n, want := len(t.roster.Members), t.job.Spec.Run.Pservers; !t.waited && n < want {
		return fmt.Sprintf("for pservers: %d of %d are registered: %s", n, want,
			strings.Join(slices.Sorted(maps.Keys(t.roster.Members)), " "))
	}
	return "for a shard: every one has an owner"
}

// plan says which shards to claim. What is still in memory from before the
// lease was lost comes first: for everybody else it would be a restore.
func (t *tenure) plan() []int {
	if t.view.Revision == 0 || t.roster.Revision == 0 {
		return nil // not known yet
	}
	v := t.view.Sized(t.job.Parameters.Shards)
	shards := membership.PlanClaim(v, t.claimants(v), t.me, t.job.Spec.Run.Pservers, t.waited)
	for shard, h := range *t.table.Load() {
		o := v.Shards[shard]
		if h != nil && h.member != t.member && (!o.Owned() || o.Incarnation == h.member.Incarnation()) &&
			!slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	return shards
}

// adopt makes the table fit a view: it drops what is owned by others, and
// takes up what is owned by us. A view older than the last one is ignored.
func (t *tenure) adopt(v membership.View) {
	if v.Revision <= t.view.Revision {
		return
	}
	t.view = v
	table := slices.Clone(*t.table.Load())
	var begin []*held
	for shard, h := range table {
		next := t.successor(v, shard, h)
		if next == h {
			continue
		}
		if next != nil {
			begin = append(begin, next)
		}
		if h != nil {
			h.end(errDropped)
			if next == nil || next.core == nil {
				t.keepers.Go(func() { <-h.done; h.letGo() })
			}
		}
		table[shard] = next
	}
	t.table.Store(&table)
	for _, h := range begin {
		t.keepers.Go(func() { t.keep(h) })
	}
}

// successor is what the table should have for a shard by a view: h itself, if
// nothing has changed.
func (t *tenure) successor(v membership.View, shard int, h *held) *held {
	generation := v.Generation(shard, t.me.Incarnation)
	switch {
	case generation == 0 && h == nil:
		return nil
	case generation == 0 && h.member != t.member && shard < len(v.Shards) && v.Shards[shard].Generation == h.generation:
		return h // nobody has claimed it since: the memory may still be of use
	case generation == 0 && h.giving.Load() != nil:
		return nil // handed over
	case generation == 0:
		t.log.WithFields(logrus.Fields{"shard": shard, "generation": h.generation}).Warn("the shard has another owner, dropping it")
		return nil
	case h != nil && h.generation == generation && h.member == t.member:
		return h
	}
	if v.Shards[shard].From == "" { // else it is received, which its keeper logs
		t.log.WithFields(logrus.Fields{"shard": shard, "generation": generation}).Info("the shard is claimed")
	}
	next := newHeld(t, shard, v.Shards[shard])
	if h != nil {
		next.before = h
		// Every claim adds one to the generation, so if it has grown by one
		// nobody has owned the shard between.
		if h.generation+1 == generation && h.loaded.Load() {
			next.core = h.core
		}
	}
	return next
}

// nudge makes every keeper look at the state again.
func (t *tenure) nudge() {
	for _, h := range *t.table.Load() {
		if h != nil {
			h.nudge()
		}
	}
}

// drain is the orderly stop: take no shard any more, answer nothing any more, save
// every shard, hand the shards over to those that stay, deregister. It takes no
// longer than cfg.Drain; what does not succeed by then is left to the successors,
// who replay.
func (t *tenure) drain(ctx context.Context) {
	t.step("stopping: last checkpoints")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.Drain)
	defer cancel()
	// Still serving, so that it costs no pause: who is there to receive?
	var asked sync.WaitGroup
	asked.Go(func() { t.announce(ctx) })
	willing := t.able(ctx, t.willing(ctx, t.roster.Members))
	asked.Wait()
	since := t.cfg.Clock.Now()
	t.stopping.Store(true)
	t.release(errStopping)
	t.keepers.Wait()
	shards, bad := t.lastSaves(ctx)
	t.step("stopping: giving up the shards")
	if err := t.leave(ctx, since, willing, bad); err != nil {
		t.log.WithError(err).Warn("the shards were not given up, they are free when the registration is gone")
	}
	t.deregister(ctx)
	t.log.WithField("shards", shards).Info("stopped")
}

// announce says that this process is leaving, so that it is given no more shards.
func (t *tenure) announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := t.member.Leave(ctx); err != nil {
		t.log.WithError(err).Warn("the others do not know that this pserver is leaving")
	}
}

// lastSaves saves every shard at once. In bad are those that have never been
// loaded, or begun anew and not been compared with the queue.
func (t *tenure) lastSaves(ctx context.Context) (shards []int, bad map[int]bool) {
	var saves sync.WaitGroup
	bad = map[int]bool{}
	for shard, h := range *t.table.Load() {
		if h == nil || h.member != t.member {
			continue
		}
		h.end(errStopping) // before the cut: what is acknowledged is in it
		shards = append(shards, shard)
		if !h.sound() {
			bad[shard] = true
			continue
		}
		saves.Go(func() {
			err := t.lastSave(ctx, h)
			log := t.logOf(h).WithError(err)
			switch {
			case errors.Is(err, checkpoint.ErrNotOwner):
				log.Info("no last checkpoint, the shard has another owner")
			case err != nil:
				log.Error("no last checkpoint, the shard's successor replays")
			}
		})
	}
	saves.Wait()
	return shards, bad
}

// sound tells whether a shard may be saved: it has been loaded and, if it began
// anew, compared with the queue. Otherwise its successor could not tell that
// passes are missing.
func (h *held) sound() bool { return h.loaded.Load() && (!h.reinit || h.settled > 0) }

// lastSave saves a shard. It tries a few times and then leaves: who waits for a
// disk that stays full waits for nothing.
func (t *tenure) lastSave(ctx context.Context, h *held) error {
	for try := 1; ; try++ {
		err := t.save(ctx, h, saveStop)
		if err == nil || try == stopTries || errors.Is(err, checkpoint.ErrNotOwner) || errors.Is(err, ErrBroken) {
			return err
		}
		if cause := clock.Sleep(ctx, t.cfg.Clock, retryPause); cause != nil {
			return err
		}
	}
}

// deregister ends the membership and revokes the lease.
func (t *tenure) deregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if err := t.member.Close(ctx); err != nil {
		t.log.WithError(err).Warn("the lease was not revoked, it will expire")
	}
}

// failJob ends the job for everybody because a shard that is owned here has
// broken. If it is not owned here any more, its weights count for nothing.
func (t *tenure) failJob(ctx context.Context, h *held, broken error) error {
	reason := fmt.Sprintf("training diverged on shard %d: %v", h.shard, broken)
	for {
		v, err := membership.ReadView(ctx, t.cfg.Store)
		if err == nil && v.Generation(h.shard, t.me.Incarnation) != h.generation {
			return nil
		}
		if err == nil {
			err = t.queue.Finish(ctx, etcdqueue.PhaseFailed, reason, nil, v.Guard())
		}
		if err == nil || errors.Is(err, etcdqueue.ErrPhase) {
			return job.Exitf(job.ExitFailure, "%s", reason)
		}
		if !retryable(err) && !errors.Is(err, etcdqueue.ErrGuard) {
			return err
		}
		if cause := clock.Sleep(ctx, t.cfg.Clock, retryPause); cause != nil {
			return nil //nolint:nilerr // the keeper has ended; whoever replays meets the same
		}
	}
}

// retryable tells the errors that may heal by themselves from those that never do.
func retryable(err error) bool {
	var superseded *membership.SupersededError
	for _, fatal := range []error{
		store.ErrHistory, store.ErrInvalid, membership.ErrVersion, membership.ErrJobChanged,
		etcdqueue.ErrFormat, etcdqueue.ErrMismatch, etcdqueue.ErrNoQueue, etcdqueue.ErrClosed,
		etcdqueue.ErrGuard, etcdqueue.ErrPhase, checkpoint.ErrNotOwner, errLostShard,
	} {
		if errors.Is(err, fatal) {
			return false
		}
	}
	return !errors.As(err, &superseded)
}
