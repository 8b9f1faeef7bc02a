package job_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// census is a spec with columns, as the documentation shows it.
const census = `job: c
data:
  train: [people.csv]
  format: csv
  csv: {missing: ["", "?"], labels: {"<=50K": 0, ">50K": 1}, comment: "#"}
  label: income
  weight: w
  group: household
features:
  - {name: age,    type: numeric, transform: standard, mean: 38.6, stddev: 13.6}
  - {name: gain,   type: numeric, transform: log1p, missing: 0}
  - {name: decade, column: age, type: numeric, transform: bucket, bounds: [20, 30.5, 40]}
  - {name: work,   type: categorical, missing: unknown}
  - {name: tags,   type: list, pool: mean}
  - {name: work_x_decade, cross: [work, decade]}
model: {type: logistic, bits: 20}
`

func TestColumns(t *testing.T) {
	t.Parallel()
	s := parse(t, census)
	require.Equal(t, job.CSV{Header: true, Delimiter: ",", Comment: "#", Missing: []string{"", "?"},
		Labels: map[string]string{"<=50K": "0", ">50K": "1"}}, s.Data.CSV)
	require.Equal(t, "income", s.Data.Label)
	require.Equal(t, "w", s.Data.Weight)
	require.Equal(t, "household", s.Data.Group)
	require.Equal(t, []job.Feature{
		{Name: "age", Type: "numeric", Transform: "standard", Mean: 38.6, Stddev: 13.6},
		{Name: "gain", Type: "numeric", Transform: "log1p", Missing: "0"},
		{Name: "decade", Column: "age", Type: "numeric", Transform: "bucket", Bounds: []float64{20, 30.5, 40}},
		{Name: "work", Type: "categorical", Missing: "unknown"},
		{Name: "tags", Type: "list", Sep: "|", Pool: "mean"},
		{Name: "work_x_decade", Type: "cross", Cross: []string{"work", "decade"}},
	}, s.Features)

	// The canonical form says all of it, and reads as the same spec.
	var again job.Spec
	require.NoError(t, json.Unmarshal(s.JSON(), &again))
	require.Empty(t, job.Diff(s, &again))
	require.Equal(t, s.Features, again.Features)
	require.Equal(t, s.Data, again.Data)
	require.Equal(t, string(s.JSON()), string(again.JSON()))

	other := parse(t, census, "data.csv.header=false")
	require.Equal(t, "data.csv.header: true in the job, false here", job.Diff(s, other))
	require.NoError(t, json.Unmarshal(other.JSON(), &again))
	require.False(t, again.Data.CSV.Header)
	other = parse(t, census, "features=[{name: age, type: numeric}]")
	require.Contains(t, job.Diff(s, other), "features: [{")
	require.Equal(t, "\t", parse(t, census, "data.format=tsv").Data.CSV.Delimiter)
	require.Equal(t, ";", parse(t, census, "data.csv.delimiter=;").Data.CSV.Delimiter)
	require.Equal(t, "\x01", parse(t, census, `data.csv.delimiter="\x01"`).Data.CSV.Delimiter)
}

