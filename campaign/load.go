package main

import (
	"maps"
	"time"

	"starfish/campaign/history"
	"starfish/etcdqueue"
	"starfish/internal/membership"
)

// evenWithin is how long after a pserver has come or gone the others may hold
// uneven numbers of shards.
const evenWithin = 5 * time.Second

// even tells whether every shard has a living owner, and no pserver that stays
// holds more than one shard more than another.
func even(v membership.View, r membership.Roster) bool {
	least, most, sum := len(v.Shards), 0, 0
	for _, p := range r.Members {
		if !p.Leaving {
			n := history.Holds(v, p)
			least, most, sum = min(least, n), max(most, n), sum+n
		}
	}
	return sum == len(v.Shards) && most-least <= 1
}

// load measures, after each change of the pservers that leaves an uneven load or
// a shard without a living owner, how long it stays so while the job trains. A
// change that comes before it has been evened out takes its place.
type load struct {
	roster map[string]membership.Registration
	since  time.Time // of the change that is not evened out; zero: none
	// Evened are the seconds that it took.
	evened []float64
	// late counts the changes that were not evened out before the next one, though
	// that came later than evenWithin.
	late int
}

// pause ends a measurement that says nothing: etcd is away.
func (l *load) pause() { l.since = time.Time{} }

// look is called after each revision that a history has seen, with the time at
// which it did.
func (l *load) look(now time.Time, h *history.History) {
	l.see(now, h.State().Phase, h.View(), h.Roster())
}

func (l *load) see(now time.Time, phase etcdqueue.Phase, v membership.View, roster map[string]membership.Registration) {
	if phase != etcdqueue.PhaseTraining {
		l.close(now)
		return
	}
	is := even(v, membership.Roster{Members: roster})
	if !maps.Equal(l.roster, roster) {
		l.close(now)
		if l.roster = maps.Clone(roster); !is {
			l.since = now
		}
	}
	if is && !l.since.IsZero() {
		l.evened = append(l.evened, now.Sub(l.since).Seconds())
		l.since = time.Time{}
	}
}

// close ends a measurement before its end.
func (l *load) close(now time.Time) {
	if !l.since.IsZero() && now.Sub(l.since) > evenWithin {
		l.late++
	}
	l.since = time.Time{}
}
