package etcdqueue

import (
	"slices"

	"starfish/internal/ranges"
)

// maxTxnLanes bounds the lanes of one transaction, so that conditions and
// operations stay below etcd's limit of 128 with room for guards.
const maxTxnLanes = 32

// pick is what a take wants of one lane: positions to take, and quarantined
// ones to move to Failed on the way.
type pick struct {
	lane   int
	at     ranges.Set
	failed ranges.Set
	// from is the holder that has `at` still, if it is to be overtaken.
	from Holder
}

// wish says what a take looks for.
type wish struct {
	count int64
	// peers is the number of takers.
	peers int
	// avoid are lanes that others were just seen to write; skip is a number of
	// ranks to leave to others. Both are 0 but after a conflict.
	avoid map[int]bool
	skip  int64
	// skips is how many quarantined chunks may be moved.
	skips int64
}

// share is how many chunks a taker may have at once of todo ones that are left:
// all that it wants if it is alone, else no more than half its fair part,
// rounded up.
func (w wish) share(todo int64) int64 {
	if w.peers <= 1 {
		return w.count
	}
	part := int64(2 * w.peers)
	return min(w.count, (todo+part-1)/part)
}

// plan chooses what to take from a pass; nil if nothing is Todo. The order in
// which one taker alone gets the chunks does not depend on how many it takes
// at a time.
func (p *passView) plan(w wish, failed quarantine) []pick {
	if p.todo == 0 {
		return nil
	}
	w.count, w.skips = w.share(p.todo), maxSkipped
	if p.shuffle {
		return p.planLanes(w, failed)
	}
	return p.planRanks(w, failed)
}

// planLanes goes through the lanes in the taker's own order and empties one
// after the other, first the one that it took from last. Lanes in which others
// work come last.
func (p *passView) planLanes(w wish, failed quarantine) []pick {
	var picks []pick
	want := w.count
	last := func(lane int) bool { return w.avoid[lane] || p.busy(lane) }
	for _, wanted := range []func(lane int) bool{
		func(lane int) bool { return lane == p.home && !last(lane) },
		func(lane int) bool { return lane != p.home && !last(lane) },
		last,
	} {
		for _, lane := range p.turn {
			if want == 0 || len(picks) == maxTxnLanes {
				return picks
			}
			if p.lanes[lane].lane.Todo.IsEmpty() || !wanted(lane) {
				continue
			}
			k := p.pickFrom(lane, want, w.skips, failed)
			if k.at.IsEmpty() && k.failed.IsEmpty() {
				continue
			}
			want -= k.at.Len()
			w.skips -= k.failed.Len()
			picks = append(picks, k)
		}
	}
	return picks
}

func othersIn(l Lane, incarnation string) bool {
	return slices.ContainsFunc(l.Pending, func(e Entry) bool { return e.Incarnation != incarnation })
}

// maxSkipped bounds the quarantined chunks that one take moves: for each of them
// its transaction has a condition.
const maxSkipped = 64

// quarantine has, for each quarantined chunk, the mod revision of its record, or
// unread.
type quarantine map[int64]int64

// unread stands for the revision of a record that was not read yet. No record has
// it, so a take that relies on it fails, and brings the record.
const unread = -1

// has tells whether a chunk is in it.
func (q quarantine) has(chunk int64) bool {
	_, ok := q[chunk]
	return ok
}

// pickFrom chooses the first want positions of a lane, and up to skips
// quarantined ones among them.
func (p *passView) pickFrom(lane int, want, skips int64, failed quarantine) pick {
	todo := p.lanes[lane].lane.Todo
	if len(failed) == 0 {
		return pick{lane: lane, at: todo.First(want)}
	}
	k := pick{lane: lane}
	for position := range todo.All() {
		if k.at.Len() == want {
			break
		}
		if !failed.has(p.task(lane, position, 0).Chunk) {
			k.at.Add(position)
			continue
		}
		if k.failed.Len() == skips {
			break
		}
		k.failed.Add(position)
	}
	return k
}

// planRanks takes the lowest ranks, whichever lanes they lie in, so that one
// taker alone goes through the data in order. After a conflict a few are left
// out, but never so many that a chunk waits for more than a row of others.
func (p *passView) planRanks(w wish, failed quarantine) []pick {
	rows := p.rows()
	skip := min(w.skip, int64(len(p.lanes))-1, p.todo-1)
	byLane := make(map[int]*pick)
	var order []int
	for want := w.count; want > 0; {
		lane, position, ok := rows.next()
		if !ok {
			break
		}
		if skip > 0 {
			skip--
			continue
		}
		quarantined := failed.has(p.task(lane, position, 0).Chunk)
		if quarantined && w.skips == 0 {
			break
		}
		k := byLane[lane]
		if k == nil {
			if len(order) == maxTxnLanes {
				break
			}
			k = &pick{lane: lane}
			byLane[lane] = k
			order = append(order, lane)
		}
		if quarantined {
			w.skips--
			k.failed.Add(position)
			continue
		}
		k.at.Add(position)
		want--
	}
	picks := make([]pick, len(order))
	for i, lane := range order {
		picks[i] = *byLane[lane]
	}
	return picks
}

// rows walks over the Todo positions of all lanes in the order of their ranks.
type rows struct {
	lanes    []slot
	position int64
	lane     int
	ok       bool
}

func (p *passView) rows() *rows {
	r := &rows{lanes: p.lanes}
	r.seek(0)
	return r
}

// seek goes to the first position, from `from` on, that is Todo in any lane.
func (r *rows) seek(from int64) {
	r.ok = false
	for _, s := range r.lanes {
		if x, ok := s.lane.Todo.Next(from); ok && (!r.ok || x < r.position) {
			r.position, r.ok = x, true
		}
	}
	r.lane = 0
}

func (r *rows) next() (lane int, position int64, ok bool) {
	for r.ok {
		for r.lane < len(r.lanes) {
			lane := r.lane
			r.lane++
			if r.lanes[lane].lane.Todo.Contains(r.position) {
				return lane, r.position, true
			}
		}
		r.seek(r.position + 1)
	}
	return 0, 0, false
}
