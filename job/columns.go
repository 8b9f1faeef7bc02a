package job

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// CSV is the section `data.csv`, for the formats csv and tsv.
type CSV struct {
	// Header: the first line of each file names its columns. Default true.
	Header bool `spec:"header"`
	// Columns are the names of the columns of files without header. Default:
	// c1, c2, ….
	Columns []string `spec:"columns,omitempty"`
	// Delimiter between fields. Default a comma for csv, a tab for tsv.
	Delimiter string `spec:"delimiter"`
	// Comment is what lines begin with that are passed over. Default: there
	// are none.
	Comment string `spec:"comment,omitempty"`
	// Missing are the texts, besides the empty one, that stand for no value.
	Missing []string `spec:"missing,omitempty"`
	// Labels gives texts in the label column a number.
	Labels map[string]string `spec:"labels,omitempty"`
}

// Feature is an entry of the list `features`.
type Feature struct {
	// Name of the feature, from which its keys are made. Required.
	Name string `spec:"name"`
	// Column that it reads. Default: the column of its name.
	Column string `spec:"column,omitempty"`
	// Type is numeric, categorical, list or cross. Required unless Cross is
	// given.
	Type string `spec:"type,omitempty"`
	// Transform of a numeric one: none, log1p, standard or bucket. Default
	// none.
	Transform string `spec:"transform,omitempty"`
	// Mean and Stddev of standard.
	Mean   float64 `spec:"mean,omitempty"`
	Stddev float64 `spec:"stddev,omitempty"`
	// Bounds of bucket, ascending.
	Bounds []float64 `spec:"bounds,omitempty"`
	// Missing stands for a field without value. Default: the feature is left
	// out of the record.
	Missing string `spec:"missing,omitempty"`
	// Sep parts the texts of a list. Default |.
	Sep string `spec:"sep,omitempty"`
	// Pool of a list: sum or mean. Default sum.
	Pool string `spec:"pool,omitempty"`
	// Cross names the features or columns that a cross combines.
	Cross []string `spec:"cross,omitempty"`
}

// The values of a feature's fields.
const (
	TypeNumeric       = "numeric"
	TypeCategorical   = "categorical"
	TypeList          = "list"
	TypeCross         = "cross"
	TransformNone     = "none"
	TransformLog1p    = "log1p"
	TransformStandard = "standard"
	TransformBucket   = "bucket"
	PoolSum           = "sum"
	PoolMean          = "mean"
)

var (
	featureTypes = choice{now: []string{TypeNumeric, TypeCategorical, TypeList, TypeCross}, later: []string{"vector"}}
	transforms   = choice{now: []string{TransformNone, TransformLog1p, TransformStandard, TransformBucket}}
	pools        = choice{now: []string{PoolSum, PoolMean}}
)

// HasColumns tells whether the format is one of those with columns.
func (d Data) HasColumns() bool { return d.Format == FormatCSV || d.Format == FormatTSV }

// adjustColumns fills the defaults of what concerns columns.
func (s *Spec) adjustColumns(given map[string]place) {
	if !s.Data.HasColumns() {
		return
	}
	if _, ok := given["data.csv.header"]; !ok {
		s.Data.CSV.Header = true
	}
	if s.Data.CSV.Delimiter == "" {
		s.Data.CSV.Delimiter = ","
		if s.Data.Format == FormatTSV {
			s.Data.CSV.Delimiter = "\t"
		}
	}
	for i := range s.Features {
		f := &s.Features[i]
		if f.Type == "" && len(f.Cross) > 0 {
			f.Type = TypeCross
		}
		if f.Type == TypeNumeric && f.Transform == "" {
			f.Transform = TransformNone
		}
		if f.Type == TypeList && f.Sep == "" {
			f.Sep = "|"
		}
		if f.Type == TypeList && f.Pool == "" {
			f.Pool = PoolSum
		}
	}
}

// checkColumns finds what is impossible about columns and features.
func (s *Spec) checkColumns(p *problems) {
	if !s.Data.HasColumns() {
		for _, name := range []string{"data.csv", "data.label", "data.weight", "data.group", "features"} {
			if _, given := p.places[name]; given {
				p.add(name, "only the formats csv and tsv have columns, not %s", s.Data.Format)
			}
		}
		return
	}
	s.checkCSV(p)
	names := make(map[string]int)
	for i := range s.Features {
		f := &s.Features[i]
		path := featurePath(i)
		if f.Name == "" {
			p.add(path+".name", "missing: a feature needs a name")
		} else if first, twice := names[f.Name]; twice {
			p.add(path+".name", "%q is already the name of %s", f.Name, featurePath(first))
		} else {
			names[f.Name] = i
		}
		s.checkFeature(p, path, f)
	}
	for i := range s.Features {
		s.checkCross(p, i, names)
	}
	if _, given := p.places["features"]; given && len(s.Features) == 0 {
		p.add("features", "the list is empty; without it every column is taken")
	}
}

func featurePath(i int) string { return fmt.Sprintf("features[%d]", i) }

const delimiters = ",;|:^~\t\x01"

