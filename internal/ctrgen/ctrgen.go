// Package ctrgen makes a seeded, Criteo-like click log with a known best loss.
//
// A record has 13 counts and 26 categories, of cardinalities and skew as commonly
// reported for the public Criteo set. Its click is drawn from a logistic model
// with a linear part over all fields and a pairwise part over ten of them, whose
// coefficients are hashes of the seed, so that the Bayes-optimal loss of any
// range of records is known exactly.
//
// Record i depends only on (seed, i): any range of records can be made on any machine,
// in any order, and a train and a test set are two ranges.
package ctrgen

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// The columns of a record.
const (
	Counts     = 13
	Categories = 26
	Fields     = Counts + Categories
)

// latent is the rank of the pairwise part.
const latent = 4

// Config is what a data set is made from. Use Default and change what differs.
type Config struct {
	Seed   uint64
	Bits   int     // feature ids lie in [1, 2^Bits)
	Zipf   float64 // exponent of the categories' skew
	LinSD  float64 // standard deviation of the linear part of the logit
	PairSD float64 // standard deviation of the pairwise part
	Bias   float64
}

// Default is the data set of the published figures.
func Default() Config {
	return Config{Seed: 1, Bits: 24, Zipf: 1.05, LinSD: 1.5, PairSD: 0.8, Bias: -1.55}
}

// Validate reports an impossible value.
func (c Config) Validate() error {
	if c.Bits < 4 || c.Bits > 32 {
		return fmt.Errorf("ctrgen: %d bits are not between 4 and 32", c.Bits)
	}
	if c.Zipf <= 1 {
		return fmt.Errorf("ctrgen: the Zipf exponent %v is not above 1", c.Zipf)
	}
	return nil
}

// columns holds what is known of the columns.
type columns struct {
	cardinality [Categories]uint64 // of the categories
	mean, sd    [Counts]float64    // of ln(count+1)
	missing     [Counts]float64    // share of counts that are missing
	paired      [Fields]bool       // fields of the pairwise part: small and middle-sized ones
	pairs       int                // how many those are
	pairedList  [10]int            // which

}

func criteoLike() columns {
	c := columns{
		cardinality: [Categories]uint64{1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
			27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572},
		mean:    [Counts]float64{1.0, 1.6, 1.9, 1.7, 7.5, 3.6, 2.1, 2.2, 3.9, 0.4, 1.1, 0.3, 1.8},
		sd:      [Counts]float64{1.1, 1.8, 1.2, 0.9, 2.2, 1.7, 1.4, 0.9, 1.4, 0.4, 0.9, 0.6, 1.0},
		missing: [Counts]float64{0.45, 0, 0.22, 0.22, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.77, 0.22},
		pairedList: [10]int{1, 5, Counts + 0, Counts + 1, Counts + 4, Counts + 5, Counts + 7, Counts + 13, Counts + 16,
			Counts + 22},
	}
	c.pairs = len(c.pairedList)
	for _, f := range c.pairedList {
		c.paired[f] = true
	}
	return c
}

// Record is one record.
type Record struct {
	Label  int
	Logit  float64 // the true logit; the label is drawn from it
	Linear float64 // its linear part, bias included

	counts     [Counts]int64 // -1: missing
	categories [Categories]uint32
	ids        [Fields]uint32 // feature id by field
	sorted     [Fields]uint32 // the distinct ids, ascending
	distinct   int
}

// Keys is the number of distinct features of the record.
func (r *Record) Keys() int { return r.distinct }

// Maker makes records. It is not safe for concurrent use; several makers of one
// config make the same records.
type Maker struct {
	cfg     Config
	col     columns
	pcg     *rand.PCG
	rnd     *rand.Rand
	zipf    [Categories]*rand.Zipf
	fieldSD [Fields]float64
}

