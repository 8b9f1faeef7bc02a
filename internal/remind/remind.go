// Package remind says when to tell again what a process waits for: at once, then
// after 5, 10, 30 and 60 s, and every 60 s from there. So a wait that is over in
// a moment costs one line, and one of an hour about sixty.
//
// A Reminder is a pure value of the times that it is given. Waits that follow
// one another by less than a minute count as one: what breaks and heals many
// times a second is told as rarely as what stays broken.
package remind

import "time"

// calm is how long nothing must have been waited for before the next wait is
// told at once.
const calm = time.Minute

// Reminder belongs to one thing that is waited for. The zero value is ready for
// use; it is not safe for concurrent use.
type Reminder struct {
	since time.Time // of the wait; zero: there is none
	ended time.Time // the last one
	next  time.Time // not told before
	told  int       // since it was calm
	here  int       // in this wait
}

// Due tells whether the wait, which begins with the first call, is to be told now.
func (r *Reminder) Due(now time.Time) bool {
	if r.since.IsZero() {
		r.since, r.here = now, 0
		if r.ended.IsZero() || now.Sub(r.ended) >= calm {
			r.next, r.told = now, 0
		}
	}
	if now.Before(r.next) {
		return false
	}
	r.next = now.Add(pause(r.told))
	r.told++
	r.here++
	return true
}

// Waited is how long the wait has lasted.
func (r *Reminder) Waited(now time.Time) time.Duration {
	if r.since.IsZero() {
		return 0
	}
	return now.Sub(r.since)
}

// Next is how long it is until the wait is to be told again, if it goes on.
func (r *Reminder) Next(now time.Time) time.Duration { return max(r.next.Sub(now), 0) }

// Over ends the wait, and tells whether that is worth a word: it was told of
// again after it had begun.
func (r *Reminder) Over(now time.Time) bool {
	if r.since.IsZero() {
		return false
	}
	r.since, r.ended = time.Time{}, now
	return r.here > 1
}

func pause(told int) time.Duration {
	pauses := [...]time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute}
	return pauses[min(told, len(pauses)-1)]
}