func (s *Spec) checkCSV(p *problems) {
	d := &s.Data
	if len(d.CSV.Delimiter) != 1 || !strings.Contains(delimiters, d.CSV.Delimiter) {
		p.add("data.csv.delimiter", "%q is not one of , ; | : ^ ~ \\t \\x01", d.CSV.Delimiter)
	}
	if d.CSV.Header && len(d.CSV.Columns) > 0 {
		p.add("data.csv.columns", "only files without header need names; set header: false")
	}
	for i, name := range d.CSV.Columns {
		if slices.Index(d.CSV.Columns, name) < i {
			p.add(fmt.Sprintf("data.csv.columns[%d]", i), "%q is given twice", name)
		}
	}
	if d.Label == "" {
		p.add("data.label", "missing: the format %s needs the name of the column with the label", d.Format)
	}
	known := func(path, name string) {
		if name != "" && len(d.CSV.Columns) > 0 && !slices.Contains(d.CSV.Columns, name) {
			p.add(path, "%q is not one of data.csv.columns%s", name, meant(name, d.CSV.Columns))
		}
	}
	known("data.label", d.Label)
	known("data.weight", d.Weight)
	known("data.group", d.Group)
	if d.Weight != "" && d.Weight == d.Label {
		p.add("data.weight", "%q is the label", d.Weight)
	}
	for text, number := range d.CSV.Labels {
		if v, err := strconv.ParseFloat(number, 32); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			p.add("data.csv.labels."+text, "%q is not a finite number", number)
		}
	}
}

// settings says which fields a type of feature has besides name and column.
var settings = map[string][]string{
	TypeNumeric:     {"transform", "mean", "stddev", "bounds", "missing"},
	TypeCategorical: {"missing"},
	TypeList:        {"missing", "sep", "pool"},
	TypeCross:       {"cross"},
}

func (s *Spec) checkFeature(p *problems, path string, f *Feature) {
	if f.Type == "" {
		p.add(path+".type", "missing: numeric, categorical, list or cross")
		return
	}
	featureTypes.check(p, path+".type", f.Type)
	allowed, ok := settings[f.Type]
	if !ok {
		return
	}
	for _, name := range []string{"transform", "mean", "stddev", "bounds", "missing", "sep", "pool", "cross"} {
		if _, given := p.places[path+"."+name]; given && !slices.Contains(allowed, name) {
			p.add(path+"."+name, "a feature of the type %s has no such setting", f.Type)
		}
	}
	column := f.Name
	if f.Column != "" {
		column = f.Column
	}
	switch columns := s.Data.CSV.Columns; {
	case f.Type == TypeCross && f.Column != "":
		p.add(path+".column", "a cross names its columns in `cross`")
	case f.Type == TypeCross:
	case s.Data.role(column) != "":
		p.add(path, "the column %q is the %s", column, s.Data.role(column))
	case len(columns) > 0 && !slices.Contains(columns, column):
		p.add(path, "the column %q is not one of data.csv.columns%s", column, meant(column, columns))
	}
	switch f.Type {
	case TypeNumeric:
		f.checkNumeric(p, path)
	case TypeList:
		pools.check(p, path+".pool", f.Pool)
	}
}

// role is what a column is that is therefore no feature; empty for other columns.
// A group may be one: that of a user, say, whose number is a key as well.
func (d *Data) role(column string) string {
	switch column {
	case "":
	case d.Label:
		return "label"
	case d.Weight:
		return "weight"
	}
	return ""
}

func (f *Feature) checkNumeric(p *problems, path string) {
	transforms.check(p, path+".transform", f.Transform)
	_, mean := p.places[path+".mean"]
	_, stddev := p.places[path+".stddev"]
	switch {
	case f.Transform != TransformStandard && (mean || stddev):
		p.add(path, "mean and stddev belong to transform: standard")
	case f.Transform == TransformStandard && !stddev:
		p.add(path, "transform: standard needs mean and stddev of the column; `starfish inspect-data` proposes them")
	case f.Transform == TransformStandard && !(f.Stddev > 0):
		p.add(path+".stddev", "must be above 0, is %v", f.Stddev)
	}
	switch {
	case f.Transform != TransformBucket && len(f.Bounds) > 0:
		p.add(path+".bounds", "bounds belong to transform: bucket")
	case f.Transform == TransformBucket && len(f.Bounds) == 0:
		p.add(path, "transform: bucket needs bounds")
	}
	for i := 1; i < len(f.Bounds); i++ {
		if f.Bounds[i] <= f.Bounds[i-1] {
			p.add(path+".bounds", "must be ascending; %v follows %v", f.Bounds[i], f.Bounds[i-1])
		}
	}
	if f.Missing != "" {
		if v, err := strconv.ParseFloat(f.Missing, 64); err != nil || math.IsNaN(v) || math.IsInf(v, 0) || strings.ContainsAny(f.Missing, "xX_") {
			p.add(path+".missing", "%q is not a finite number", f.Missing)
		}
	}
}

// checkCross checks what a cross combines.
func (s *Spec) checkCross(p *problems, i int, names map[string]int) {
	f, path := &s.Features[i], featurePath(i)
	if f.Type != TypeCross {
		return
	}
	if len(f.Cross) < 2 {
		p.add(path+".cross", "must name at least two features or columns")
	}
	for k, name := range f.Cross {
		at := fmt.Sprintf("%s.cross[%d]", path, k)
		j, isFeature := names[name]
		switch columns := s.Data.CSV.Columns; {
		case isFeature && s.Features[j].Type != TypeCategorical && s.Features[j].Transform != TransformBucket:
			p.add(at, "%q is neither categorical nor numeric with transform: bucket", name)
		case !isFeature && s.Data.role(name) != "":
			p.add(at, "%q is the %s", name, s.Data.role(name))
		case !isFeature && len(columns) > 0 && !slices.Contains(columns, name):
			p.add(at, "%q is neither a feature nor a column%s", name, meant(name, columns))
		}
	}
	for j := range i {
		if slices.Equal(s.Features[j].Cross, f.Cross) {
			p.add(path+".cross", "combines the same as %s", featurePath(j))
		}
	}
}
