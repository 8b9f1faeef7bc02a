package client

import (
	"math/bits"

	"starfish/job"
)

// distinct finds the distinct keys of a batch and groups them by shard. Batches
// of one layout share a few of them, so that the memory stays in the cache.
type distinct struct {
	// n keys were found: found[1] to found[n], in order of appearance, which lie
	// on shard[1] to shard[n]. found[n+1] is there to be overwritten.
	n     int
	found []uint64
	shard []uint32
	// place of each found key once they are grouped by shard.
	place []uint32
	// slots is a hash table with linear probing, at most a quarter full. A slot
	// holds the upper half of the key's hash and its index in found; 0 is empty.
	slots []uint64
}

const smallestIndex = 1024

// find finds the distinct keys, and sets places[i] to where key i is in found.
//
// Whether a key is new cannot be predicted, and a branch on it would cost more
// than all else. So there is none: each key is written where a new one would
// be, the count goes on by one or by nothing, and the conditions of the two
// rare branches, a slot of another key and a key with the same half of a hash,
// are calculated.
func (x *distinct) find(keys []uint64, places []uint32, shards int) {
	clear(x.slots)
	x.found, x.shard = sized(x.found, len(keys)+2), sized(x.shard, len(keys)+2)
	slots, found, shard := x.slots, x.found, x.shard
	mask, limit := uint64(len(slots)-1), uint64(len(slots)/4)
	places = places[:len(keys)]
	n := uint64(0)
	for i, key := range keys {
		h := job.Mix(key)
		at := h & mask
		slot := slots[at]
		index := slot & (1<<32 - 1)
		for (slot^h)>>32*index != 0 { // occupied, by another half
			at = (at + 1) & mask
			slot = slots[at]
			index = slot & (1<<32 - 1)
		}
		occupied := uint64(-int64(index) >> 63) // all ones or nothing
		if (found[index]^key)&occupied != 0 {
			at = x.findSlowly(key, h)
			index = slots[at] & (1<<32 - 1)
			occupied = uint64(-int64(index) >> 63)
		}
		index |= (n + 1) &^ occupied
		slots[at] = h>>32<<32 | index
		places[i] = uint32(index)
		found[n+1] = key
		of, _ := bits.Mul64(h, uint64(shards)) // job.ShardOf without mixing again
		shard[n+1] = uint32(of)
		if n += 1 + occupied; n > limit { // occupied is 0 or -1
			x.n = int(n)
			x.grow()
			slots = x.slots
			mask, limit = uint64(len(slots)-1), uint64(len(slots)/4)
		}
	}
	x.n = int(n)
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

// group puts the keys shard by shard, and rewrites the table's slots by that.
func (x *distinct) group(t *Table, starts []uint32) {
	found, shard := x.found[1:x.n+1], x.shard[1:x.n+1]
	clear(starts)
	for _, s := range shard {
		starts[s]++
	}
	sum := uint32(0)
	for s, n := range starts {
		starts[s] = sum
		sum += n
	}
	x.place = sized(x.place, x.n+1)
	t.Keys = sized(t.Keys, x.n)
	place, grouped := x.place[1:], t.Keys
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

// grow makes the hash table four times as large; found knows all its keys.
func (x *distinct) grow() {
	x.slots = make([]uint64, 4*len(x.slots))
	mask := uint64(len(x.slots) - 1)
	for i, key := range x.found[1 : x.n+1] {
		h := job.Mix(key)
		at := h & mask
		for x.slots[at] != 0 {
			at = (at + 1) & mask
		}
		x.slots[at] = h>>32<<32 | uint64(i+1)
	}
}
