package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"broken":                   "broken",
		"trainer: trainer: broken": "broken",
		"etcdqueue: the job has failed: every chunk of pass 0 failed; chunk 0: reader: bad record: a9a:2: no label": "the job has failed: every chunk of pass 0 failed; chunk 0: bad record: a9a:2: no label",
		"turn: turn: store: lease not found":        "turn: lease not found",
		"register trainer: membership: name in use": "register trainer: name in use",
		"spec.yaml:4: job: the name is empty":       "spec.yaml:4: job: the name is empty",
		"no such program: trainer":                  "no such program: trainer",
		"reader: one\nreader: two":                  "one\ntwo",
		"":                                          "",
	} {
		require.Equal(t, want, Plain(text))
	}
	spec := job.Exit(job.ExitUsage, &job.SpecError{Problems: []job.Problem{{Where: "a.yaml", Field: "job", Text: "is missing"}}})
	require.Equal(t, spec.Error(), plainError(spec))
}
