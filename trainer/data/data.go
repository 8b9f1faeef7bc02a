// Package data says in the reader's words what a spec says about data: whoever
// reads the records of a job, to train or to predict, reads them the same way.
package data

import (
	"fmt"
	"strconv"

	"starfish/job"
	"starfish/reader"
)

// NewPlan lists the files in the format that the spec says.
func NewPlan(spec *job.Spec, paths []string) (*reader.Plan, error) {
	d := spec.Data
	if !d.HasColumns() {
		return reader.NewPlan(paths, d.Format, int64(d.Chunk))
	}
	c, err := Columns(spec)
	if err != nil {
		return nil, err
	}
	return reader.NewColumnsPlan(paths, d.Format, int64(d.Chunk), c)
}

// Options are those of the spec that say what a record is; labels is what the
// model accepts.
func Options(spec *job.Spec, labels reader.Labels) reader.Options {
	return reader.Options{Bits: spec.Model.Bits, Labels: labels, MaxValue: float32(spec.Data.MaxValue)}
}

// Columns is what the reader needs to know of a spec with columns.
func Columns(spec *job.Spec) (reader.Columns, error) {
	d := spec.Data
	c := reader.Columns{
		Header: d.CSV.Header, Names: d.CSV.Columns, Comment: d.CSV.Comment, Missing: d.CSV.Missing,
		Label: d.Label, Weight: d.Weight, Group: d.Group,
	}
	if d.CSV.Delimiter != "" {
		c.Delimiter = d.CSV.Delimiter[0]
	}
	if len(d.CSV.Labels) > 0 {
		c.Labels = make(map[string]float32, len(d.CSV.Labels))
	}
	for text, number := range d.CSV.Labels {
		v, err := strconv.ParseFloat(number, 32)
		if err != nil {
			return c, fmt.Errorf("data.csv.labels: %w", err)
		}
		c.Labels[text] = float32(v)
	}
	for _, f := range spec.Features {
		c.Features = append(c.Features, feature(f))
	}
	return c, nil
}

func feature(f job.Feature) reader.Feature {
	kinds := map[string]reader.Kind{job.TypeNumeric: reader.Numeric, job.TypeCategorical: reader.Categorical,
		job.TypeList: reader.List, job.TypeCross: reader.Cross}
	transforms := map[string]reader.Transform{job.TransformLog1p: reader.Log1p,
		job.TransformStandard: reader.Standard, job.TransformBucket: reader.Bucket}
	return reader.Feature{
		Name: f.Name, Column: f.Column, Kind: kinds[f.Type],
		Transform: transforms[f.Transform], Mean: f.Mean, Stddev: f.Stddev, Bounds: f.Bounds,
		Missing: f.Missing, Separator: f.Sep, PoolMean: f.Pool == job.PoolMean, Parts: f.Cross,
	}
}
