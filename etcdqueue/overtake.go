package etcdqueue

import (
	"cmp"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"starfish/internal/ranges"
)

// slowness is how many times longer than this taker needs for a chunk an entry
// of somebody else has to show no progress before it is overtaken.
const slowness = 4

// maxRun bounds the doublings of the wait for an entry that was overtaken before.
const maxRun = 10

// straggler is an entry of another taker that shows no progress.
type straggler struct {
	Entry
	lane  int
	since time.Time     // when it was first seen with this beat
	wait  time.Duration // how long it may be so
}

// idleLocked tells whether this taker has nothing at all to do: nothing is Todo,
// and all that it took was reported on.
func (q *Queue) idleLocked() bool {
	if q.c.Speculate <= 0 || q.view.state.Phase != PhaseTraining || len(q.takes.granted) > 0 || len(q.takes.doubt) > 0 {
		return false
	}
	for _, number := range q.view.state.Takeable() {
		if p := q.view.passes[number]; p == nil || p.todo > 0 {
			return false
		}
	}
	return true
}

// stragglersLocked notes what is seen of the entries of others, on this process's
// clock, and returns those of each pass, the one without progress for the longest
// first.
func (q *Queue) stragglersLocked(now time.Time) map[int][]straggler {
	found := make(map[int][]straggler)
	seen := make(map[entryID]sighting)
	least := max(q.c.Speculate, slowness*q.c.Pace())
	for _, number := range q.view.state.Takeable() {
		for lane, s := range q.view.passes[number].lanes {
			for _, e := range s.lane.Pending {
				if e.Incarnation == q.c.Incarnation {
					continue
				}
				id := entryID{laneID{number, lane}, Holder{e.Incarnation, e.Token}}
				old, known := q.others[id]
				if !known || old.beat != e.Beat {
					old = sighting{beat: e.Beat, since: now}
				}
				seen[id] = old
				found[number] = append(found[number], straggler{e, lane, old.since, least << min(e.Run, maxRun)})
			}
		}
		slices.SortStableFunc(found[number], func(a, b straggler) int { return a.since.Compare(b.since) })
	}
	q.others = seen
	return found
}

// overtakeInLocked is how long it takes until something may be overtaken; false:
// nothing will be while nothing changes.
func (q *Queue) overtakeInLocked() (time.Duration, bool) {
	if !q.idleLocked() {
		return 0, false
	}
	now := q.c.Clock.Now()
	var least time.Duration
	any := false
	for _, pass := range q.stragglersLocked(now) {
		for _, s := range pass {
			if wait := s.wait - now.Sub(s.since); !any || wait < least {
				least, any = wait, true
			}
		}
	}
	return least, any
}

// overtakeLocked plans a take, from one pass, of what others have in hand and do
// not get on with; nil if there is nothing of the kind. Of an entry the last
// positions are taken: its owner works on the first. The entry's other positions
// can be overtaken as well, by whoever comes next.
func (q *Queue) overtakeLocked(w wish) (*passView, []pick) {
	if !q.idleLocked() {
		return nil, nil
	}
	now := q.c.Clock.Now()
	found := q.stragglersLocked(now)
	for _, number := range q.view.state.Takeable() {
		late := slices.DeleteFunc(found[number], func(s straggler) bool { return now.Sub(s.since) < s.wait })
		var all int64
		for _, s := range late {
			all += s.At.Len()
		}
		want := w.share(all)
		var picks []pick
		for _, s := range late {
			if want == 0 || len(picks) == maxTxnLanes {
				break
			}
			if slices.ContainsFunc(picks, func(k pick) bool { return k.lane == s.lane }) {
				continue // the next take finds it
			}
			k := pick{lane: s.lane, at: last(s.At, want), from: Holder{s.Incarnation, s.Token}}
			want -= k.at.Len()
			picks = append(picks, k)
		}
		if len(picks) > 0 {
			return q.view.passes[number], picks
		}
	}
	return nil, nil
}

// last is the k largest elements of a set.
func last(s ranges.Set, k int64) ranges.Set { return s.Minus(s.First(max(s.Len()-k, 0))) }

// overtaken tells of a take from others.
func (q *Queue) overtaken(p *passView, picks []pick) {
	for _, k := range picks {
		if k.from == (Holder{}) {
			continue
		}
		entries := p.lanes[k.lane].lane.Pending
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Incarnation == k.from.Incarnation && e.Token == k.from.Token })
		q.c.Log.WithFields(logrus.Fields{
			"pass": p.number, "lane": k.lane, "positions": k.at.String(), "from": cmp.Or(entries[i].Owner, k.from.Incarnation),
		}).Info("chunks taken over from a trainer that does not get on with them")
	}
}
