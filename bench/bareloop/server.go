package bareloop

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"net"
	"syscall"
	"unsafe"
)

// bufferSize of each side of a connection.
const bufferSize = 1 << 18

// newTable maps n zeroed floats with huge pages; free unmaps them.
func newTable(n int) []float32 {
	const hugePages = 14 // MADV_HUGEPAGE
	b, err := syscall.Mmap(-1, 0, 4*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	_ = syscall.Madvise(b, hugePages) // without them it is slower, not wrong
	t := floats(b)
	clear(t) // the pages are touched before the clock starts
	return t
}

func free(t []float32) { _ = syscall.Munmap(raw(t)) }

// serve answers one worker until it hangs up. A request is, in words of four
// bytes: the number of pushed and of pulled keys, the pushed keys, their
// gradients, the pulled keys; the answer is the pulled weights.
func serve(c net.Conn, table []float32) {
	r := bufio.NewReaderSize(c, bufferSize)
	var head [8]byte
	var in, out []byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		pushed, pulled := int(binary.LittleEndian.Uint32(head[:])), int(binary.LittleEndian.Uint32(head[4:]))
		in = grow(in, 8*pushed+4*pulled)
		if _, err := io.ReadFull(r, in); err != nil {
			return
		}
		w := words(in)
		adagrad(table, w[:pushed], floats(in)[pushed:2*pushed])
		out = grow(out, 4*pulled)
		values := floats(out)
		for i, k := range w[2*pushed:] {
			values[i] = table[2*k]
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

func adagrad(table []float32, keys []uint32, grad []float32) {
	for i, k := range keys {
		e := table[2*k : 2*k+2 : 2*k+2]
		g := grad[i]
		e[1] += g * g
		e[0] -= 0.1 * g / float32(math.Sqrt(float64(e[1]+1e-6)))
	}
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		b = make([]byte, 2*n)
	}
	return b[:n]
}

// The views of one memory as bytes, words and floats.

func words(b []byte) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func raw[T uint32 | float32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
