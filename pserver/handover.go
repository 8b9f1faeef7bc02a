package pserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/etcdqueue"
	"starfish/internal/clock"
	"starfish/internal/membership"
)

// A shard changes hands in order in two ways: a pserver that leaves gives all of
// its shards away (drain), and one that is the richest gives one to the poorest
// (balance, give). Each is stop, save, and one transaction that changes the owner;
// the receiver restores the shard as after any claim. docs/pserver.md has the
// states, and what holds if somebody dies between them.

const (
	// calmTime is how long no pserver must have come or gone before a shard is
	// handed over for balance.
	calmTime = time.Second
	// leastRest is the shortest time between two hand-overs by one pserver. They
	// do not follow each other faster than they last, so that trainers get on.
	leastRest = 100 * time.Millisecond
	// failedRest is the time after one that has failed, unless pservers come or go
	// before: what has failed may be theirs.
	failedRest = 5 * time.Second
	// shardsAtOnce: of so many shards of the job one more is on its way at a time,
	// so that a job of a thousand shards is balanced in seconds too.
	shardsAtOnce = 32
	// probeTime is how long a receiver has to say that it is there.
	probeTime = 500 * time.Millisecond
)

// moving is a hand-over for balance, of a shard as long as it is held here.
type moving struct {
	*held
	*giving
}

// giving is a hand-over for balance that is under way.
type giving struct {
	to    membership.Registration
	began time.Time // when it was planned
	// For the keeper alone.
	stopped time.Time // when the shard was not served any more
	given   bool      // the owner has changed
	// failed: the shard was kept, and another attempt would end like this one. It
	// is set before held.giving is nil again.
	failed bool
}

var (
	// errKept: the receiver is gone, or the shards lie differently by now.
	errKept = errors.New("pserver: the hand-over is not wanted any more")
	// errSilent: the receiver is registered, and does not answer.
	errSilent = errors.New("pserver: the receiver does not answer")
)

// balance begins the hand-overs by which this process should give shards away
// now. A positive duration says when to look again at the latest.
func (t *tenure) balance() time.Duration {
	now := t.cfg.Clock.Now()
	if t.rest(now) {
		return leastRest
	}
	if t.view.Revision == 0 || t.stateNow().Phase != etcdqueue.PhaseTraining {
		return 0 // the next view or state asks again
	}
	shards := t.job.Parameters.Shards
	moves := membership.PlanBalance(t.view.Sized(shards), t.roster, t.me, 1+shards/shardsAtOnce)
	if len(moves) == 0 {
		return 0
	}
	if wait := max(t.calm.Sub(now), t.failed.Sub(now)); wait > 0 {
		return wait
	}
	for _, m := range moves {
		h := (*t.table.Load())[m.Shard]
		if h == nil || !h.steady.Load() {
			continue // it has just come
		}
		g := &giving{to: t.roster.Members[m.To], began: now}
		h.giving.Store(g)
		h.nudge()
		t.moving = append(t.moving, moving{h, g})
	}
	return leastRest
}

// rest tells whether a hand-over is under way. When one is over it sets how
// long the next one has to wait.
func (t *tenure) rest(now time.Time) bool {
	table := *t.table.Load()
	var left []moving
	for _, m := range t.moving {
		switch is := m.held.giving.Load(); {
		case is != nil && table[m.shard] == m.held:
			left = append(left, m)
		case is == nil && m.failed:
			t.failed = now.Add(failedRest)
		case is == nil:
			t.calmUntil(now.Add(calmTime))
		default: // it has another owner
			t.calmUntil(now.Add(max(leastRest, now.Sub(m.began))))
		}
	}
	t.moving = left
	return len(left) > 0
}

func (t *tenure) calmUntil(when time.Time) {
	if when.After(t.calm) {
		t.calm = when
	}
}

