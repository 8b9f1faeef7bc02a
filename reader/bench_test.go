package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// clicks writes rows lines of 39 ascending keys below 2^24 with the value 1, as
// one-hot click logs have them.
func clicks(tb testing.TB, rows int) string {
	tb.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for range rows {
		text = strconv.AppendInt(text, rnd.Int64N(2), 10)
		for k := range 39 {
			text = append(text, ' ')
			text = strconv.AppendInt(text, int64(k)*430185+rnd.Int64N(430185), 10)
			text = append(text, ":1"...)
		}
		text = append(text, '\n')
	}
	path := filepath.Join(tb.TempDir(), "clicks")
	require.NoError(tb, os.WriteFile(path, text, 0o600))
	return path
}

// processor is the processor time that this process has used, in seconds: on a
// busy machine it says more than the time that has passed.
func processor() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkReader reads a whole file; STARFISH_BENCH_FILE names a larger one.
func BenchmarkReader(b *testing.B) {
	const rows = 20000
	path := os.Getenv("STARFISH_BENCH_FILE")
	if path == "" {
		path = clicks(b, rows)
	}
	for _, chunk := range []int64{64 << 10, 1 << 20, 1 << 40} {
		for _, shuffle := range []bool{false, true} {
			b.Run(fmt.Sprintf("chunk=%d/shuffle=%v", chunk, shuffle), func(b *testing.B) {
				plan, err := NewPlan([]string{path}, Libsvm, chunk)
				require.NoError(b, err)
				b.SetBytes(plan.Files[0].Size)
				records, start := 0, processor()
				var batch Batch
				for b.Loop() {
					for c := range plan.Chunks() {
						r, err := plan.Open(context.Background(), c, Options{Batch: 512, Shuffle: shuffle, Bits: 24})
						if err != nil {
							b.Fatal(err)
						}
						for {
							err := r.Next(&batch)
							if errors.Is(err, io.EOF) {
								break
							}
							if err != nil {
								b.Fatal(err)
							}
							records += batch.Records()
						}
						_ = r.Close()
					}
				}
				b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(records)/(processor()-start), "records/cpu-s")
			})
		}
	}
}
