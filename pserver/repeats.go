package pserver

import (
	"math/bits"
	"slices"
)

// repeats finds out whether a row comes more than once in a push. It remembers
// nothing but its memory, and not that of a large push.
type repeats struct {
	seen []uint64
	some []uint32
}

// manyRepeats is how long a list is whose memory, some 20 bytes a number, is kept.
const manyRepeats = 1 << 16

// in tells whether a number comes more than once.
//
// A bit of a set stands for all numbers with the same lower bits. There are 64 to
// 128 bits for each number in the list, so that the set stays in the cache and
// almost all numbers find their bit unset. What does not is a suspect. If there
// are any, all numbers with a suspect's bit are put side by side.
func (r *repeats) in(list []uint32) bool {
	if len(list) > manyRepeats {
		defer func() { *r = repeats{} }()
	}
	if len(r.some) <= len(list) {
		r.some, r.seen = make([]uint32, len(list)+len(list)/4+1), nil
	}
	words := 1 << bits.Len(uint(len(list)))
	if len(r.seen) < words {
		r.seen = make([]uint64, words)
	}
	seen, some, mask, suspects := r.seen[:words], r.some, uint32(words-1), 0
	clear(seen)
	for _, x := range list {
		w := &seen[x>>6&mask]
		some[suspects] = x
		suspects += int(*w >> (x & 63) & 1)
		*w |= 1 << (x & 63)
	}
	if suspects == 0 {
		return false
	}
	clear(seen)
	for _, x := range some[:suspects] {
		seen[x>>6&mask] |= 1 << (x & 63)
	}
	n := 0
	for _, x := range list {
		some[n] = x
		n += int(seen[x>>6&mask] >> (x & 63) & 1)
	}
	some = some[:n]
	slices.Sort(some)
	for i := 1; i < n; i++ {
		if some[i] == some[i-1] {
			return true
		}
	}
	return false
}