// New makes a Maker.
func New(c Config) (*Maker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Maker{cfg: c, col: criteoLike(), pcg: rand.NewPCG(1, 1)}
	m.rnd = rand.New(m.pcg)
	var squares float64
	for f := range m.fieldSD {
		w := 0.3 + float64(hash3(c.Seed, 77, uint64(f))%1000)/1000 // unequal fields
		if f >= Counts && m.col.cardinality[f-Counts] > 1000000 {
			w *= 0.6 // values mostly unseen: less weight there
		}
		m.fieldSD[f] = w
		squares += w * w
	}
	for f := range m.fieldSD {
		m.fieldSD[f] *= c.LinSD / math.Sqrt(squares)
	}
	for i, n := range m.col.cardinality {
		s := c.Zipf
		if n < 100 {
			s = 1.01
		}
		m.zipf[i] = rand.NewZipf(m.rnd, s, 2, n-1)
	}
	return m, nil
}

// Make makes record i. The order of the draws is part of the data set.
func (m *Maker) Make(i uint64, r *Record) {
	c := &m.cfg
	m.pcg.Seed(mix(c.Seed^0xabcdef), mix(i+1)^c.Seed*0x9e3779b97f4a7c15)
	mask := uint64(1)<<c.Bits - 1
	linear := 0.0
	var sum [latent]float64
	var squares float64
	for f := range Fields {
		v := m.draw(f, r)
		h := hash3(c.Seed, uint64(f), v)
		linear += m.fieldSD[f] * gauss(h)
		if m.col.paired[f] {
			for k := range sum {
				l := gauss(hash3(h, 5, uint64(k)))
				sum[k] += l
				squares += l * l
			}
		}
		r.ids[f] = uint32(max(hash3(4242, uint64(f), v)&mask, 1))
	}
	pair := 0.0
	for _, s := range sum {
		pair += s * s
	}
	n := float64(m.col.pairs)
	pair = (pair - squares) / 2 * (c.PairSD / math.Sqrt(n*(n-1)/2*latent))
	r.Linear = c.Bias + linear
	r.Logit = c.Bias + linear + pair
	r.Label = 0
	if m.rnd.Float64() < 1/(1+math.Exp(-r.Logit)) {
		r.Label = 1
	}
	r.sortIDs()
}

// draw draws the value of field f.
func (m *Maker) draw(f int, r *Record) uint64 {
	if f >= Counts {
		rank := m.zipf[f-Counts].Uint64()
		v := uint32(hash3(99, uint64(f), rank))
		r.categories[f-Counts] = v
		return uint64(v)
	}
	x := int64(-1)
	if m.rnd.Float64() >= m.col.missing[f] {
		x = max(int64(math.Exp(m.col.mean[f]+m.col.sd[f]*m.rnd.NormFloat64()))-1, 0)
	}
	r.counts[f] = x
	return bucket(x)
}

// sortIDs sorts the 39 ids by insertion and drops repeated ones.
func (r *Record) sortIDs() {
	r.sorted = r.ids
	s := r.sorted[:]
	for a := 1; a < len(s); a++ {
		x, b := s[a], a-1
		for b >= 0 && s[b] > x {
			s[b+1] = s[b]
			b--
		}
		s[b+1] = x
	}
	r.distinct = 1
	for a := 1; a < len(s); a++ {
		if s[a] != s[r.distinct-1] {
			s[r.distinct] = s[a]
			r.distinct++
		}
	}
}

// bucket makes a category of a count: itself up to 2, then by the square of
// its logarithm.
func bucket(x int64) uint64 {
	switch {
	case x < 0:
		return 1 << 20
	case x <= 2:
		return uint64(x)
	}
	l := math.Log(float64(x))
	return 3 + uint64(l*l)
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	return x
}

func hash3(a, b, c uint64) uint64 {
	return mix(mix(mix(a+0x9e3779b97f4a7c15)^(b+0x632be59bd9b4e019)*0x9e3779b97f4a7c15) + c*0xd1342543de82ef95)
}

// gauss maps 64 hash bits to an approximate unit normal: the sum of four
// uniforms.
func gauss(h uint64) float64 {
	s := float64(h&0xffff) + float64(h>>16&0xffff) + float64(h>>32&0xffff) + float64(h>>48)
	return (s/65536 - 2) * 1.7320508
}

// LogLoss is the cross entropy of a label under a logit.
func LogLoss(label int, logit float64) float64 {
	if label == 0 {
		logit = -logit
	}
	if logit > 0 {
		return math.Log1p(math.Exp(-logit))
	}
	return -logit + math.Log1p(math.Exp(logit))
}
