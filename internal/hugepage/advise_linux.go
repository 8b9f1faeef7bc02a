package hugepage

import (
	"os"
	"syscall"
	"unsafe"
)

// advise asks for the pages that lie wholly in b; see madvise(2).
func advise(b []byte) {
	page := os.Getpagesize()
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	b = b[skip:]
	b = b[:len(b)&^(page-1)]
	_ = syscall.Madvise(b, syscall.MADV_HUGEPAGE) // a kernel may be built without them
}
