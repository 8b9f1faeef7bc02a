package trainer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// TestPlanErrors: files that lack columns are a mistake of the spec, exit code 2.
func TestPlanErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec, err := job.ParseSpec([]byte("job: c\ndata: {train: [a.csv], format: csv, label: y}\nmodel: {type: logistic}\n"), dir, nil)
	require.NoError(t, err)
	_, err = planData(spec, spec.Data.Train)
	require.Equal(t, int(job.ExitUsage), job.ExitCode(err))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.csv"), []byte("x,z\n1,2\n"), 0o600))
	_, err = planData(spec, spec.Data.Train)
	require.ErrorContains(t, err, `a.csv: wrong columns: there is no column "y" among "x", "z"`)
	require.Equal(t, int(job.ExitUsage), job.ExitCode(err))
}
