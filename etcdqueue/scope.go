package etcdqueue

import (
	"context"
	"errors"
	"time"
)

// scope is what the view follows.
//
// A taker that has a lane to itself, in a pass of which much is left, knows that
// lane by its own writes and needs no other: it settles. It then follows only
// what is rare, and looks at the lanes once per silence. As soon as it wants to
// know more, somebody else writes its lane, or `state` changes, it reads all
// lanes and follows them again. So what one taker writes is told to those who
// look for work, to the steward, and to hardly anybody else.
type scope int

const (
	// everything: all lanes of the passes that may be taken from.
	everything scope = iota
	// settled: `state` and the quarantined chunks.
	settled
	// unsettled: as settled still, but everything has been asked for.
	unsettled
)

const (
	// settling is how long a taker sees how fast a pass goes before it settles.
	settling = 2 * time.Second
	// ahead is for how long, at that speed, the pass has to last; it is looked at
	// once per silence.
	ahead = 4 * silence
	// spare is how many takes of each taker must be left. A share (wish.share) that
	// is worked out from what is a silence old is then the same as it would be.
	spare = 8
)

// errBehind: nothing was found, but not everything is followed.
var errBehind = errors.New("etcdqueue: not everything is followed")

// flow is how fast the chunks of a pass go.
type flow struct {
	created int64 // of the pass's key
	since   time.Time
	todo    int64 // at that time
	least   int64 // what must be left
}

// settleLocked lets a taker settle that has just taken picks, planned on a
// snapshot of its pass.
func (q *Queue) settleLocked(planned *passView, picks []pick, w *wish) {
	p := q.view.passes[planned.number]
	if q.scope != everything || q.waiting > 0 || p == nil || p.created != planned.created || !p.shuffle {
		return
	}
	now := q.c.Clock.Now()
	if q.flow.created != p.created {
		q.flow = flow{created: p.created, since: now, todo: p.todo}
	}
	q.flow.least = spare * int64(max(w.peers, 1)) * w.count
	if now.Sub(q.flow.since) < settling || len(picks) != 1 || planned.busy(picks[0].lane) || !q.ampleLocked(now) {
		return
	}
	q.scope = settled
	q.rescoped()
}

// ampleLocked tells whether so much is left of the one pass that may be taken
// from that a taker may be settled. It measures anew from now on.
func (q *Queue) ampleLocked(now time.Time) bool {
	passes := q.view.state.Takeable()
	p := q.view.passes[passes[0]]
	if q.view.state.Phase != PhaseTraining || len(passes) > 1 || p == nil || p.created != q.flow.created {
		return false
	}
	passed, gone := now.Sub(q.flow.since), q.flow.todo-p.todo
	if passed >= settling {
		q.flow.since, q.flow.todo = now, p.todo
	} else {
		gone = 0
	}
	return p.todo > q.flow.least && passed.Seconds()*float64(p.todo) >= ahead.Seconds()*float64(gone)
}

// lookedLocked decides, after everything was read, what is followed next.
func (q *Queue) lookedLocked() {
	if q.scope != settled || q.waiting > 0 || !q.ampleLocked(q.c.Clock.Now()) {
		q.scope = everything
	}
}

// unsettleLocked asks for everything; it tells whether that is followed already.
func (q *Queue) unsettleLocked() bool {
	if q.scope == settled {
		q.scope = unsettled
		q.rescoped()
	}
	return q.scope == everything
}

// rescoped wakes the follower.
func (q *Queue) rescoped() {
	select {
	case q.rescope <- struct{}{}:
	default:
	}
}

// widen waits until everything is followed: until the view is no older than the
// call, but for what is on its way.
func (q *Queue) widen(ctx context.Context) error {
	for {
		q.mu.Lock()
		wide, changed, err := q.unsettleLocked(), q.changed, q.fatal
		q.mu.Unlock()
		if wide || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
