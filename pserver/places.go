package pserver

import (
	"math/bits"
	"sort"

	"starfish/internal/hugepage"
	"starfish/job"
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
const perPlaces = 32

// newPlaces needs bits ≤ 32. It hashes every key, 1 to 2 ns each.
func newPlaces(width, shard, of int) *places {
	p := &places{words: make([]uint64, (1<<width+perPlaces-1)/perPlaces), bits: uint(width)}
	hugepage.Advise(p.words)
	// A key lies here if its hash is from first to first + last.
	first := firstHash(shard, of)
	last := firstHash(shard+1, of) - 1 - first
	key, n, keys := uint64(0), uint64(0), uint64(min(perPlaces, 1<<width))
	for i := range p.words {
		here := uint64(0)
		for j := range keys {
			_, beyond := bits.Sub64(last, job.Mix(key+j)-first, 0)
			here |= (1 - beyond) << j
		}
		p.words[i] = n<<32 | here
		n += uint64(bits.OnesCount32(uint32(here)))
		key += perPlaces
	}
	p.n = int(n)
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
	for i, key := range keys {
		w := words[key&mask/perPlaces]
		at := key % perPlaces
		wrong |= key&^mask | ^w>>at&1
		rows[i] = uint32(w>>32) + uint32(bits.OnesCount32(uint32(w)&(1<<at-1)))
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

// appendKeys appends the keys of those places from first on, n of them, whose bit
// is set in exists; bit 0 is that of first.
func (p *places) appendKeys(to []uint64, exists []uint64, first, n int) []uint64 {
	if n == 0 {
		return to
	}
	// The last word that begins at or before the first place.
	at := sort.Search(len(p.words), func(i int) bool { return int(p.words[i]>>32) > first }) - 1
	for ; at < len(p.words); at++ {
		place := int(p.words[at]>>32) - first
		if place >= n {
			break
		}
		key := uint64(at) * perPlaces
		for here := uint32(p.words[at]); here != 0; here &= here - 1 {
			if place >= 0 && place < n && exists[place>>6]>>(place&63)&1 != 0 {
				to = append(to, key+uint64(bits.TrailingZeros32(here)))
			}
			place++
		}
	}
	return to
}

// placesBytes is the memory of places.
func placesBytes(width int) int64 { return (1<<width + perPlaces - 1) / perPlaces * 8 }
