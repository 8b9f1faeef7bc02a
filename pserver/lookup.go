package pserver

import (
	"math/bits"

	"starfish/internal/kernel"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// ahead is how many keys are looked up side by side: so few that what is known of
// them stays in the first cache.
const ahead = 256

// find writes the row number of each key, None where there is no row. It
// returns the index of the first key that has no place on this shard, or -1.
// It changes nothing.
//
// A lookup costs two cache misses, one for the slot and one for the row, and
// what is found there decides how it goes on. A processor that guesses that
// wrongly throws away what it has begun of the lookups to come. So the keys are
// looked up in groups, each in steps: one loads all home slots, another the keys
// of all rows, both without any branch on the data and with their lines asked for
// before; the others find in the cache what they decide about.
func (t *hashed) find(keys []uint64, rows []uint32) int {
	var g group
	for i := 0; i < len(keys); i += ahead {
		n := min(ahead, len(keys)-i)
		if bad := g.find(t, keys[i:i+n], rows[i:i+n]); bad >= 0 {
			return i + bad
		}
	}
	return -1
}

// group is what is known of the keys of one group.
type group struct {
	hashes, homes, slots [ahead]uint32
}

func (g *group) find(t *hashed, keys []uint64, rows []uint32) int {
	if !g.home(t, keys) {
		for i, key := range keys {
			if !t.here(key, job.Mix(key)) {
				return i
			}
		}
	}
	g.resolve(t, rows)
	if t.differ(keys, rows) {
		t.correct(keys, rows)
	}
	return -1
}

// home loads the slots where the keys are if they are not displaced. It tells
// whether all keys belong here.
func (g *group) home(t *hashed, keys []uint64) bool {
	slots, mask := t.slots, uint64(len(t.slots)-1)
	shard, of, width := uint64(t.shard), uint64(t.of), uint64(t.Bits)
	if width == 0 {
		width = 64
	}
	keys = keys[:min(len(keys), ahead)]
	wrong := uint64(0)
	for i, key := range keys {
		hash := job.Mix(key)
		at, _ := bits.Mul64(hash, of)
		wrong |= at ^ shard | key>>width
		g.hashes[i], g.homes[i] = uint32(hash), uint32(hash&mask)
	}
	homes := g.homes[:len(keys)]
	for from, to := 0, 0; from < len(homes); from = to {
		to = kernel.Fetch(slots, homes, 0, from)
		for i, home := range homes[from:to] {
			g.slots[from+i] = slots[home]
		}
	}
	return wrong == 0
}

// resolve follows the keys to the slot that has their bits of the hash, or to
// an empty one.
func (g *group) resolve(t *hashed, rows []uint32) {
	slots, mask := t.slots, uint32(len(t.slots)-1)
	rows = rows[:min(len(rows), ahead)]
	for i := range rows {
		slot, hash := g.slots[i], g.hashes[i]
		for at := hash & mask; uint64((slot^hash)&^mask)*uint64(slot&mask) != 0; { // occupied, by others
			at = (at + 1) & mask
			slot = slots[at]
		}
		rows[i] = slot&mask - 1 // None for an empty slot
	}
}

// differ tells whether a row has not the key that its slot's half of the hash
// has promised.
func (t *hashed) differ(keys []uint64, rows []uint32) bool {
	if t.rows.N == 0 {
		return false
	}
	blocks, shift, stride, inBlock := t.rows.Blocks, t.rows.Shift&31, t.rows.Stride, uint32(1)<<t.rows.Shift-1
	rows = rows[:len(keys)]
	diff := uint64(0)
	for from, to := 0, 0; from < len(rows); from = to {
		to = t.rows.Fetch(rows, from)
		keys := keys[from:to]
		for i, row := range rows[from:to] {
			exists := uint64(0)
			if row != optimizer.None {
				exists = ^exists
			}
			row &= uint32(exists) // the first one's key is as good to load as any
			diff |= (optimizer.KeyOf(blocks[row>>shift][int(row&inBlock)*stride:]) ^ keys[i]) & exists
		}
	}
	return diff != 0
}

// correct looks up again the keys whose half of the hash is that of another key
// on their way, which is one in some 2^32 / S.
func (t *hashed) correct(keys []uint64, rows []uint32) {
	for i, row := range rows {
		if row != optimizer.None && t.rows.Key(row) != keys[i] {
			rows[i] = t.findSlowly(keys[i])
		}
	}
}

// recall searches again where there was no row. A row that was found stays where
// it is.
func (t *hashed) recall(keys []uint64, rows []uint32) {
	if len(t.again) < len(keys) {
		t.again = make([]uint32, len(keys)+len(keys)/4)
	}
	again, n := t.again[:len(keys)], uint32(0)
	rows = rows[:len(keys)]
	for i, row := range rows {
		again[n] = uint32(i)
		_, exists := bits.Sub32(row, optimizer.None, 0)
		n += 1 - exists
	}
	var g group
	var some [ahead]uint64
	var found [ahead]uint32
	for again = again[:n]; len(again) > 0; {
		n := min(ahead, len(again))
		for i, at := range again[:n] {
			some[i] = keys[at]
		}
		g.find(t, some[:n], found[:n])
		for i, at := range again[:n] {
			rows[at] = found[i]
		}
		again = again[n:]
	}
}
