package job

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
	// Optimizer with all its settings.
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

// OptimizerSettings is an optimizer with every setting resolved.
type OptimizerSettings struct {
	// Type is sgd, adagrad or count.
	Type string `json:"type"`
	// LearningRate scales every step.
	LearningRate float64 `json:"learning_rate,omitempty"`
	// Epsilon is added outside the root (adagrad).
	Epsilon float64 `json:"epsilon,omitempty"`
	// InitialAccumulator is where the sum of squares starts (adagrad).
	InitialAccumulator float64 `json:"initial_accumulator,omitempty"`
}
