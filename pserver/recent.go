package pserver

import "slices"

// recent remembers the rows that the last pulls of a table have found. The push
// that follows a pull on its way through a trainer has the same keys in the same
// order, and need not search for them again.
//
// What is remembered is a guess: a pull is known by its number of keys, its
// first and its last one, and a push compares each row's key (table.recall). So
// it does not matter who pulled, whether the push ever comes, or what else has
// happened to the table.
type recent struct {
	// open are the pulls that no push has followed yet, oldest first; spare is
	// memory of others. size is the room for row numbers in both.
	open, spare []*pulled
	size        int
}

// pulled are the rows of one pull, None where there was none.
type pulled struct {
	first, last uint64
	rows        []uint32
}

// What is remembered of a table at most: so much that a hundred trainers with
// some thousand keys in a batch find their own, in no more than 4 MiB.
const (
	maxPulls  = 256
	maxPulled = 1 << 20
)

// room is where the rows of a pull are to be written, to be remembered. There
// is none (nil) for a pull that is too small to be worth it, or too large.
func (r *recent) room(keys []uint64) []uint32 {
	n := len(keys)
	if n < ahead || n > maxPulled/2 {
		return nil
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
	if cap(p.rows) < n {
		r.enlarge(p, n+n/4)
	}
	p.first, p.last, p.rows = keys[0], keys[n-1], p.rows[:n]
	r.open = append(r.open, p)
	return p.rows
}

func (r *recent) oldest() *pulled {
	p := r.open[0]
	r.open = slices.Delete(r.open, 0, 1)
	return p
}

// enlarge gives p room for n rows, and forgets others if that becomes too much.
func (r *recent) enlarge(p *pulled, n int) {
	r.size += n - cap(p.rows)
	for ; r.size > maxPulled && len(r.spare) > 0; r.spare = r.spare[1:] {
		r.size -= cap(r.spare[0].rows)
	}
	for r.size > maxPulled && len(r.open) > 0 {
		r.size -= cap(r.oldest().rows)
	}
	p.rows = make([]uint32, n)
}

// take returns the rows of the oldest pull of these keys, and forgets it; nil
// if it is not known. They are valid until the next call of room.
func (r *recent) take(keys []uint64) []uint32 {
	n := len(keys)
	for i, p := range r.open {
		if len(p.rows) == n && p.first == keys[0] && p.last == keys[n-1] {
			r.open = slices.Delete(r.open, i, i+1)
			r.spare = append(r.spare, p)
			return p.rows
		}
	}
	return nil
}
