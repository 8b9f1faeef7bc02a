package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

// TestPredictWithWeightsAndGroups: the metrics of predictions are those of the
// job's own evaluation, to the bit, also where records have weights and groups
// and only some lines of libsvm text have a qid; and though the job reads the
// data in chunks of 1 KiB and prediction as a stream, compressed or not.
func TestPredictWithWeightsAndGroups(t *testing.T) {
	var csv, svm strings.Builder
	csv.WriteString("w,user,site,\"how, many\",y\n")
	for i := range 2000 {
		y, user := (i*7919%13)/7, fmt.Sprintf("u%d", i*31%150)
		if i%9 == 0 {
			user = ""
		}
		fmt.Fprintf(&csv, "%v,%s,\"s%d, \"\"%d\"\"\",%d,%d\n", float64(i%4)/2, user, i%7, y*(i%3), i%50, y)
		qid := ""
		if i > 900 && i%3 > 0 { // the first chunks have none
			qid = fmt.Sprintf(" qid:%d", i*17%120)
		}
		fmt.Fprintf(&svm, "%d%s %d %d:0.5\n", y, qid, i%7, 10+y*(i%3))
	}
	for name, tc := range map[string]struct{ text, data string }{
		"csv":    {csv.String(), "format: csv, label: y, weight: w, group: user"},
		"libsvm": {svm.String(), "format: libsvm"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			data := writeFile(t, filepath.Join(dir, "in."+name), tc.text)
			spec := writeFile(t, filepath.Join(dir, "spec.yaml"), fmt.Sprintf(
				"job: j\ndata: {train: [in.%s], test: [in.%s], chunk: 1KiB, %s}\nmodel: {type: logistic}\noptimizer: {type: adagrad}\n", name, name, tc.data))
			model, metrics := filepath.Join(dir, "model.npz"), filepath.Join(dir, "metrics.json")
			want := newCall(t, "run", "-f", spec, "--export", model, "--result", "-").succeed().result().Test
			for _, name := range []string{"loss", "auc", "accuracy", "normalized_entropy", "calibration", "group_auc", "groups", "groups_left_out"} {
				require.NotNil(t, want.Metrics[name], name)
			}
			require.Greater(t, *want.Metrics["groups"], 50.0)
			for _, in := range []string{data, "-"} {
				c := newCall(t, "predict", "-m", model, "-i", in, "--metrics", metrics)
				c.cmd.Stdin = strings.NewReader(tc.text)
				require.Equal(t, 2000, strings.Count(c.succeed().stdout.String(), "\n"))
				text, err := os.ReadFile(metrics)
				require.NoError(t, err)
				var got job.TestResult
				require.NoError(t, json.Unmarshal(text, &got))
				require.Equal(t, *want, got, in)
			}
		})
	}
}
