// Package hugepage asks the system for large pages under large arrays that are
// read at random places: there every access may miss the translation cache as
// well, and a page of 2 MiB takes the place of 512 in it.
package hugepage

import "unsafe"

// Size is that of a large page.
const Size = 2 << 20

// Advise asks for large pages under x, before it is first written. It is a wish:
// nothing happens where the system has no such pages, or x is smaller than one.
func Advise[T uint32 | uint64 | float32](x []T) {
	word := int(unsafe.Sizeof(*new(T)))
	if len(x)*word < Size {
		return
	}
	advise(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*word))
}
