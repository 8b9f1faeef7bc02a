package pserver

import "slices"

// recent remembers the rows that the last pulls of a table have found. The push
// that follows a pull on its way through a trainer has the same keys in the same
// order, and need not search for them again.
//
// The keys are remembered too, and compared one after the other, which touches no
// row. So it does not matter who pulled, or whether the push ever comes; and a row
// that was found is where it was, whatever else has happened to the table.
type recent struct {
	// open are the pulls that no push has followed yet, oldest first; spare is
	// memory of others. size is the room for keys in both.
	open, spare []*pulled
	size        int
}

// pulled is one pull: its keys, and the rows as find has told them.
type pulled struct {
	keys []uint64
	rows []uint32
}

// What is remembered of a table: pulls of at least so many keys, at most so many,
// and of so many keys together that a hundred trainers with some thousand keys in
// a batch find their own, in no more than 6 MiB.
const (
	leastKeys = 32
	maxPulls  = 256
	maxPulled = 1 << 19
)

// keep remembers a pull, unless it is too small to be worth it, or too large.
func (r *recent) keep(keys []uint64, rows []uint32) {
	n := len(keys)
	if n < leastKeys || n > maxPulled/2 {
		return
	}
	var p *pulled
	switch last := len(r.spare) - 1; {
	case last >= 0:
		p, r.spare = r.spare[last], r.spare[:last]
	case len(r.open) == maxPulls:
		p = r.oldest()
	default:
		p = &pulled{}
	}
	if cap(p.keys) < n {
		r.enlarge(p, n+n/4)
	}
	p.keys, p.rows = append(p.keys[:0], keys...), append(p.rows[:0], rows...)
	r.open = append(r.open, p)
}

func (r *recent) oldest() *pulled {
	p := r.open[0]
	r.open = slices.Delete(r.open, 0, 1)
	return p
}

// enlarge gives p room for n keys, and forgets others if that becomes too much.
func (r *recent) enlarge(p *pulled, n int) {
	r.size += n - cap(p.keys)
	for ; r.size > maxPulled && len(r.spare) > 0; r.spare = r.spare[1:] {
		r.size -= cap(r.spare[0].keys)
	}
	for r.size > maxPulled && len(r.open) > 0 {
		r.size -= cap(r.oldest().keys)
	}
	p.keys, p.rows = make([]uint64, n), make([]uint32, n)
}

// take writes the rows of the oldest pull of these keys, and forgets it. It tells
// whether there is one.
func (r *recent) take(keys []uint64, rows []uint32) bool {
	for i, p := range r.open {
		if slices.Equal(p.keys, keys) {
			copy(rows, p.rows)
			r.open = slices.Delete(r.open, i, i+1)
			r.spare = append(r.spare, p)
			return true
		}
	}
	return false
}
