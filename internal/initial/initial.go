// Package initial computes the values with which parameters begin. They follow
// from the job's spec alone, so pservers need not agree on them, and whoever
// reads an exported model knows the rows that were never pushed.
package initial

import (
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"

	"starfish/job"
)

// golden is the increment of splitmix64, 2^64 divided by the golden ratio.
const golden = 0x9e3779b97f4a7c15

// Values computes initial values. A value depends on the job's seed, the
// parameter's name and the place only: the element's index in a dense
// parameter, the key and the position in a row of a sparse one. So no shard
// asks another one, and nothing changes with the number of shards.
//
// A stream is a splitmix64 sequence that can be entered anywhere: its word i is
// Mix(stream + (i+1) × golden). A dense parameter is one stream; each row of a
// sparse one is a stream of its own. This is part of the formats.
type Values struct {
	kind   string
	a, b   float64
	stream uint64
}

// New checks the settings. name is the parameter's.
func New(in job.Initializer, seed uint64, name string) (Values, error) {
	r := Values{kind: in.Kind, stream: job.Mix(seed ^ xxhash.Sum64String(name))}
	switch in.Kind {
	case job.InitZeros, "":
		r.kind = job.InitZeros
	case job.InitConstant:
		r.a = in.Value
	case job.InitUniform:
		r.a, r.b = in.Min, in.Max
		if in.Min > in.Max {
			return r, fmt.Errorf("initial values between %v and %v", in.Min, in.Max)
		}
	case job.InitNormal:
		r.a, r.b = in.Mean, in.Stddev
		if in.Stddev < 0 {
			return r, fmt.Errorf("initial values with a deviation of %v", in.Stddev)
		}
	default:
		return r, fmt.Errorf("unknown initializer %q", in.Kind)
	}
	for _, x := range []float64{r.a, r.b} {
		if y := float32(x); y-y != 0 {
			return r, fmt.Errorf("initializer setting %v is no float32", x)
		}
	}
	return r, nil
}

// Elements fills dst with a dense parameter's values from an element on.
func (in *Values) Elements(dst []float32, first uint64) { in.fill(dst, in.stream, first) }

// Row fills dst with the row of a sparse parameter.
func (in *Values) Row(dst []float32, key uint64) {
	if in.kind == job.InitZeros {
		clear(dst)
		return
	}
	in.fill(dst, job.Mix(in.stream^job.Mix(key)), 0)
}

func (in *Values) fill(dst []float32, stream, first uint64) {
	switch in.kind {
	case job.InitZeros:
		clear(dst)
	case job.InitConstant:
		for i := range dst {
			dst[i] = float32(in.a)
		}
	case job.InitUniform:
		for i := range dst {
			dst[i] = in.uniform(word(stream, first+uint64(i)))
		}
	case job.InitNormal:
		for i := range dst {
			at := 2 * (first + uint64(i))
			dst[i] = in.normal(word(stream, at), word(stream, at+1))
		}
	}
}

func word(stream, i uint64) uint64 { return job.Mix(stream + (i+1)*golden) }

// unit turns a word into a number in [0, 1).
func unit(w uint64) float64 { return float64(w>>11) * 0x1p-53 }

// uniform is below the maximum also after rounding to float32.
func (in *Values) uniform(w uint64) float32 {
	x := float32(in.a + (in.b-in.a)*unit(w))
	if x >= float32(in.b) {
		return math.Nextafter32(float32(in.b), float32(in.a))
	}
	return x
}

// normal is the first number of a pair of Box and Muller (A note on the
// generation of random normal deviates, 1958).
func (in *Values) normal(u, v uint64) float32 {
	r := math.Sqrt(-2 * math.Log(1-unit(u)))
	return float32(in.a + in.b*r*math.Cos(2*math.Pi*unit(v)))
}
