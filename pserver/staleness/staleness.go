// Package staleness counts how old values were when the gradient that was
// computed from them was applied: by how many updates of other trainers.
//
// Counts is a histogram whose size does not depend on what is counted: exact
// below 64, and to within 1 in 32 above.
package staleness

import (
	"encoding/json"
	"fmt"
	"math/bits"
)

// The buckets: exact ones, then as many for each further power of two, the last
// of which takes everything larger.
const (
	exact   = 64
	perOct  = exact / 2
	octaves = 14
	buckets = exact + octaves*perOct
)

// Counts is how often each staleness occurred. The zero value has counted
// nothing. It is not safe for concurrent use.
type Counts struct {
	n [buckets]uint64
}

// Add counts one update, of values that so many updates were missing from.
func (c *Counts) Add(missing int64) { c.n[bucket(missing)]++ }

// bucket is the place of a staleness.
func bucket(v int64) int {
	if v < exact {
		return int(max(v, 0))
	}
	octave := bits.Len64(uint64(v)) - bits.Len64(exact-1) // 1 for 64 to 127
	return min(exact+(octave-1)*perOct+int(v>>octave)-perOct, buckets-1)
}

// smallest is the smallest staleness of a bucket.
func smallest(i int) int64 {
	if i < exact {
		return int64(i)
	}
	octave := (i-exact)/perOct + 1
	return int64((i-exact)%perOct+perOct) << octave
}

// Merge adds what others have counted.
func (c *Counts) Merge(o *Counts) {
	for i, n := range o.n {
		c.n[i] += n
	}
}

// Total is how many updates were counted.
func (c *Counts) Total() (n uint64) {
	for _, k := range c.n {
		n += k
	}
	return n
}

// Quantile is the smallest staleness that a share q, above 0 and up to 1, of the
// updates did not exceed; ok is false where nothing was counted.
func (c *Counts) Quantile(q float64) (v int64, ok bool) {
	total := c.Total()
	below := uint64(0)
	for i, n := range c.n {
		if below += n; n > 0 && float64(below) >= q*float64(total) {
			return smallest(i), true
		}
	}
	return 0, false
}

// MarshalJSON writes the buckets that are not empty, as pairs of place and number.
func (c Counts) MarshalJSON() ([]byte, error) {
	pairs := [][2]uint64{}
	for i, n := range c.n {
		if n > 0 {
			pairs = append(pairs, [2]uint64{uint64(i), n})
		}
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads what MarshalJSON has written.
func (c *Counts) UnmarshalJSON(text []byte) error {
	var pairs [][2]uint64
	if err := json.Unmarshal(text, &pairs); err != nil {
		return fmt.Errorf("staleness: %w", err)
	}
	*c = Counts{}
	for _, p := range pairs {
		if p[0] >= buckets {
			return fmt.Errorf("staleness: there is no bucket %d", p[0])
		}
		c.n[p[0]] = p[1]
	}
	return nil
}
