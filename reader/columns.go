package reader

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The names of the formats that have columns.
const (
	CSV = "csv"
	TSV = "tsv"
)

// ErrColumns: a file does not have the columns that are asked for. Like
// ErrNoData it is a mistake in the configuration.
var ErrColumns = errors.New("wrong columns")

// Columns says how the columns of csv and tsv become labels, keys and values.
// It is not changed after it was given to NewColumnsPlan.
type Columns struct {
	// Header: the first line of each file that is neither blank nor comment
	// names the columns.
	Header bool
	// Names of the columns of files without header; nil: c1, c2, …
	Names []string
	// Delimiter between fields; 0: a comma for csv, a tab for tsv.
	Delimiter byte
	// Comment begins lines that are passed over; empty: there are none.
	Comment string
	// Missing are the texts, besides the empty one, that stand for "no value".
	Missing []string
	// Label, Weight and Group name columns; empty: there is none. Without a
	// label column every label is 0.
	Label, Weight, Group string
	// Optional: files may lack the columns Label, Weight and Group.
	Optional bool
	// Unlabelled: the columns Label, Weight and Group are not read, wherever
	// they are, and no features either.
	Unlabelled bool
	// Labels gives texts of the label column a number. A text that is not in
	// it must be a number.
	Labels map[string]float32
	// Features, in their order. nil: every column but label, weight and group
	// is taken as Auto.
	Features []Feature

	quotes bool // fields may stand in quotes
}

// Kind is what becomes of a column.
type Kind int

// The kinds of feature.
const (
	// Auto is Numeric where the text is a finite number and Categorical where
	// it is none.
	Auto Kind = iota
	// Numeric has the key of its name and the column's number as value.
	Numeric
	// Categorical has a key for each text.
	Categorical
	// List holds several texts in one field.
	List
	// Cross has a key for each combination of texts.
	Cross
)

// Transform is what a numeric feature does to its number.
type Transform int

// The transforms.
const (
	None Transform = iota
	// Log1p is ln(1+x), and −ln(1−x) below zero.
	Log1p
	// Standard is (x − Mean) / Stddev.
	Standard
	// Bucket makes it categorical: which of the intervals between Bounds.
	Bucket
)

// Feature is one entry of the list of features.
type Feature struct {
	// Name of the feature, from which its keys are made.
	Name string
	// Column that it reads; empty: the one of its name.
	Column string
	Kind   Kind
	// Transform, and its settings.
	Transform    Transform
	Mean, Stddev float64
	// Bounds, ascending: bucket i is where i of them are not above the number.
	Bounds []float64
	// Missing stands for a field without value; empty: the feature is left out
	// of the record then.
	Missing string
	// Separator of the texts of a list.
	Separator string
	// Mean pools a list of n to values 1/n instead of 1.
	PoolMean bool
	// Parts of a cross: names of features or columns.
	Parts []string
}

func (f Feature) column() string {
	if f.Column != "" {
		return f.Column
	}
	return f.Name
}

// delimiters are what fields may be parted by: nothing that could be part of a
// number or a quote.
const delimiters = ",;|:^~\t\x01"

// prepared is a checked copy of the Columns with defaults filled in.
func (c Columns) prepared(format string) (*Columns, error) {
	c.quotes = format == CSV
	if c.Delimiter == 0 {
		c.Delimiter = ','
		if format == TSV {
			c.Delimiter = '\t'
		}
	}
	if strings.IndexByte(delimiters, c.Delimiter) < 0 {
		return nil, fmt.Errorf("reader: %w: %q cannot part fields; it must be one of %q", ErrColumns, c.Delimiter, delimiters)
	}
	if c.Header && c.Names != nil {
		return nil, fmt.Errorf("reader: %w: files with a header name their columns themselves", ErrColumns)
	}
	for _, f := range c.Features {
		if err := f.check(); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

func (f Feature) check() error {
	switch {
	case f.Transform == Standard && !(f.Stddev > 0 && !math.IsInf(f.Stddev, 0)):
		return fmt.Errorf("reader: %w: %s: the deviation must be above 0", ErrColumns, f.Name)
	case f.Transform == Bucket && (len(f.Bounds) == 0 || !slices.IsSorted(f.Bounds)):
		return fmt.Errorf("reader: %w: %s: the bounds must be ascending", ErrColumns, f.Name)
	case f.Kind == List && f.Separator == "":
		return fmt.Errorf("reader: %w: %s: a list needs a separator", ErrColumns, f.Name)
	case f.Kind == Cross && len(f.Parts) < 2:
		return fmt.Errorf("reader: %w: %s: a cross needs at least two parts", ErrColumns, f.Name)
	}
	if f.Missing != "" && f.Kind == Numeric {
		if _, ok := decimal(padded(f.Missing)); !ok {
			return fmt.Errorf("reader: %w: %s: %q is not a finite number", ErrColumns, f.Name, f.Missing)
		}
	}
	return nil
}

// padded is the text with room behind it, as numbers are read with.
func padded(s string) []byte {
	b := make([]byte, len(s)+slack)
	return b[:copy(b, s)]
}
