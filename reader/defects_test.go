package reader

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMaxValue: what is beyond the bound is a bad record, wherever it stands;
// the bound itself is not, and it is for the value after the transform.
func TestMaxValue(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"1 1:1e9 2:-1e9":      "",
		"1e9 1:1":             "",
		"1 1:1 2:1e19":        `the value of "2:1e19" is larger than 1e+09 (data.max_value)`,
		"1 2:-1000000100 3:1": `the value of "2:-1000000100" is larger than 1e+09 (data.max_value)`,
		"-1e19 1:1":           `the label "-1e19" is larger than 1e+09 (data.max_value)`,
		"1 10000000000:1":     "", // a key
	} {
		_, err := all(plan(t, 1<<20, write(t, "0 1:1\n"+line+"\n")...), Options{Batch: 2, Labels: LabelReal, MaxValue: 1e9})
		refused(t, err, want, line)
		_, err = all(plan(t, 1<<20, write(t, line+"\n")...), Options{Batch: 2, Labels: LabelReal})
		require.NoError(t, err, "without a bound: %s", line)
	}
	const hint = `; if the column is right, give it transform: standard or log1p, or type: categorical`
	c := Columns{Header: true, Label: "y", Weight: "w", Features: []Feature{
		{Name: "n", Kind: Numeric}, {Name: "l", Kind: Numeric, Transform: Log1p},
		{Name: "s", Kind: Numeric, Transform: Standard, Mean: 1e19, Stddev: 1e9},
		{Name: "b", Kind: Numeric, Transform: Bucket, Bounds: []float64{1}}, {Name: "c", Kind: Categorical}}}
	auto := Columns{Header: true, Label: "y", Weight: "w"}
	for line, want := range map[string]string{
		"1,1,1e9,1e19,1e19,1e19,1e19": "",
		"1,1,1e19,1,1,1,1":            `"1e19" (column "n") is larger than 1e+09 (data.max_value)` + hint,
		"1,1,1,1,1e29,1,1":            `"1e29" (column "s") is larger than 1e+09 (data.max_value)` + hint,
		"1e19,1,1,1,1,1,1":            `"1e19" (column "y") is larger than 1e+09 (data.max_value)`,
		"1,1e19,1,1,1,1,1":            `"1e19" (column "w") is larger than 1e+09 (data.max_value)`,
	} {
		text := "y,w,n,l,s,b,c\n" + line + "\n"
		_, err := all(withColumns(t, 1<<20, c, write(t, text)...), Options{Batch: 2, Labels: LabelReal, MaxValue: 1e9})
		refused(t, err, want, line)
	}
	_, err := all(withColumns(t, 1<<20, auto, write(t, "y,w,n\n1,1,1e19\n")...), Options{Batch: 2, MaxValue: 1e9})
	refused(t, err, `"1e19" (column "n") is larger than 1e+09 (data.max_value)`+hint, "a column without feature")
	_, err = all(withColumns(t, 1<<20, auto, write(t, "y,w,n\n1,1,1e19\n")...), Options{Batch: 2, MaxValue: math.MaxFloat32})
	require.NoError(t, err)
}

func refused(t *testing.T, err error, want, line string) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, line)
		return
	}
	require.ErrorIs(t, err, ErrBadData, line)
	require.True(t, strings.HasSuffix(err.Error(), ":2: "+want), "%s: %v", line, err)
}
