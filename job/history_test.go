package job_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/internal/store/fake"
	"starfish/job"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	st := store.Prefixed(fake.New(fake.Options{}), job.Prefix("j"))
	none, err := job.History(t.Context(), st, 0)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NotNil(t, none, "[] in JSON")

	loss, seconds := 0.25, 1.5
	var want []job.PassResult
	for pass := range 1205 { // more than one read
		p := job.PassResult{Pass: pass, Records: int64(10 * pass), Train: job.TrainResult{Loss: &loss}}
		if pass%2 == 0 {
			p.Seconds = &seconds
			p.Test = &job.TestResult{Records: 7, Metrics: map[string]*float64{"loss": &loss, "auc": nil}}
		}
		op, err := p.Put()
		require.NoError(t, err)
		_, err = st.Txn(t.Context(), store.Txn{Then: []store.Op{op}})
		require.NoError(t, err)
		want = append(want, p)
	}
	all, err := job.History(t.Context(), st, 0)
	require.NoError(t, err)
	require.Equal(t, want, all)
	some, err := job.History(t.Context(), st, 1200)
	require.NoError(t, err)
	require.Equal(t, want[1200:], some)

	kv, err := store.Lookup(t.Context(), st, "metrics/000002")
	require.NoError(t, err)
	require.JSONEq(t, `{"v":1,"pass":2,"records":20,"seconds":1.5,"train":{"loss":0.25},"test":{"records":7,"loss":0.25,"auc":null}}`, string(kv.Value))
	for _, bad := range []string{"{", `{"v":2,"pass":2}`} {
		_, err = st.Txn(t.Context(), store.Txn{Then: []store.Op{store.Put("metrics/000002", []byte(bad), 0)}})
		require.NoError(t, err)
		_, err = job.History(t.Context(), st, 0)
		require.ErrorContains(t, err, "metrics/000002")
	}
}
