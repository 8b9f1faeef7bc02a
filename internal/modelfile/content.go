package modelfile

import (
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"sort"
	"strings"

	"starfish/job"
)

// ErrFile: a file is no model, or a damaged one.
var ErrFile = errors.New("no usable model file")

// Form is how a model is written.
type Form int

// The forms.
const (
	Text Form = iota
	NPZ
	Safetensors
)

// FormOf is the form that a file's name stands for: text unless it ends in
// .npz or .safetensors.
func FormOf(path string) Form {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".npz":
		return NPZ
	case ".safetensors":
		return Safetensors
	}
	return Text
}

// Version of the metadata and of the layouts.
const Version = 1

// Metadata is what a file says beside the values.
type Metadata struct {
	V int `json:"v"`
	// Job and UUID of the job that made the model.
	Job  string `json:"job"`
	UUID string `json:"uuid"`
	// Records that were trained, each once per pass.
	Records int64 `json:"records"`
	// Spec is the job's, with the features and all that is needed to read
	// records.
	Spec *job.Spec `json:"spec"`
	// Parameters is the resolved list.
	Parameters job.Parameters `json:"parameters"`
	// Rows in the file of each parameter of the list; 0 for dense ones.
	Rows []int64 `json:"rows"`
}

// Run is a piece of a parameter: consecutive elements of a dense one, or rows
// of a sparse one with ascending keys. Its memory is reused.
type Run struct {
	// First is the index of the first element of a dense parameter.
	First uint64
	// Keys of the rows; nil for a dense parameter.
	Keys []uint64
	// Floats are the values, one element or row after the other.
	Floats []float32
	// Counts stand instead of Floats in parameters of the optimizer `count`.
	Counts []uint64
}

// Content is a model's values, or a part of them. Parameters are numbered as in
// the job's list.
type Content interface {
	// Rows is the number of rows of a sparse parameter.
	Rows(parameter int) int64
	// Export gives all runs of a parameter, ascending.
	Export(parameter int) iter.Seq[Run]
}

// counts tells whether a parameter holds whole numbers.
func counts(p job.Parameter) bool { return p.Optimizer.Type == job.OptimizerCount }

// width is the number of values of a row, or of an element.
func width(p job.Parameter) int {
	if p.Sparse {
		return p.Dim
	}
	return 1
}

// byName is the numbers of the parameters in the order of their names.
func byName(list []job.Parameter) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return list[order[i]].Name < list[order[j]].Name })
	return order
}

// The names of a table's two arrays end like this.
const (
	keysSuffix   = ".keys"
	valuesSuffix = ".values"
)

// metadataName is the array in .npz that holds the metadata.
const metadataName = "metadata"

// checkNames makes sure that the arrays of all parameters have names of their
// own.
func checkNames(list []job.Parameter) error {
	taken := map[string]bool{metadataName: true}
	for _, p := range list {
		names := []string{p.Name}
		if p.Sparse {
			names = []string{p.Name + keysSuffix, p.Name + valuesSuffix}
		}
		for _, name := range names {
			if taken[name] {
				return fmt.Errorf("modelfile: the parameter %q would make a second array %q; export as text", p.Name, name)
			}
			taken[name] = true
		}
	}
	return nil
}
