package reader

import (
	"math"
	"math/bits"
	"strconv"
	"unsafe"
)

// unsigned reads decimal digits. It returns where they end.
func unsigned(b []byte, i int) (v uint64, next int, why defect) {
	start := i
	for ; b[i]-'0' <= 9; i++ {
		hi, lo := bits.Mul64(v, 10)
		sum, carry := bits.Add64(lo, uint64(b[i]-'0'), 0)
		if hi != 0 || carry != 0 {
			return 0, i, keyRange
		}
		v = sum
	}
	if i > start {
		return v, i, 0
	}
	if b[i] == '-' && b[i+1]-'0' <= 9 {
		return 0, i, keyRange
	}
	return 0, i, keySyntax
}

// Powers of ten that float32 and float64 hold exactly.
const (
	exact32 = 10
	exact64 = 22
)

var pow32 = [exact32 + 1]float32{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10}

var pow64 = [exact64 + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10,
	1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// number reads a finite decimal number, correctly rounded to float32 as
// strconv does. It returns where the number ends; i if there is none.
func number(b []byte, i int) (float32, int) {
	start := i
	negative := b[i] == '-'
	if negative || b[i] == '+' {
		i++
	}
	var m uint64
	first := i
	for ; b[i]-'0' <= 9; i++ {
		m = m*10 + uint64(b[i]-'0')
	}
	digits, fraction := i-first, 0
	if b[i] == '.' {
		i++
		first = i
		for ; b[i]-'0' <= 9; i++ {
			m = m*10 + uint64(b[i]-'0')
		}
		fraction = i - first
		digits += fraction
	}
	if digits == 0 {
		return 0, start
	}
	if digits > 19 || b[i]|0x20 == 'e' { // m may have overflowed, or is not all
		return slowNumber(b, start)
	}
	v, ok := scale(m, fraction)
	if !ok {
		return slowNumber(b, start)
	}
	if negative {
		v = -v
	}
	return v, i
}

// decimal reads a cell that is a finite decimal number, correctly rounded, and
// nothing else. Bytes behind the cell must be readable.
func decimal(cell []byte) (float64, bool) {
	b := cell[:cap(cell)]
	i := 0
	negative := b[0] == '-'
	if negative || b[0] == '+' {
		i++
	}
	var m uint64
	first := i
	for ; b[i]-'0' <= 9; i++ {
		m = m*10 + uint64(b[i]-'0')
	}
	digits, fraction := i-first, 0
	if b[i] == '.' {
		i++
		first = i
		for ; b[i]-'0' <= 9; i++ {
			m = m*10 + uint64(b[i]-'0')
		}
		fraction = i - first
		digits += fraction
	}
	if i == len(cell) && 0 < digits && digits <= 19 && m <= 1<<53 && fraction <= exact64 {
		v := float64(m) / pow64[fraction]
		if negative {
			v = -v
		}
		return v, true
	}
	for _, c := range cell {
		if !isNumeric(c) {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(cell), len(cell)), 64)
	return v, err == nil
}

// scale is m / 10^fraction, correctly rounded, where that is easy (Clinger,
// "How to read floating point numbers accurately", 1990): one division of two
// exact numbers. In float64 the second rounding, to float32, is right too
// unless the quotient lies exactly between two float32.
func scale(m uint64, fraction int) (float32, bool) {
	if m <= 1<<24 && fraction <= exact32 {
		return float32(m) / pow32[fraction], true
	}
	if m > 1<<53 || fraction > exact64 {
		return 0, false
	}
	const half, mask = 1 << 28, 1<<29 - 1
	q := float64(m) / pow64[fraction]
	if math.Float64bits(q)&mask == half || q < 0x1p-126 {
		return 0, false
	}
	return float32(q), true
}

// slowNumber leaves the rounding to strconv.
func slowNumber(b []byte, i int) (float32, int) {
	end := i
	for isNumeric(b[end]) {
		end++
	}
	// The string is used only during the call and does not outlive b.
	v, err := strconv.ParseFloat(unsafe.String(&b[i], end-i), 32)
	if err != nil { // malformed, or beyond float32
		return 0, i
	}
	return float32(v), end
}

// isNumeric tells the characters of a decimal number; so "nan", "inf", hex
// digits and underscores, which strconv would take, are none.
func isNumeric(c byte) bool {
	return c-'0' <= 9 || c == '.' || c == '-' || c == '+' || c|0x20 == 'e'
}
