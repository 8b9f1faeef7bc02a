package data_test

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer/data"
)

// TestColumnsOfSpec: what the reader is told is what the spec says.
func TestColumnsOfSpec(t *testing.T) {
	t.Parallel()
	spec, err := job.ParseSpec([]byte(`job: c
data:
  train: [people.csv]
  format: csv
  csv: {header: false, columns: [income, age, work, tags, w, g], delimiter: ";", missing: ["?"], comment: "#", labels: {"lots": 1, "little": 0}}
  label: income
  weight: w
  group: g
features:
  - {name: age, type: numeric, transform: standard, mean: 30, stddev: 4}
  - {name: raw, column: age, type: numeric, missing: 7}
  - {name: log, column: age, type: numeric, transform: log1p}
  - {name: decade, column: age, type: numeric, transform: bucket, bounds: [20, 30]}
  - {name: work, type: categorical, missing: none}
  - {name: tags, type: list, sep: "/", pool: mean}
  - {name: all, column: tags, type: list}
  - {name: x, cross: [work, decade]}
model: {type: logistic, bits: 20}
`), t.TempDir(), nil)
	require.NoError(t, err)
	c, err := data.Columns(spec)
	require.NoError(t, err)
	require.Equal(t, reader.Columns{
		Names: []string{"income", "age", "work", "tags", "w", "g"}, Delimiter: ';', Comment: "#", Missing: []string{"?"},
		Label: "income", Weight: "w", Group: "g", Labels: map[string]float32{"lots": 1, "little": 0},
		Features: []reader.Feature{
			{Name: "age", Kind: reader.Numeric, Transform: reader.Standard, Mean: 30, Stddev: 4},
			{Name: "raw", Column: "age", Kind: reader.Numeric, Missing: "7"},
			{Name: "log", Column: "age", Kind: reader.Numeric, Transform: reader.Log1p},
			{Name: "decade", Column: "age", Kind: reader.Numeric, Transform: reader.Bucket, Bounds: []float64{20, 30}},
			{Name: "work", Kind: reader.Categorical, Missing: "none"},
			{Name: "tags", Kind: reader.List, Separator: "/", PoolMean: true},
			{Name: "all", Column: "tags", Kind: reader.List, Separator: "|"},
			{Name: "x", Kind: reader.Cross, Parts: []string{"work", "decade"}},
		}}, c)

	require.NoError(t, os.WriteFile(spec.Data.Train[0], []byte("lots;38;?;a/b;2;u\n#\nlittle;?;clerk;;0;v\n"), 0o600))
	plan, err := data.NewPlan(spec, spec.Data.Train)
	require.NoError(t, err)
	r, err := plan.Open(t.Context(), 0, reader.Options{Batch: 4, Labels: reader.LabelBinary})
	require.NoError(t, err)
	defer r.Close()
	var b reader.Batch
	require.NoError(t, r.Next(&b))
	require.Equal(t, []float32{1, 0}, b.Labels)
	require.Equal(t, []float32{2, 0}, b.Weights)
	_, values := b.Record(0)
	require.Equal(t, []float32{2, 38, float32(math.Log(39)), 1, 1, 0.5, 0.5, 1, 1}, values)
	_, values = b.Record(1)
	require.Equal(t, []float32{7, 1}, values)
}
