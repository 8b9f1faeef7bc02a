package bareloop

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/internal/ctrgen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func clicks(t *testing.T, n uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	cfg := ctrgen.Default()
	cfg.Bits = 16
	_, err := ctrgen.Write(t.Context(), cfg, 0, n, "libsvm", &b, nil)
	require.NoError(t, err)
	return b.Bytes()
}

// plain is the loop with one worker and nothing parallel, over a map. The
// worker's pull of a batch precedes its push of the batch before by nothing, so
// staleness is one batch.
func plain(t *testing.T, text []byte, batchSize int) float64 {
	t.Helper()
	type entry struct{ w, a float32 }
	table := map[uint32]entry{}
	r := newRows(batchSize)
	var before map[uint32]float32
	var loss float64
	n := 0
	for {
		text = text[r.parse(text, batchSize):]
		for k, g := range before { // arrives with the pull and is applied first
			e := table[k]
			e.a += g * g
			e.w -= 0.1 * g / float32(math.Sqrt(float64(e.a+1e-6)))
			table[k] = e
		}
		if r.n == 0 {
			return loss / float64(n)
		}
		before = map[uint32]float32{}
		for i := range r.n {
			var z float32
			keys := r.keys[i*rowKeys : (i+1)*rowKeys]
			for _, k := range keys {
				z += table[k].w
			}
			for _, k := range keys {
				before[k] += sigmoid(z) - r.labels[i]
			}
			loss += logLoss(r.labels[i], z)
		}
		n += r.n
	}
}

func TestOneWorkerEqualsThePlainLoop(t *testing.T) {
	t.Parallel()
	text := clicks(t, 3000)
	want := plain(t, text, 64)
	for _, servers := range []int{1, 2, 4} {
		got, err := Run(text, Config{Bits: 16, Batch: 64, Workers: 1, Servers: servers})
		require.NoError(t, err)
		require.Equal(t, 3000, got.Rows)
		require.InDelta(t, want, got.Loss, 1e-6)
		require.Positive(t, got.Bytes)
	}
}

func TestWorkersShareTheRows(t *testing.T) {
	t.Parallel()
	got, err := Run(clicks(t, 2001), Config{Bits: 16, Batch: 50, Workers: 3, Servers: 2})
	require.NoError(t, err)
	require.Equal(t, 2001, got.Rows)
	require.Less(t, got.Loss, 0.8)
}

func TestCutKeepsEveryLine(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a\n", "a\nb\nc\n", "longer than the rest\nb\nc\n", "a\nb"} {
		for n := 1; n < 6; n++ {
			parts := cut([]byte(text), n)
			require.Len(t, parts, n)
			require.Equal(t, text, string(bytes.Join(parts, nil)))
			for _, p := range parts[:n-1] {
				require.True(t, len(p) == 0 || p[len(p)-1] == '\n' || len(p) == len(text) || bytes.HasSuffix([]byte(text), p), "%q", p)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Bits: 16, Batch: 1, Workers: 1, Servers: 3}, {Bits: 32, Batch: 1, Workers: 1, Servers: 1},
		{Bits: 16, Batch: 0, Workers: 1, Servers: 1}} {
		_, err := Run(nil, c)
		require.Error(t, err)
	}
	got, err := Run(nil, Config{Bits: 4, Batch: 1, Workers: 1, Servers: 1})
	require.NoError(t, err)
	require.Zero(t, got.Rows)
}
