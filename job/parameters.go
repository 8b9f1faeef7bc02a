package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// parametersVersion is the version of the record `parameters`.
const parametersVersion = 1

// Parameters is the record `parameters`: the resolved list of everything that
// a pserver stores. Servers know only this list, never a model.
type Parameters struct {
	V int `json:"v"`
	// Seed of the initial values.
	Seed uint64 `json:"seed"`
	// Shards is S, the number of parts of every parameter.
	Shards int `json:"shards"`
	// List in the model's order; a parameter's index in it is its number in
	// messages.
	List []Parameter `json:"list"`
}

// Parameter is one named part of the model: a dense tensor or a sparse table.
type Parameter struct {
	Name string `json:"name"`
	// Shape of a dense parameter; empty means a scalar. Absent when Sparse.
	Shape []int `json:"shape,omitempty"`
	// Sparse tells a table of rows from a dense tensor.
	Sparse bool `json:"sparse,omitempty"`
	// Dim is the number of values of a row of a sparse table.
	Dim int `json:"dim,omitempty"`
	// Bits is the size of a sparse table's key space (keys < 2^Bits); 0: 64.
	Bits int `json:"bits,omitempty"`
	// Init says where values start.
	Init Initializer `json:"init"`
	// Optimizer with all its settings; a model that names another one than the
	// job's begins with DefaultOptimizer.
	Optimizer OptimizerSettings `json:"optimizer"`
	// Reduction is mean or sum.
	Reduction string `json:"reduction"`
	// Divisor of a batch's summed gradient: the nominal batch size for mean, 1
	// for sum.
	Divisor float64 `json:"divisor"`
}

// Initializer describes initial values. They follow from the job's seed, the
// parameter's name and the key or element index alone.
type Initializer struct {
	// Kind is zeros, constant, uniform or normal. Empty means zeros.
	Kind string `json:"kind"`
	// Value of constant.
	Value float64 `json:"value,omitempty"`
	// Min and Max of uniform: values in [Min, Max).
	Min float64 `json:"min,omitempty"`
	Max float64 `json:"max,omitempty"`
	// Mean and Stddev of normal.
	Mean   float64 `json:"mean,omitempty"`
	Stddev float64 `json:"stddev,omitempty"`
}

// The kinds of initializer.
const (
	InitZeros    = "zeros"
	InitConstant = "constant"
	InitUniform  = "uniform"
	InitNormal   = "normal"
)

// Bounds of what a model may ask for, against absurd sizes.
const (
	maxParameters = 1 << 16
	maxElements   = 1 << 36
	maxDim        = 1 << 14
)

// Elements of a dense parameter.
func (p Parameter) Elements() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Blocks of a dense parameter: runs of BlockSize elements.
func (p Parameter) Blocks() int { return (p.Elements() + BlockSize - 1) / BlockSize }

// BlockLen is the number of elements of a block of a dense parameter.
func (p Parameter) BlockLen(block int) int { return min(BlockSize, p.Elements()-block*BlockSize) }

// Resolve completes what a model asks for from the spec: a parameter without
// optimizer, reduction or key space gets the job's.
func Resolve(spec *Spec, list []Parameter) (Parameters, error) {
	ps := Parameters{V: parametersVersion, Seed: spec.Train.Seed, Shards: spec.Shards, List: slices.Clone(list)}
	for i := range ps.List {
		p := &ps.List[i]
		if p.Optimizer.Type == "" {
			p.Optimizer = spec.Optimizer.settings()
		}
		if p.Reduction == "" {
			p.Reduction = spec.Optimizer.Reduction
		}
		if p.Optimizer.Type == OptimizerCount {
			p.Reduction = ReductionSum
		}
		p.Divisor = 1
		if p.Reduction == ReductionMean {
			p.Divisor = float64(spec.Train.Batch)
		}
		if p.Init.Kind == "" {
			p.Init.Kind = InitZeros
		}
		if p.Sparse && p.Bits == 0 {
			p.Bits = spec.Model.Bits
		}
	}
	return ps, ps.Validate()
}

// Validate reports everything that is wrong.
func (ps Parameters) Validate() error {
	var problems []error
	fail := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("job: parameters: "+format, args...))
	}
	if ps.V != parametersVersion {
		fail("version %d is not known to this program, which knows %d", ps.V, parametersVersion)
	}
	if ps.Shards < 1 {
		fail("%d shards", ps.Shards)
	}
	if len(ps.List) == 0 || len(ps.List) > maxParameters {
		fail("%d of them; there must be 1 to %d", len(ps.List), maxParameters)
	}
	names := make(map[string]bool)
	for _, p := range ps.List {
		if !namePattern.MatchString(p.Name) || names[p.Name] {
			fail("%q is no name, or one that is given twice", p.Name)
		}
		names[p.Name] = true
		if why := p.defect(); why != "" {
			fail("%s: %s", p.Name, why)
		}
	}
	return errors.Join(problems...)
}

// defect says what is impossible about a parameter.
func (p Parameter) defect() string {
	switch {
	case p.Sparse && (p.Dim < 1 || p.Dim > maxDim):
		return fmt.Sprintf("a row of %d values; there must be 1 to %d", p.Dim, maxDim)
	case p.Sparse && len(p.Shape) > 0, !p.Sparse && p.Dim != 0:
		return "a sparse parameter has a dim, a dense one a shape"
	case p.Bits < 0 || p.Bits > 63:
		return fmt.Sprintf("a key space of %d bits", p.Bits)
	case p.Reduction != ReductionMean && p.Reduction != ReductionSum:
		return fmt.Sprintf("the unknown reduction %q", p.Reduction)
	case !(p.Divisor > 0) || math.IsInf(p.Divisor, 0):
		return fmt.Sprintf("the divisor %v", p.Divisor)
	}
	n := 1
	for _, d := range p.Shape {
		if d < 1 || d > maxElements/n {
			return fmt.Sprintf("the impossible shape %v", p.Shape)
		}
		n *= d
	}
	switch p.Init.Kind {
	case InitZeros, InitConstant, InitUniform, InitNormal:
	default:
		return fmt.Sprintf("the unknown initialiser %q", p.Init.Kind)
	}
	if err := p.Optimizer.Validate(); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return ""
}

// diff is the first difference between two lists of parameters, in words.
func (ps Parameters) diff(other Parameters) string {
	switch {
	case ps.Seed != other.Seed:
		return fmt.Sprintf("seed: %d in the job, %d here", ps.Seed, other.Seed)
	case ps.Shards != other.Shards:
		return fmt.Sprintf("shards: %d in the job, %d here", ps.Shards, other.Shards)
	}
	for i := range max(len(ps.List), len(other.List)) {
		have, mine := "none", "none"
		if i < len(ps.List) {
			have = ps.List[i].text()
		}
		if i < len(other.List) {
			mine = other.List[i].text()
		}
		if have != mine {
			return fmt.Sprintf("parameter %d: %s in the job, %s here", i, have, mine)
		}
	}
	return ""
}

func (p Parameter) text() string {
	b, err := json.Marshal(p)
	if err != nil {
		return fmt.Sprintf("%s (%v)", p.Name, err)
	}
	return string(b)
}
