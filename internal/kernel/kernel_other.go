//go:build !amd64

package kernel

import "unsafe"

// There is no assembly for this processor: the twins do everything.
const (
	hasAVX2     = false
	hasAVX512   = false
	hasAVX512DQ = false
)

func sgdAVX2(_, _ *float32, _ int, _ *Constants) int                 { panic("kernel: no vector unit") }
func adagradAVX2(_, _, _ *float32, _ int, _ *Constants) int          { panic("kernel: no vector unit") }
func adamAVX2(_, _, _, _ *float32, _ int, _ *Constants) int          { panic("kernel: no vector unit") }
func finiteAVX2(_ *float32, _ int) int                               { panic("kernel: no vector unit") }
func hashesIn512(_ *uint32, _ int, _, _, _ uint64)                   { panic("kernel: no vector unit") }
func tile8x32(_ int, _, _, _ *float32, _ int)                        { panic("kernel: no vector unit") }
func tile6x16(_ int, _, _, _ *float32, _ int)                        { panic("kernel: no vector unit") }
func fetch32(_ unsafe.Pointer, _ *uint32, _ int, _ uint, _ uintptr)  {}
func fetch64(_ unsafe.Pointer, _ *uint64, _ int, _ uint, _ uintptr)  {}
func fetchRows(_ *[]float32, _ int, _ *uint32, _ int, _ uint, _ int) {}
