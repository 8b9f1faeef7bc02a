package pserver

import (
	"math/bits"
	"sort"

	"starfish/internal/hugepage"
	"starfish/internal/kernel"
)

// places number the keys below 2^b that lie on one shard, in their order: the
// place of a key is how many of the shard's keys are below it (its rank). They
// follow from b, S and the shard, and never change.
//
// There is a word for each 32 keys:
//
//	low half    a bit for each key: it lies on this shard
//	high half   the rank of the first of them
//
// so one load says whether a key belongs here, and where it is.
type places struct {
	words []uint64
	bits  uint
	n     int // keys of the shard
}

// perPlaces is how many keys a word tells about.
const (
	perPlacesLog = 5
	perPlaces    = 1 << perPlacesLog
)

// newPlaces needs bits ≤ 32. It hashes every key.
func newPlaces(width, shard, of int) *places {
	p := &places{words: make([]uint64, (1<<width+perPlaces-1)/perPlaces), bits: uint(width)}
	hugepage.Advise(p.words)
	// A key lies here if its hash is from first to first + last.
	first := firstHash(shard, of)
	last := firstHash(shard+1, of) - 1 - first
	var some [256]uint32
	for i := range p.words {
		at := i % len(some)
		if at == 0 {
			kernel.HashesIn(some[:min(len(some), len(p.words)-i)], uint64(i)*perPlaces, first, last)
		}
		here := some[at]
		if width < perPlacesLog {
			here &= 1<<(1<<width) - 1
		}
		p.words[i] = uint64(p.n)<<32 | uint64(here)
		p.n += bits.OnesCount32(here)
	}
	return p
}

// firstHash is the smallest hash of a shard's keys: shard × 2^64 / of, rounded up,
// modulo 2^64.
func firstHash(shard, of int) uint64 {
	if shard == of {
		return 0
	}
	q, r := bits.Div64(uint64(shard), 0, uint64(of))
	if r != 0 {
		q++
	}
	return q
}

// find writes the place of each key. It returns the index of the first key that
// does not lie on the shard, or -1. There is no branch on the data, so that the
// misses of several keys overlap.
func (p *places) find(keys []uint64, rows []uint32) int {
	words, mask := p.words, uint64(1)<<(p.bits&63)-1
	rows = rows[:len(keys)]
	wrong := uint64(0)
	for from, to := 0, 0; from < len(keys); from = to {
		to = kernel.Fetch(words, keys, perPlacesLog, from)
		rows := rows[from:to]
		for i, key := range keys[from:to] {
			w := words[key&mask/perPlaces]
			at := key % perPlaces
			wrong |= key&^mask | ^w>>at&1
			rows[i] = uint32(w>>32) + uint32(bits.OnesCount32(uint32(w)&(1<<at-1)))
		}
	}
	if wrong == 0 {
		return -1
	}
	for i, key := range keys {
		if key&^mask != 0 || words[key/perPlaces]>>(key%perPlaces)&1 == 0 {
			return i
		}
	}
	return -1
}

// existing finds which of the n places from first on have a row: exists has a bit
// for each, bit 0 that of first. It writes their keys, and the places, counted
// from first, to the front of slices that have room for one more than there are,
// and returns how many there are.
func (p *places) existing(exists []uint32, first, n int, keys []uint64, rows []uint32) (found int) {
	if n == 0 {
		return 0
	}
	// The last word that begins at or before the first place.
	at := sort.Search(len(p.words), func(i int) bool { return int(p.words[i]>>32) > first }) - 1
	for ; at < len(p.words); at++ {
		here, place := uint32(p.words[at]), int(p.words[at]>>32)-first
		for ; place < 0 && here != 0; place++ {
			here &= here - 1
		}
		if place >= n {
			break
		}
		if here == 0 {
			continue
		}
		// A bit for each of the word's keys that has a row, in their order.
		e := exists[place/32] >> (place % 32)
		if place%32 != 0 && place/32+1 < len(exists) {
			e |= exists[place/32+1] << (32 - place%32)
		}
		if left := n - place; left < 32 {
			e &= 1<<left - 1
		}
		key := uint64(at) * perPlaces
		for ; e != 0 && here != 0; here &= here - 1 {
			keys[found], rows[found] = key+uint64(bits.TrailingZeros32(here)), uint32(place)
			found += int(e & 1)
			e >>= 1
			place++
		}
	}
	return found
}

// placesBytes is the memory of places.
func placesBytes(width int) int64 { return (1<<width + perPlaces - 1) / perPlaces * 8 }
