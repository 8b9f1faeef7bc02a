package client

import (
	"math/bits"

	"starfish/job"
)

// distinct finds the distinct keys of a batch and groups them by shard. Batches
// of one layout share a few of them, so that the memory stays in the cache.
type distinct struct {
	// n keys were found: found[1] to found[n], in order of appearance. found[n+1]
	// is there to be overwritten.
	n     int
	found []uint64
	// shard of each found key, and its place once they are grouped by shard.
	shard, place []uint32
	// slots is a hash table with linear probing, at most half full. A slot holds a
	// tag and, in its lower half, the key's index in found; 0 is empty.
	slots []uint64
}

const (
	smallestIndex = 1024
	// spreading is 2^64 divided by the golden ratio: the upper bits of its product
	// with a key are the hash (Knuth, The Art of Computer Programming 3, section 6.4).
	spreading = 0x9e3779b97f4a7c15
	lower     = 1<<32 - 1
)

// find finds the distinct keys, and sets places[i] to where key i is in found.
// wide says whether keys of 2^32 and more are to be expected; find returns
// whether there were any.
//
// Whether a key is new cannot be predicted, and a branch on it would cost more
// than all else. So there is none: each key is written where a new one would
// be, the count goes on by one or by nothing, and the condition of the rare
// branch, a slot of another key, is calculated.
func (x *distinct) find(keys []uint64, places []uint32, wide bool) bool {
	x.found = sized(x.found, len(keys)+2)
	places = places[:len(keys)]
	if !wide && x.findNarrow(keys, places) {
		return false
	}
	return x.findWide(keys, places)
}

// findNarrow is find for keys below 2^32: each is its own tag. It returns false,
// and has found nothing, if one is not.
func (x *distinct) findNarrow(keys []uint64, places []uint32) bool {
	clear(x.slots)
	slots, found, n, all := x.slots, x.found, uint64(0), uint64(0)
	shift, mask, limit := shiftOf(slots), uint64(len(slots)-1), uint64(len(slots)/2)
	for i, key := range keys {
		all |= key
		at := key * spreading >> (shift & 63)
		slot := slots[at]
		index := slot & lower
		for (slot>>32^key)*index != 0 { // another key's
			at = (at + 1) & mask
			slot = slots[at]
			index = slot & lower
		}
		occupied := uint64(-int64(index) >> 63) // all ones or nothing
		index |= (n + 1) &^ occupied
		slots[at] = key<<32 | index
		places[i] = uint32(index)
		found[n+1] = key
		if n += 1 + occupied; n > limit { // occupied is 0 or -1
			x.n = int(n)
			slots = x.grow(true)
			shift, mask, limit = shiftOf(slots), uint64(len(slots)-1), uint64(len(slots)/2)
		}
	}
	x.n = int(n)
	return all <= lower
}

// findWide is find for all keys: the tag is the upper half of the hash, and what
// has the same one is compared.
func (x *distinct) findWide(keys []uint64, places []uint32) (wide bool) {
	clear(x.slots)
	slots, found, n, all := x.slots, x.found, uint64(0), uint64(0)
	mask, limit := uint64(len(slots)-1), uint64(len(slots)/2)
	for i, key := range keys {
		all |= key
		h := job.Mix(key)
		at := h & mask
		slot := slots[at]
		index := slot & lower
		for (slot^h)>>32*index != 0 { // occupied, by another half
			at = (at + 1) & mask
			slot = slots[at]
			index = slot & lower
		}
		occupied := uint64(-int64(index) >> 63)
		if (found[index]^key)&occupied != 0 {
			at = x.findSlowly(key, h)
			index = slots[at] & lower
			occupied = uint64(-int64(index) >> 63)
		}
		index |= (n + 1) &^ occupied
		slots[at] = h>>32<<32 | index
		places[i] = uint32(index)
		found[n+1] = key
		if n += 1 + occupied; n > limit {
			x.n = int(n)
			slots = x.grow(false)
			mask, limit = uint64(len(slots)-1), uint64(len(slots)/2)
		}
	}
	x.n = int(n)
	return all > lower
}

// findSlowly returns the slot of a key on whose way another key has the same
// upper half of the hash, or the empty one where it belongs.
func (x *distinct) findSlowly(key, h uint64) uint64 {
	mask := uint64(len(x.slots) - 1)
	at := h & mask
	for x.slots[at] != 0 && x.found[uint32(x.slots[at])] != key {
		at = (at + 1) & mask
	}
	return at
}

// grow makes the hash table twice as large; found knows all its keys.
func (x *distinct) grow(narrow bool) []uint64 {
	x.slots = make([]uint64, 2*len(x.slots))
	shift, mask := shiftOf(x.slots), uint64(len(x.slots)-1)
	for i, key := range x.found[1 : x.n+1] {
		at, tag := key*spreading>>(shift&63), key<<32
		if !narrow {
			h := job.Mix(key)
			at, tag = h&mask, h>>32<<32
		}
		for x.slots[at] != 0 {
			at = (at + 1) & mask
		}
		x.slots[at] = tag | uint64(i+1)
	}
	return x.slots
}

// shiftOf is how far a hash is shifted to be a place in slots.
func shiftOf(slots []uint64) int { return 64 - bits.TrailingZeros(uint(len(slots))) }

// group puts the keys shard by shard, and rewrites the table's slots by that.
func (x *distinct) group(t *Table, starts []uint32) {
	x.count(starts)
	x.place = sized(x.place, x.n+1)
	t.Keys = sized(t.Keys, x.n)
	grouped, place := t.Keys, x.place[1:]
	found, shard := x.found[1:][:len(place)], x.shard[:len(place)]
	for i, s := range shard {
		p := starts[s]
		starts[s]++
		place[i] = p
		grouped[p] = found[i]
	}
	// Each start has moved on to the next shard's; move them back.
	copy(starts[1:], starts)
	starts[0] = 0
	place = x.place
	for i, p := range t.Slots {
		t.Slots[i] = place[p]
	}
}

// count finds the shards of the keys, and where each shard's begin.
func (x *distinct) count(starts []uint32) {
	found := x.found[1 : x.n+1]
	x.shard = sized(x.shard, x.n)
	shard, shards := x.shard[:len(found)], len(starts)-1
	clear(starts)
	for i, key := range found {
		s := job.ShardOf(key, shards)
		shard[i] = uint32(s)
		starts[s]++
	}
	sum := uint32(0)
	for s, n := range starts {
		starts[s] = sum
		sum += n
	}
}
