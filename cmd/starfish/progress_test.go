package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", 100000: "100,000"} {
		require.Equal(t, want, thousands(n))
	}
}

func TestMeter(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	s := sight{phase: "training", passes: 5, chunks: 20, loss: math.NaN(), pservers: 2, trainers: 3}
	var m meter
	m.see(start, s)
	require.Equal(t, "training   0%  pass 1/5  0 records  2 pservers, 3 trainers", m.line())
	_, ok := m.eta()
	require.False(t, ok)

	s.pass, s.complete, s.records, s.loss = 1, 25, 25000, 0.51234
	m.see(start.Add(5*time.Second), s)
	require.Equal(t, "training  25%  pass 2/5  25,000 records  loss 0.5123  5,000/s  ETA 15s  2 pservers, 3 trainers", m.line())

	s.phase, s.pass, s.complete, s.records = "draining", 4, 100, 100000
	m.see(start.Add(20*time.Second), s)
	require.Equal(t, "draining 100%  pass 5/5  100,000 records  loss 0.5123  2 pservers, 3 trainers", m.line())
}

// A resumed job is timed by what it does now, not by what it did before.
func TestMeterOfAResumedJob(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	s := sight{phase: "training", passes: 1, chunks: 100, complete: 50, records: 5000, loss: math.NaN()}
	var m meter
	m.see(start, s)
	s.complete, s.records = 75, 7500
	m.see(start.Add(10*time.Second), s)
	eta, ok := m.eta()
	require.True(t, ok)
	require.Equal(t, 10*time.Second, eta)
	require.InDelta(t, 250, m.rate, 1e-9)
}

func TestMeterWithoutChunks(t *testing.T) {
	t.Parallel()
	require.Zero(t, sight{passes: 3}.fraction())
}
