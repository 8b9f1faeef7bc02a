package pserver

import (
	"slices"

	"starfish/internal/hugepage"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// hashed is the index of a table of any keys: a hash table with open addressing
// and linear probing. The key lies in the row, beside the weights, so a lookup
// costs two cache misses, one for the slot and one for the row. The search begins at the slot that the low bits of the key's
// hash (job.Mix) say. A slot is one word of 32 bits:
//
//	low bits, as many as number the slots   the row's number plus one; all 0: empty
//	the others                              those bits of the hash
//
// so that a slot of another key is almost always known from the slot alone: of
// n slots, by 1 in 2^32 / n. The key itself lies in the row. Between five
// sixteenths and three quarters of the slots are used: 5.3 to 12.8 bytes a row.
//
// From five eighths on the index grows: there are twice as many slots beside,
// and each row that is added makes some of their memory ready, and then takes
// some of the older rows there with it. The slots in use stay complete, so
// lookups know nothing of it, and when the new ones have all rows they take
// over. So no push waits until all rows have moved.
type hashed struct {
	*table
	slots []uint32
	// next are the new slots while the index grows, else nil. Those below ready
	// have been written once, and with it mapped by the system; they have the rows
	// below moved.
	next         []uint32
	ready, moved int
	// again is scratch of recall.
	again []uint32
}

const (
	firstSlots = 64
	// maxRows is how many rows an index takes: half of what numbers 32 bits.
	maxRows = 1 << 31
	// movedPerRow rows are moved for each that is added: six would be just in
	// time, from five eighths to three quarters. Before, readyPerRow slots are made
	// ready for each that is added.
	movedPerRow = 8
	readyPerRow = 256
	// page is a number of slots that are on one page of the system, at most.
	page = 4096 / 4
)

// slotsFor is how many slots an index for so many rows has.
func slotsFor(rows int) int {
	n := firstSlots
	for rows > n/8*5 {
		n *= 2
	}
	return n
}

func newHashed(t *table) *hashed {
	t.rows = optimizer.NewRows(t.Dim, t.opt.Words(t.Dim))
	return &hashed{table: t, slots: make([]uint32, firstSlots)}
}

// create makes the rows that find did not find.
func (t *hashed) create(keys []uint64, rows []uint32) {
	missing := 0
	for _, row := range rows {
		if row == optimizer.None {
			missing++
		}
	}
	if missing == 0 {
		return
	}
	t.reserve(missing)
	for i, row := range rows {
		if row == optimizer.None {
			rows[i] = t.add(keys[i])
		}
	}
}

func (*hashed) changing([]uint32) {}

// add returns the key's row, made if there is none. There must be room.
func (t *hashed) add(key uint64) uint32 {
	row := uint32(t.rows.N)
	if other := t.enter(t.slots, key, row); other != row {
		return other
	}
	_, words := t.rows.Add(key)
	t.init.Row(t.rows.Weights(words), key)
	t.opt.Init(t.rows.Weights(words), t.rows.State(words))
	return row
}

// enter puts a row of the key into the first free slot of its way. If the way
// leads to a row of that key before, it returns that one and changes nothing.
func (t *hashed) enter(slots []uint32, key uint64, row uint32) uint32 {
	mask, hash := uint32(len(slots)-1), uint32(job.Mix(key))
	at := hash & mask
	for ; slots[at] != 0; at = (at + 1) & mask {
		if (slots[at]^hash)&^mask != 0 {
			continue
		}
		if other := slots[at]&mask - 1; t.rows.Key(other) == key {
			return other
		}
	}
	slots[at] = hash&^mask | (row + 1)
	return row
}

// reserve makes room for more rows.
func (t *hashed) reserve(more int) {
	n := len(t.slots)
	switch rows := t.rows.N + more; {
	case rows > n/4*3: // too many to grow on the way
		if len(t.next) < slotsFor(rows) {
			t.grow(slotsFor(rows))
		}
		t.move(t.rows.N)
	case t.next == nil && rows > n/8*5:
		t.grow(2 * n)
	case t.next == nil:
	case t.ready < len(t.next):
		t.prepare(readyPerRow * more)
	default:
		t.move(movedPerRow * more)
	}
}

func (t *hashed) grow(slots int) {
	t.next, t.ready, t.moved = make([]uint32, slots), 0, 0
	hugepage.Advise(t.next)
}

// prepare writes to the pages of the next n new slots.
func (t *hashed) prepare(n int) {
	for end := min(t.ready+n, len(t.next)); t.ready < end; t.ready += page {
		t.next[t.ready] = 0
	}
}

// move takes up to n rows more into the new slots, which take over if these were
// the last.
func (t *hashed) move(n int) {
	for end := min(t.moved+n, t.rows.N); t.moved < end; t.moved++ {
		row := uint32(t.moved)
		t.enter(t.next, t.rows.Key(row), row)
	}
	if t.moved == t.rows.N {
		t.slots, t.next = t.next, nil
	}
}

func (*hashed) missing([]uint32) {}

func (t *hashed) keys() []uint64 {
	keys := make([]uint64, t.rows.N)
	for row := range keys {
		keys[row] = t.rows.Key(uint32(row))
	}
	slices.Sort(keys)
	return keys
}

func (*hashed) allocate() {}

// findSlowly is find for one key, which compares whole keys.
func (t *hashed) findSlowly(key uint64) uint32 {
	mask, hash := uint32(len(t.slots)-1), uint32(job.Mix(key))
	for at := hash & mask; t.slots[at] != 0; at = (at + 1) & mask {
		if row := t.slots[at]&mask - 1; t.rows.Key(row) == key {
			return row
		}
	}
	return optimizer.None
}
