// Package permute computes keyed, invertible permutations of 0 … n-1 without
// storing them: a pass over a hundred million chunks has its order at once, and
// any process can say which chunk has which rank.
//
// The construction is a balanced Feistel network over the smallest even number
// of bits that holds n (at least eight, so that small n are mixed too), and
// cycle walking: a result outside 0 … n-1 is encrypted again until it falls
// inside, which takes fewer than four steps on average (for n below 64, 256/n).
// See J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA
// 2002. It is not meant to keep secrets.
//
// The permutation is part of starfish's formats: it decides which records make
// a batch. Its values are pinned by tests and must never change.
package permute

import (
	"fmt"
	"math/bits"
)

const (
	rounds  = 6
	minHalf = 4
)

// P is a permutation. Its zero value is that of the empty range. It may be
// used by many goroutines at once.
type P struct {
	n    int64
	half uint
	mask uint64
	keys [rounds]uint64
}

// New returns the permutation of 0 … n-1 that the seeds select. Each seed, its
// place and the number of seeds matter. Panics if n is negative.
func New(n int64, seeds ...uint64) P {
	if n < 0 {
		panic(fmt.Sprintf("permute: negative size %d", n))
	}
	p := P{n: n, half: minHalf}
	if n > 1 {
		p.half = max(minHalf, uint(bits.Len64(uint64(n-1))+1)/2)
	}
	p.mask = 1<<p.half - 1
	key := mix(uint64(len(seeds)) + golden)
	for _, s := range seeds {
		key = mix(key ^ mix(s+golden))
	}
	for i := range p.keys {
		key += golden
		p.keys[i] = mix(key)
	}
	return p
}

// Len is n.
func (p *P) Len() int64 { return p.n }

// At is the element at place i.
func (p *P) At(i int64) int64 {
	p.check(i)
	if p.n == 1 {
		return 0
	}
	x := uint64(i)
	for {
		if x = p.encrypt(x); x < uint64(p.n) {
			return int64(x)
		}
	}
}

// Inverse is the place of element j: At(Inverse(j)) == j.
func (p *P) Inverse(j int64) int64 {
	p.check(j)
	if p.n == 1 {
		return 0
	}
	x := uint64(j)
	for {
		if x = p.decrypt(x); x < uint64(p.n) {
			return int64(x)
		}
	}
}

func (p *P) encrypt(x uint64) uint64 {
	l, r := x>>p.half, x&p.mask
	for _, k := range &p.keys {
		l, r = r, l^(mix(r^k)&p.mask)
	}
	return l<<p.half | r
}

func (p *P) decrypt(x uint64) uint64 {
	l, r := x>>p.half, x&p.mask
	for i := rounds - 1; i >= 0; i-- {
		l, r = r^(mix(l^p.keys[i])&p.mask), l
	}
	return l<<p.half | r
}

func (p *P) check(i int64) {
	if i < 0 || i >= p.n {
		panic(fmt.Sprintf("permute: %d is outside 0 … %d", i, p.n-1))
	}
}

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