// TestColumnsRefused: every mistake has the line and the field that has it.
func TestColumnsRefused(t *testing.T) {
	t.Parallel()
	head := "job: j\nmodel: {type: count}\ndata:\n  train: d\n  format: csv\n"
	for name, tc := range map[string]struct{ text, want string }{
		"no label":         {"", "line 3: data.label: missing: the format csv needs the name of the column with the label"},
		"delimiter":        {"  label: y\n  csv: {delimiter: ab}\n", `line 7: data.csv.delimiter: "ab" is not one of , ; | : ^ ~ \t \x01`},
		"header and names": {"  label: y\n  csv: {columns: [y, a]}\n", "line 7: data.csv.columns: only files without header need names; set header: false"},
		"a name twice":     {"  label: y\n  csv: {header: false, columns: [y, a, a]}\n", `line 7: data.csv.columns[2]: "a" is given twice`},
		"an unknown label": {"  label: lable\n  csv: {header: false, columns: [label, a]}\n", `line 6: data.label: "lable" is not one of data.csv.columns; did you mean label?`},
		"weight is label":  {"  label: y\n  weight: y\n", `line 7: data.weight: "y" is the label`},
		"label's number":   {"  label: y\n  csv: {labels: {yes: one}}\n", `line 7: data.csv.labels.yes: "one" is not a finite number`},
		"no list":          {"  label: y\nfeatures: {name: a}\n", "line 7: features: must be a list, not a mapping"},
		"a text":           {"  label: y\nfeatures: [a]\n", `line 7: features[0]: must be a mapping of fields, not "a"` + "\n" + "line 7: features[0].name: missing: a feature needs a name\nline 7: features[0].type: missing: numeric, categorical, list or cross"},
		"no features":      {"  label: y\nfeatures: []\n", "line 7: features: the list is empty; without it every column is taken"},
		"misspelt":         {"  label: y\nfeatures:\n- {name: a, type: numeric}\n- {name: b, tpye: numeric}\n", "line 9: features[1].tpye: unknown field; did you mean type?\nline 9: features[1].type: missing: numeric, categorical, list or cross"},
		"kind":             {"  label: y\nfeatures:\n- {name: a, type: numerical}\n", `line 8: features[0].type: "numerical" is not one of numeric, categorical, list, cross; did you mean numeric?`},
		"no name":          {"  label: y\nfeatures:\n- {type: numeric}\n", "line 8: features[0].name: missing: a feature needs a name"},
		"twice":            {"  label: y\nfeatures:\n- {name: a, type: numeric}\n- {name: a, type: list}\n", `line 9: features[1].name: "a" is already the name of features[0]`},
		"the weight":       {"  label: y\n  weight: w\nfeatures:\n- {name: w, type: numeric}\n", `line 9: features[0]: the column "w" is the weight`},
		"the label":        {"  label: y\nfeatures:\n- {name: a, column: y, type: numeric}\n", `line 8: features[0]: the column "y" is the label`},
		"not a column":     {"  label: y\n  csv: {header: false, columns: [y, age]}\nfeatures:\n- {name: agee, type: numeric}\n", `line 9: features[0]: the column "agee" is not one of data.csv.columns; did you mean age?`},
		"no deviation":     {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: standard}\n", "line 8: features[0]: transform: standard needs mean and stddev of the column; `starfish inspect-data` proposes them"},
		"deviation 0":      {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: standard, stddev: 0}\n", "line 8: features[0].stddev: must be above 0, is 0"},
		"mean of none":     {"  label: y\nfeatures:\n- {name: a, type: numeric, mean: 3}\n", "line 8: features[0]: mean and stddev belong to transform: standard"},
		"transform":        {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: log}\n", `line 8: features[0].transform: "log" is not one of none, log1p, standard, bucket`},
		"no bounds":        {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: bucket}\n", "line 8: features[0]: transform: bucket needs bounds"},
		"bounds of none":   {"  label: y\nfeatures:\n- {name: a, type: numeric, bounds: [1]}\n", "line 8: features[0].bounds: bounds belong to transform: bucket"},
		"bounds":           {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: bucket, bounds: [1, 3, 3]}\n", "line 8: features[0].bounds: must be ascending; 3 follows 3"},
		"a bound":          {"  label: y\nfeatures:\n- {name: a, type: numeric, transform: bucket, bounds: [1, x]}\n", `line 8: features[0].bounds[1]: must be a number, not "x"` + "\n" + "line 8: features[0].bounds: must be ascending; 0 follows 1"},
		"missing":          {"  label: y\nfeatures:\n- {name: a, type: numeric, missing: none}\n", `line 8: features[0].missing: "none" is not a finite number`},
		"another's":        {"  label: y\nfeatures:\n- {name: a, type: categorical, transform: log1p}\n", "line 8: features[0].transform: a feature of the type categorical has no such setting"},
		"pool":             {"  label: y\nfeatures:\n- {name: a, type: list, pool: max}\n", `line 8: features[0].pool: "max" is not one of sum, mean`},
		"table":            {"  label: y\nfeatures:\n- {name: a, type: list, table: t}\n", "line 8: features[0].table: not implemented in this version"},
		"one part":         {"  label: y\nfeatures:\n- {name: a, cross: [b]}\n", "line 8: features[0].cross: must name at least two features or columns"},
		"part":             {"  label: y\nfeatures:\n- {name: n, type: numeric}\n- {name: a, cross: [n, y]}\n", `line 9: features[1].cross[0]: "n" is neither categorical nor numeric with transform: bucket` + "\n" + `line 9: features[1].cross[1]: "y" is the label`},
		"column of cross":  {"  label: y\nfeatures:\n- {name: a, column: b, cross: [b, c]}\n", "line 8: features[0].column: a cross names its columns in `cross`"},
		"the same twice":   {"  label: y\nfeatures:\n- {name: a, cross: [b, c]}\n- {name: d, cross: [b, c]}\n", "line 9: features[1].cross: combines the same as features[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := job.ParseSpec([]byte(head+tc.text), "/data", nil)
			require.EqualError(t, err, tc.want)
		})
	}
}
