// Package ranges keeps sets of non-negative integers as sorted, disjoint,
// non-adjacent closed intervals, with a short text form:
//
//	"0-811,815-817,900"
//
// Every operation costs by the number of intervals, never by the number of
// members: the set of a million consecutive positions is one interval. Queue
// records and shard ledgers are made of such sets.
//
// A Set is a value. Copying one is cheap and safe: a mutator (a method with a
// pointer receiver) replaces the receiver's intervals and never writes into
// memory that a copy may share. The zero Set is empty. The text form is
// canonical: equal sets have equal texts, and Parse refuses any other spelling,
// so that a record can be compared byte by byte. A Set is not safe for
// concurrent mutation.
package ranges

import (
	"fmt"
	"iter"
	"slices"
	"sort"
)

// MaxValue is the largest member a set can hold. It leaves room for the count
// of the members of any set in an int64.
const MaxValue = 1<<62 - 1

// Range is the closed interval [Lo, Hi].
type Range struct{ Lo, Hi int64 }

// Len is the number of members.
func (r Range) Len() int64 { return r.Hi - r.Lo + 1 }

// Set is a set of integers in [0, MaxValue].
type Set struct{ r []Range }

// Of is the set of all integers in [lo, hi]; empty if hi < lo.
func Of(lo, hi int64) Set {
	var s Set
	s.AddRange(lo, hi)
	return s
}

// From is the set of the given values.
func From(values ...int64) Set {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	var b builder
	for _, v := range sorted {
		check(v, v)
		b.add(Range{v, v})
	}
	return Set{b.out}
}

// Len is the number of members.
func (s Set) Len() int64 {
	var n int64
	for _, r := range s.r {
		n += r.Len()
	}
	return n
}

// IsEmpty tells whether the set has no members.
func (s Set) IsEmpty() bool { return len(s.r) == 0 }

// Spans is the number of intervals, which is what operations cost.
func (s Set) Spans() int { return len(s.r) }

// Ranges returns a copy of the intervals, ascending.
func (s Set) Ranges() []Range { return slices.Clone(s.r) }

// Min is the smallest member; false if there is none.
func (s Set) Min() (int64, bool) {
	if len(s.r) == 0 {
		return 0, false
	}
	return s.r[0].Lo, true
}

// Max is the largest member; false if there is none.
func (s Set) Max() (int64, bool) {
	if len(s.r) == 0 {
		return 0, false
	}
	return s.r[len(s.r)-1].Hi, true
}

// Contains tells whether x is a member.
func (s Set) Contains(x int64) bool {
	i := s.search(x)
	return i < len(s.r) && s.r[i].Lo <= x
}

// Next is the smallest member that is at least x; false if there is none.
func (s Set) Next(x int64) (int64, bool) {
	i := s.search(x)
	if i == len(s.r) {
		return 0, false
	}
	return max(x, s.r[i].Lo), true
}

// search returns the first interval that ends at x or above.
func (s Set) search(x int64) int {
	return sort.Search(len(s.r), func(i int) bool { return s.r[i].Hi >= x })
}

// All iterates over the members, ascending.
func (s Set) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for _, r := range s.r {
			for x := r.Lo; x <= r.Hi; x++ {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// Equal tells whether both sets have the same members.
func (s Set) Equal(t Set) bool { return slices.Equal(s.r, t.r) }

// Covers tells whether every member of t is one of s.
func (s Set) Covers(t Set) bool { return t.Minus(s).IsEmpty() }

// Add makes x a member.
func (s *Set) Add(x int64) { s.AddRange(x, x) }

// AddRange makes all of [lo, hi] members; nothing if hi < lo.
func (s *Set) AddRange(lo, hi int64) {
	if hi < lo {
		return
	}
	check(lo, hi)
	*s = s.Union(Set{[]Range{{lo, hi}}})
}

// Remove takes x out.
func (s *Set) Remove(x int64) { s.RemoveRange(x, x) }

// RemoveRange takes all of [lo, hi] out; nothing if hi < lo.
func (s *Set) RemoveRange(lo, hi int64) {
	if hi < lo {
		return
	}
	check(lo, hi)
	*s = s.Minus(Set{[]Range{{lo, hi}}})
}

// First is the set of the k smallest members, or of all if there are fewer.
func (s Set) First(k int64) Set {
	var b builder
	for _, r := range s.r {
		if k <= 0 {
			break
		}
		r.Hi = min(r.Hi, r.Lo+k-1)
		k -= r.Len()
		b.add(r)
	}
	return Set{b.out}
}

// TakeFirst removes the k smallest members and returns them.
func (s *Set) TakeFirst(k int64) Set {
	t := s.First(k)
	*s = s.Minus(t)
	return t
}

// Union is the set of the members of either.
func (s Set) Union(t Set) Set {
	if len(s.r) == 0 {
		return t
	}
	if len(t.r) == 0 {
		return s
	}
	b := builder{out: make([]Range, 0, len(s.r)+len(t.r))}
	i, j := 0, 0
	for i < len(s.r) || j < len(t.r) {
		if j == len(t.r) || i < len(s.r) && s.r[i].Lo <= t.r[j].Lo {
			b.add(s.r[i])
			i++
		} else {
			b.add(t.r[j])
			j++
		}
	}
	return Set{b.out}
}

// Intersect is the set of the members of both.
func (s Set) Intersect(t Set) Set {
	var out []Range
	i, j := 0, 0
	for i < len(s.r) && j < len(t.r) {
		a, b := s.r[i], t.r[j]
		if lo, hi := max(a.Lo, b.Lo), min(a.Hi, b.Hi); lo <= hi {
			out = append(out, Range{lo, hi})
		}
		if a.Hi < b.Hi {
			i++
		} else {
			j++
		}
	}
	return Set{out}
}

// Minus is the set of the members of s that are not members of t.
func (s Set) Minus(t Set) Set {
	if len(t.r) == 0 {
		return s
	}
	var out []Range
	j := 0
	for _, r := range s.r {
		for j < len(t.r) && t.r[j].Hi < r.Lo {
			j++
		}
		lo := r.Lo
		for k := j; k < len(t.r) && t.r[k].Lo <= r.Hi; k++ {
			if lo < t.r[k].Lo {
				out = append(out, Range{lo, t.r[k].Lo - 1})
			}
			lo = t.r[k].Hi + 1
		}
		if lo <= r.Hi {
			out = append(out, Range{lo, r.Hi})
		}
	}
	return Set{out}
}

// builder appends intervals that come in order of Lo and melts those that
// touch or overlap. It owns out, so it may write into it.
type builder struct{ out []Range }

func (b *builder) add(r Range) {
	if n := len(b.out); n > 0 && r.Lo <= b.out[n-1].Hi+1 {
		b.out[n-1].Hi = max(b.out[n-1].Hi, r.Hi)
		return
	}
	b.out = append(b.out, r)
}

func check(lo, hi int64) {
	if lo < 0 || hi > MaxValue {
		panic(fmt.Sprintf("ranges: [%d, %d] is outside [0, %d]", lo, hi, int64(MaxValue)))
	}
}
