package ranges

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrSyntax: a text is not the canonical form of a set.
var ErrSyntax = errors.New("ranges: not a canonical set")

// String is the canonical text: intervals joined by commas, "" when empty.
func (s Set) String() string { return string(s.append(nil)) }

func (s Set) append(b []byte) []byte {
	for i, r := range s.r {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, r.Lo, 10)
		if r.Hi > r.Lo {
			b = append(b, '-')
			b = strconv.AppendInt(b, r.Hi, 10)
		}
	}
	return b
}

// Parse reads the canonical text. It refuses everything that String would not
// have written: blanks, signs, leading zeros, "3-3", and intervals that are out
// of order, overlap or touch.
func Parse(text string) (Set, error) {
	var s Set
	if text == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		r, err := parseRange(part)
		if err != nil {
			return Set{}, err
		}
		if n := len(s.r); n > 0 && r.Lo <= s.r[n-1].Hi+1 {
			return Set{}, fmt.Errorf("%w: %q does not come after %d with a gap", ErrSyntax, part, s.r[n-1].Hi)
		}
		s.r = append(s.r, r)
	}
	return s, nil
}

func parseRange(part string) (Range, error) {
	first, last, isRange := strings.Cut(part, "-")
	lo, err := parseValue(first)
	if err != nil {
		return Range{}, err
	}
	if !isRange {
		return Range{lo, lo}, nil
	}
	hi, err := parseValue(last)
	if err != nil {
		return Range{}, err
	}
	if hi <= lo {
		return Range{}, fmt.Errorf("%w: %q ends before it goes on", ErrSyntax, part)
	}
	return Range{lo, hi}, nil
}

func parseValue(text string) (int64, error) {
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 || v > MaxValue || strconv.FormatInt(v, 10) != text {
		return 0, fmt.Errorf("%w: %q is not a number of a set", ErrSyntax, clip(text))
	}
	return v, nil
}

// clip keeps error texts short whatever the input.
func clip(text string) string {
	if len(text) > 40 {
		return text[:40] + "…"
	}
	return text
}

// MarshalText writes the canonical text.
func (s Set) MarshalText() ([]byte, error) { return s.append([]byte{}), nil }

// UnmarshalText is Parse.
func (s *Set) UnmarshalText(text []byte) error {
	t, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = t
	return nil
}

// MarshalBinary writes the canonical text, so that gob can carry a Set.
func (s Set) MarshalBinary() ([]byte, error) { return s.MarshalText() }

// UnmarshalBinary is Parse.
func (s *Set) UnmarshalBinary(data []byte) error { return s.UnmarshalText(data) }
