package kernel

import "unsafe"

// group is how many cache lines are asked for at a time: about as many as a
// processor can have under way, so few that they are in the first cache still
// when they are read.
const group = 64

// Fetch is for loops over things that lie at random places, x[index[i]>>shift],
// in groups:
//
//	for from, to := 0, 0; from < len(index); from = to {
//		to = Fetch(x, index, shift, from)
//		… x[index[i]>>shift] of from ≤ i < to …
//	}
//
// It asks for the cache lines of the group that follows the one at from, and at
// the beginning for those of both, and returns where the group ends. So the lines
// of many are under way together, however much is done with each, and what reads
// them hardly waits. Nothing is read: an index beyond x does no harm. Of a thing
// that lies in several lines it is the first one.
func Fetch[T any, I uint32 | uint64](x []T, index []I, shift uint, from int) (to int) {
	first, to, end := span(len(index), from)
	if first == end || len(x) == 0 {
		return to
	}
	base, size := unsafe.Pointer(unsafe.SliceData(x)), unsafe.Sizeof(x[0])
	if at := unsafe.Pointer(&index[first]); unsafe.Sizeof(index[0]) == 8 {
		fetch64(base, (*uint64)(at), end-first, shift, size)
	} else {
		fetch32(base, (*uint32)(at), end-first, shift, size)
	}
	return to
}

// FetchRows is Fetch for rows of stride elements, which lie in blocks of 1<<shift
// each. A row beyond the blocks does no harm.
func FetchRows(blocks [][]float32, rows []uint32, shift uint, stride, from int) (to int) {
	first, to, end := span(len(rows), from)
	if first < end && len(blocks) > 0 {
		fetchRows(&blocks[0], len(blocks), &rows[first], end-first, shift, 4*stride)
	}
	return to
}

// span is the group at from, up to to, and what is to be asked for: first to end.
func span(n, from int) (first, to, end int) {
	to = min(from+group, n)
	first, end = to, min(to+group, n)
	if from == 0 {
		first = 0
	}
	return first, to, end
}
