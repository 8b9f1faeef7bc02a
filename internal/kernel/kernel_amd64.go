package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// What the processor and the system can do.
var (
	hasAVX2   = cpu.X86.HasAVX2 && cpu.X86.HasFMA
	hasAVX512 = hasAVX2 && cpu.X86.HasAVX512F
	// With products of 64 bits, and masks of 32.
	hasAVX512DQ = hasAVX512 && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW
)

// The updates return a bit for each lane that has met a weight or a word of
// state that is not finite. n is a multiple of lanes, and not 0.

//go:noescape
func sgdAVX2(w, grad *float32, n int, c *Constants) (bad int)

//go:noescape
func adagradAVX2(w, a, grad *float32, n int, c *Constants) (bad int)

//go:noescape
func adamAVX2(w, m, v, grad *float32, n int, c *Constants) (bad int)

//go:noescape
func finiteAVX2(x *float32, n int) (bad int)

// The tiles add to c, whose rows are stride elements apart. k > 0.

//go:noescape
func tile8x32(k int, a, b, c *float32, stride int)

//go:noescape
func tile6x16(k int, a, b, c *float32, stride int)

// The fetches ask for cache lines. n > 0.

//go:noescape
func fetch32(base unsafe.Pointer, index *uint32, n int, shift uint, size uintptr)

//go:noescape
func fetch64(base unsafe.Pointer, index *uint64, n int, shift uint, size uintptr)

//go:noescape
func fetchRows(blocks *[]float32, count int, rows *uint32, n int, shift uint, size int)

//go:noescape
func hashesIn512(dst *uint32, n int, key, first, last uint64)
