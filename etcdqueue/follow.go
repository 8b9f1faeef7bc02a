package etcdqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"starfish/internal/clock"
	"starfish/internal/store"
)

// The follower keeps the view close behind the store. It watches one range of
// keys, from `failed/` to `state`, so that it sees every change of the queue in
// the store's order; what else lies in between (`owners`, registrations) is
// rare and skipped. While the taker is settled, see scope, it watches two narrow
// ones instead. After any break, and after a long silence, it reads again.
const (
	followFrom = failedPrefix
	followTo   = stateKey + "\x00"
	// silence is how long nothing may come before the follower reads again, in
	// case the watch is broken without saying so.
	silence = 10 * time.Second
	// groupPasses bounds the passes of one read.
	groupPasses = 16
)

var errWatchEnded = errors.New("the watch ended")

// start makes sure that the follower runs, and waits for its first view.
func (q *Queue) start(ctx context.Context) error {
	q.mu.Lock()
	if !q.following && !q.closed {
		q.following = true
		go q.follow()
	}
	q.mu.Unlock()
	select {
	case <-q.loaded:
	case <-ctx.Done():
		return fmt.Errorf("wait for the queue's records: %w", context.Cause(ctx))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fatal
}

func (q *Queue) follow() {
	defer close(q.done)
	for attempt := 0; ; attempt++ {
		began := q.c.Clock.Now()
		err := q.followOnce(q.ctx)
		if q.ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		if fatal(err) {
			q.mu.Lock()
			q.failLocked(err)
			q.mu.Unlock()
			return
		}
		if q.c.Clock.Now().Sub(began) > time.Second {
			attempt = 0
		}
		q.c.Log.WithError(err).Warn("queue's records are read again")
		if clock.Sleep(q.ctx, q.c.Clock, min(10*time.Millisecond<<min(attempt, 10), time.Second)) != nil {
			return
		}
	}
}

// fatal tells whether an error will not heal by itself.
func fatal(err error) bool {
	return errors.Is(err, ErrFormat) || errors.Is(err, ErrMismatch) || errors.Is(err, store.ErrHistory)
}

func (q *Queue) failLocked(err error) {
	if q.fatal == nil {
		q.fatal = err
	}
	if !q.isLoaded {
		q.isLoaded = true
		close(q.loaded)
	}
	q.wakeLocked(true)
}

// followOnce reads everything and then follows what the scope says, until it is
// time to read again (nil) or something breaks.
func (q *Queue) followOnce(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	rev, err := q.load(ctx)
	if err != nil {
		return err
	}
	q.mu.Lock()
	wide := q.scope == everything
	q.mu.Unlock()
	var events, failed <-chan store.WatchResponse
	if wide {
		events = q.c.Store.Watch(ctx, followFrom, followTo, rev+1)
	} else {
		events = q.c.Store.Watch(ctx, stateKey, "", rev+1)
		failed = q.c.Store.Watch(ctx, failedPrefix, store.PrefixEnd(failedPrefix), rev+1)
	}
	quiet := q.c.Clock.Timer(silence)
	defer func() { quiet.Stop() }()
	for {
		var r store.WatchResponse
		ok := true
		select {
		case r, ok = <-events:
			if ok && r.Err == nil && !wide {
				return nil // `state` has changed
			}
		case r, ok = <-failed:
		case <-quiet.C():
			return nil
		case <-q.rescope:
			if !q.follows(wide) {
				return nil
			}
			continue
		}
		if !ok {
			return errWatchEnded
		}
		if r.Err != nil {
			return r.Err
		}
		if err := q.apply(ctx, r); err != nil {
			return err
		}
		if wide {
			quiet.Stop()
			quiet = q.c.Clock.Timer(silence)
		}
	}
}

// follows tells whether the scope is still what it was.
func (q *Queue) follows(wide bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return wide == (q.scope == everything) && q.scope != unsettled
}

// load reads `state`, the quarantined chunks and the passes that may be taken
// from, and returns a revision from which on changes must be watched.
func (q *Queue) load(ctx context.Context) (int64, error) {
	r, err := store.Read(ctx, q.c.Store, store.Get(stateKey), store.Range(failedPrefix, store.PrefixEnd(failedPrefix), 0))
	if err != nil {
		return 0, err
	}
	failed := make(quarantine, len(r.KVs[1]))
	for _, kv := range r.KVs[1] {
		if c, ok := parseFailedKey(kv.Key); ok {
			failed[c] = kv.ModRev
		}
	}
	s, err := q.stateFrom(r.First(0), r.Revision)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	q.view.failed = failed
	q.view.setState(s)
	passes := q.view.missing()
	for p := range q.view.passes {
		passes = append(passes, p)
	}
	q.mu.Unlock()
	if err := q.loadPasses(ctx, passes); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.isLoaded {
		q.isLoaded = true
		close(q.loaded)
	}
	q.lookedLocked()
	q.wakeLocked(true)
	return r.Revision, nil
}

// stateFrom is decodeState, but for no `state` at all, which is a state of the
// view: the queue is not there yet, or no more.
func (q *Queue) stateFrom(kv store.KV, at int64) (State, error) {
	if !kv.Exists() {
		return State{Revision: at}, nil
	}
	return q.decodeState(kv)
}

// loadPasses reads whole passes into the view. A pass that has gone meanwhile
// is left out; the watch will tell.
func (q *Queue) loadPasses(ctx context.Context, passes []int) error {
	for len(passes) > 0 {
		group := passes[:min(len(passes), groupPasses)]
		passes = passes[len(group):]
		ops := []store.Op{store.Get(stateKey)}
		for _, p := range group {
			ops = append(ops, store.Get(passKey(p)), store.Range(lanesPrefix(p), store.PrefixEnd(lanesPrefix(p)), 0))
		}
		r, err := store.Read(ctx, q.c.Store, ops...)
		if err != nil {
			return err
		}
		s, err := q.stateFrom(r.First(0), r.Revision)
		if err != nil {
			return err
		}
		for i, number := range group {
			if !r.First(1 + 2*i).Exists() {
				continue
			}
			p, err := q.decodePass(s, number, r.First(1+2*i), r.KVs[2+2*i], r.Revision)
			if err != nil {
				return err
			}
			q.mu.Lock()
			q.mergeLocked(p)
			q.mu.Unlock()
		}
	}
	return nil
}

// mergeLocked puts a pass that was read into the view, without undoing what is
// known to be newer.
func (q *Queue) mergeLocked(p *passView) {
	old := q.view.passes[p.number]
	if old == nil || old.created != p.created {
		q.view.passes[p.number] = p
		return
	}
	for i, s := range p.lanes {
		old.learn(i, s)
	}
}

// apply puts the changes of one response into the view.
func (q *Queue) apply(ctx context.Context, r store.WatchResponse) error {
	q.mu.Lock()
	missing, news, err := q.applyLocked(r.Events)
	if err == nil && len(missing) == 0 {
		q.wakeLocked(news)
	}
	q.mu.Unlock()
	if err != nil || len(missing) == 0 {
		return err
	}
	if err := q.loadPasses(ctx, missing); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked(true)
	return nil
}

func (q *Queue) applyLocked(events []store.Event) (missing []int, news bool, err error) {
	begun := make(map[int]store.KV)
	for _, e := range events {
		switch {
		case e.KV.Key == stateKey:
			s, err := q.stateFrom(live(e), e.KV.ModRev)
			if err != nil {
				return nil, false, err
			}
			news = q.view.setState(s) || news
		case strings.HasPrefix(e.KV.Key, passesPrefix):
			if n, err := strconv.Atoi(e.KV.Key[len(passesPrefix):]); err == nil && !e.Deleted && e.KV.CreateRev == e.KV.ModRev {
				begun[n] = e.KV
			}
		case strings.HasPrefix(e.KV.Key, failedPrefix):
			if c, ok := parseFailedKey(e.KV.Key); ok {
				q.view.setFailed(c, live(e))
			}
		}
	}
	for _, number := range q.view.missing() {
		kv, ok := begun[number]
		if !ok {
			missing = append(missing, number)
			continue
		}
		p, err := q.decodePass(q.view.state, number, kv, nil, kv.ModRev)
		if err != nil {
			return nil, false, err
		}
		q.mergeLocked(p)
		news = true
	}
	for _, e := range events {
		changed, err := q.learnLocked(e.KV, e.KV.ModRev, e.Deleted)
		if err != nil {
			return nil, false, err
		}
		news = news || changed
	}
	return missing, news, nil
}

// live is the event's record, or none after a deletion.
func live(e store.Event) store.KV {
	if e.Deleted {
		return store.KV{}
	}
	return e.KV
}

// learnLocked puts a lane's record into the view if the view has its pass and
// nothing newer. It tells whether the lane has something to take.
func (q *Queue) learnLocked(kv store.KV, at int64, deleted bool) (bool, error) {
	id, ok := parseLaneKey(kv.Key)
	p := q.view.passes[id.pass]
	if !ok || deleted || p == nil || id.lane >= len(p.lanes) || kv.ModRev < p.created {
		return false, nil
	}
	if old := p.lanes[id.lane]; kv.ModRev <= old.rev {
		return false, nil
	}
	s, err := p.decode(id.lane, kv, at)
	if err != nil {
		return false, err
	}
	return p.learn(id.lane, s) && !s.lane.Todo.IsEmpty(), nil
}

// wakeLocked wakes everybody who waits for a change.
func (q *Queue) wakeLocked(news bool) {
	if news {
		q.news++
	}
	close(q.changed)
	q.changed = make(chan struct{})
}

func parseLaneKey(key string) (laneID, bool) {
	rest, ok := strings.CutPrefix(key, queuePrefix)
	pass, lane, found := strings.Cut(rest, "/")
	p, err1 := strconv.Atoi(pass)
	l, err2 := strconv.Atoi(lane)
	if !ok || !found || err1 != nil || err2 != nil || p < 0 || l < 0 {
		return laneID{}, false
	}
	return laneID{p, l}, true
}

func parseFailedKey(key string) (int64, bool) {
	c, err := strconv.ParseInt(strings.TrimPrefix(key, failedPrefix), 10, 64)
	return c, err == nil
}
