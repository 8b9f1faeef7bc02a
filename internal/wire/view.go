//go:build amd64 || arm64 || 386 || arm || loong64 || mips64le || mipsle || ppc64le || riscv64 || wasm

package wire

import "unsafe"

// The views below reinterpret memory, which is right on little-endian
// machines alone; the build constraint says so.

// floats views 4-byte aligned b as float32; len(b) is a multiple of four.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// words views 8-byte aligned b as uint64; len(b) is a multiple of eight.
func words(b []byte) []uint64 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// Bytes views the words of x as they lie in memory.
func Bytes(x []float32) []byte { return bytesOf(x) }

// bytesOf views x as bytes.
func bytesOf[T uint64 | float32](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(x[0])))
}

// aligned tells whether b begins at a multiple of eight.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}
