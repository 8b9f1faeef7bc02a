package kernel

import (
	"math/bits"

	"starfish/job"
)

// HashesIn tells which of the 32 × len(dst) keys from key on have a hash (job.Mix)
// from first to first + last, modulo 2^64: a bit for each, in their order.
func HashesIn(dst []uint32, key, first, last uint64) {
	switch {
	case len(dst) == 0:
	case hasAVX512DQ:
		hashesIn512(&dst[0], len(dst), key, first, last)
	default:
		hashesIn(dst, key, first, last)
	}
}

func hashesIn(dst []uint32, key, first, last uint64) {
	for i := range dst {
		in := uint64(0)
		for j := range uint64(32) {
			_, beyond := bits.Sub64(last, job.Mix(key+j)-first, 0)
			in |= (1 - beyond) << j
		}
		dst[i] = uint32(in)
		key += 32
	}
}