// give is the keeper's part of a hand-over: in the end the shard is another
// pserver's, or it is served here again.
func (t *tenure) give(h *held, g *giving) (time.Duration, error) {
	if g.given {
		return time.Minute, nil // the view will say so
	}
	h.doing("handing the shard over to " + g.to.Name)
	err := t.transfer(h, g)
	log := t.logOf(h).WithField("to", g.to.Name)
	switch {
	case h.ctx.Err() != nil:
		return retryPause, nil //nolint:nilerr // tend sees that the ownership has ended
	case err == nil:
		g.given = true
		t.metrics.handOvers.WithLabelValues("given").Inc()
		log.WithField("seconds", t.cfg.Clock.Now().Sub(g.stopped).Seconds()).Info("handed the shard over")
		return time.Minute, nil
	}
	t.metrics.handOvers.WithLabelValues("kept").Inc()
	log.WithError(err).Warn("the shard was not handed over, it is served here again")
	g.failed = !errors.Is(err, errKept)
	h.giving.Store(nil)
	h.away.Store(false)
	return 0, nil
}

// transfer saves the shard, which is not served any more from the cut on, and
// makes it the receiver's. An error means that it is still owned here, unless the
// ownership has ended otherwise.
func (t *tenure) transfer(h *held, g *giving) error {
	if willing := t.willing(h.ctx, map[string]membership.Registration{g.to.Name: g.to}); !willing[g.to.Name] {
		return fmt.Errorf("%w: %s", errSilent, g.to.Name)
	}
	if err := t.fits(h.ctx, g.to, h.core.Content()); err != nil {
		return err
	}
	if err := t.save(h.ctx, h, saveHandOver); err != nil {
		return err
	}
	for {
		v, err := t.change(h, g)
		switch {
		case err == nil && v.Generation(h.shard, t.me.Incarnation) != h.generation:
			return nil
		case err == nil:
			return errKept
		case !retryable(err):
			return err
		}
		t.warn(h, "cannot hand the shard over yet, trying again", err)
		if err := clock.Sleep(h.ctx, t.cfg.Clock, retryPause); err != nil {
			return err
		}
	}
}

// change makes one attempt to change the owner.
func (t *tenure) change(h *held, g *giving) (membership.View, error) {
	ctx, cancel := context.WithTimeout(h.ctx, requestTimeout)
	defer cancel()
	return membership.HandOver(ctx, t.cfg.Store, t.member, func(v membership.View, r membership.Roster) []membership.Move {
		if !membership.Uneven(v, r, t.me.Name, g.to.Name) {
			return nil
		}
		return []membership.Move{{Shard: h.shard, To: g.to.Name, Paused: t.cfg.Clock.Now().Sub(g.stopped)}}
	})
}

// willing asks pservers whether they are there, all at once, and returns the
// names of those that have answered as themselves.
func (t *tenure) willing(ctx context.Context, pservers map[string]membership.Registration) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	willing := map[string]bool{}
	for name, p := range pservers {
		if p.Leaving || p.Incarnation == t.me.Incarnation {
			continue
		}
		asked.Go(func() {
			incarnation, err := t.probe(ctx, p.Address)
			mu.Lock()
			defer mu.Unlock()
			willing[name] = err == nil && incarnation == p.Incarnation
		})
	}
	asked.Wait()
	return willing
}

// leave gives all shards away after their last saves, those in bad to nobody:
// whoever loads them meets what this process has met.
func (t *tenure) leave(ctx context.Context, since time.Time, willing map[string]bool, bad map[int]bool) error {
	v, err := membership.HandOver(ctx, t.cfg.Store, t.member, func(v membership.View, r membership.Roster) []membership.Move {
		moves := membership.PlanLeave(v, r, t.me, willing)
		for i := range moves {
			if bad[moves[i].Shard] {
				moves[i].To = ""
			}
			moves[i].Paused = t.cfg.Clock.Now().Sub(since)
		}
		return moves
	})
	if err != nil {
		return err
	}
	for shard, h := range *t.table.Load() {
		if h == nil || h.member != t.member {
			continue
		}
		if o := v.Shards[shard]; o.From == t.me.Name {
			t.metrics.handOvers.WithLabelValues("given").Inc()
			t.logOf(h).WithFields(logrus.Fields{"to": o.Name, "seconds": o.Paused}).Info("handed the shard over")
		}
	}
	return nil
}
