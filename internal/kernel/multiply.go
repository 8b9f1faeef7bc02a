package kernel

import "fmt"

// Matrix is a matrix of rows that lie Stride ≥ Cols elements apart, or its
// transpose.
type Matrix struct {
	Rows, Cols int
	Stride     int
	Data       []float32
	// Transposed: an operand of a product is taken as its transpose. Rows, Cols
	// and Stride say how it lies in memory.
	Transposed bool
}

// Dense is the matrix of rows × cols elements that lie side by side.
func Dense(rows, cols int, data []float32) Matrix {
	return Matrix{Rows: rows, Cols: cols, Stride: cols, Data: data}
}

// T is the transpose, of the same memory.
func (m Matrix) T() Matrix {
	m.Transposed = !m.Transposed
	return m
}

// shape is that of the matrix as an operand.
func (m *Matrix) shape() (rows, cols int) {
	if m.Transposed {
		return m.Cols, m.Rows
	}
	return m.Rows, m.Cols
}

func (m *Matrix) check() {
	if m.Rows < 0 || m.Cols < 0 || m.Stride < m.Cols || m.Rows > 0 && m.Cols > 0 && len(m.Data) < (m.Rows-1)*m.Stride+m.Cols {
		panic(fmt.Sprintf("kernel: %d elements are no matrix of %d × %d with stride %d", len(m.Data), m.Rows, m.Cols, m.Stride))
	}
}

// depth is how many columns of a, and rows of b, are multiplied at one time: a
// panel of so many stays in the first cache. height is how many rows of a: so
// many panels of it stay in the second.
const (
	depth  = 256
	height = 512
)

// Multiplier multiplies matrices in one thread. Its zero value is ready for use;
// it keeps the memory for what it packs. It must not be used concurrently.
type Multiplier struct {
	a, b []float32
	edge []float32 // a tile at the edge of the product
}

// Mul adds α a·b to c. It panics if the shapes do not fit.
//
// It is the algorithm of Goto and van de Geijn (Anatomy of high-performance
// matrix multiplication, ACM TOMS 34, 2008): what is multiplied is copied first,
// in the order in which the innermost loop needs it.
func (x *Multiplier) Mul(c Matrix, alpha float32, a, b Matrix) {
	m, k := a.shape()
	k2, n := b.shape()
	if c.Transposed || k != k2 || m != c.Rows || n != c.Cols {
		panic(fmt.Sprintf("kernel: the product of %d × %d and %d × %d is no matrix of %d × %d", m, k, k2, n, c.Rows, c.Cols))
	}
	a.check()
	b.check()
	c.check()
	for from := 0; from < k; from += depth {
		to := min(from+depth, k)
		x.packB(&b, from, to)
		for top := 0; top < m; top += height {
			bottom := min(top+height, m)
			x.packA(&a, alpha, top, bottom, from, to)
			x.tiles(&c, top, bottom, to-from)
		}
	}
}

// tiles multiplies what is packed.
func (x *Multiplier) tiles(c *Matrix, top, bottom, k int) {
	mr, nr := shape.rows, shape.cols
	for col := 0; col < c.Cols; col += nr {
		b := x.b[col*k : (col+nr)*k]
		for row := top; row < bottom; row += mr {
			a := x.a[(row-top)*k : (row-top+mr)*k]
			at := row*c.Stride + col
			if row+mr <= bottom && col+nr <= c.Cols {
				tile(k, a, b, c.Data[at:at+(mr-1)*c.Stride+nr], c.Stride)
				continue
			}
			x.edge = sized(x.edge, mr*nr)
			clear(x.edge)
			tile(k, a, b, x.edge, nr)
			for i := range min(mr, bottom-row) {
				to := c.Data[at+i*c.Stride:]
				for j, v := range x.edge[i*nr : i*nr+min(nr, c.Cols-col)] {
					to[j] += v
				}
			}
		}
	}
}

// packA copies α times the rows [top, bottom) and columns [from, to) of a: panels
// of as many rows as a tile, column by column, the last one filled up by zeros.
func (x *Multiplier) packA(a *Matrix, alpha float32, top, bottom, from, to int) {
	mr, k := shape.rows, to-from
	x.a = sized(x.a, (bottom-top+mr-1)/mr*mr*k)
	for row := top; row < bottom; row += mr {
		panel, rows := x.a[(row-top)*k:(row-top+mr)*k], min(mr, bottom-row)
		if rows < mr {
			clear(panel)
		}
		if a.Transposed {
			for p := range k {
				for i, v := range a.Data[(from+p)*a.Stride+row:][:rows] {
					panel[p*mr+i] = alpha * v
				}
			}
			continue
		}
		for i := range rows {
			for p, v := range a.Data[(row+i)*a.Stride+from:][:k] {
				panel[p*mr+i] = alpha * v
			}
		}
	}
}

// packB copies the rows [from, to) of b: panels of as many columns as a tile, row
// by row, the last one filled up by zeros.
func (x *Multiplier) packB(b *Matrix, from, to int) {
	nr, k := shape.cols, to-from
	_, n := b.shape()
	x.b = sized(x.b, (n+nr-1)/nr*nr*k)
	for col := 0; col < n; col += nr {
		panel, cols := x.b[col*k:(col+nr)*k], min(nr, n-col)
		if cols < nr {
			clear(panel)
		}
		if b.Transposed {
			for j := range cols {
				for p, v := range b.Data[(col+j)*b.Stride+from:][:k] {
					panel[p*nr+j] = v
				}
			}
			continue
		}
		for p := range k {
			copy(panel[p*nr:][:cols], b.Data[(from+p)*b.Stride+col:])
		}
	}
}

// sized returns a slice of n elements, with s's memory if it is large enough.
func sized(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

// tileShape is the number of rows and columns that the innermost loop computes
// at one time.
type tileShape struct{ rows, cols int }

// The tiles of the three innermost loops.
var (
	wide  = tileShape{8, 32} // AVX-512
	avx2  = tileShape{6, 16}
	plain = tileShape{4, 4}
	shape = best()
)

func best() tileShape {
	switch {
	case hasAVX512:
		return wide
	case hasAVX2:
		return avx2
	}
	return plain
}

// tile adds the product of two panels of depth k > 0 to a tile of c.
func tile(k int, a, b, c []float32, stride int) {
	switch shape {
	case wide:
		tile8x32(k, &a[0], &b[0], &c[0], stride)
	case avx2:
		tile6x16(k, &a[0], &b[0], &c[0], stride)
	default:
		tile4x4(k, a, b, c, stride)
	}
}

// tile4x4 is the twin of the others.
func tile4x4(k int, a, b, c []float32, stride int) {
	for i := range 4 {
		var s0, s1, s2, s3 float32
		for p := range k {
			v, row := a[4*p+i], b[4*p:4*p+4:4*p+4]
			s0 += v * row[0]
			s1 += v * row[1]
			s2 += v * row[2]
			s3 += v * row[3]
		}
		to := c[i*stride:][:4:4]
		to[0] += s0
		to[1] += s1
		to[2] += s2
		to[3] += s3
	}
}
