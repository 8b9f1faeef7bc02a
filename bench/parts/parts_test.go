package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTargets(t *testing.T) {
	t.Parallel()
	cost := pair{ours: 2, yardstick: 1}
	require.InDelta(t, 0.5, atLeast(0.6).ratio(cost), 1e-9, "a speed")
	require.InDelta(t, 2.0, atMost(1.3).ratio(cost), 1e-9, "a cost")
	require.Equal(t, "missed", atLeast(0.6).verdict(0.5))
	require.Equal(t, "met", atLeast(0.6).verdict(0.6))
	require.Equal(t, "met", atLeast(0.6).verdict(0.7))
	require.Equal(t, "missed", atMost(1.3).verdict(1.4))
	require.Equal(t, "met", atMost(1.3).verdict(1.3))
	require.Equal(t, "met", atMost(1.3).verdict(1.2))
}

func TestRoundsTakeTurns(t *testing.T) {
	t.Parallel()
	var order []string
	note := func(name string) func() error {
		return func() error { order = append(order, name); return nil }
	}
	s := sides{ours: note("ours"), yardstick: note("yardstick"), of: func(u usage) float64 { return u.wall }}
	for range 2 {
		p, err := s.round()
		require.NoError(t, err)
		require.Positive(t, p.ours)
		require.Positive(t, p.yardstick)
	}
	require.Equal(t, []string{"yardstick", "ours", "ours", "yardstick"}, order)
}

func TestTheTable(t *testing.T) {
	t.Parallel()
	ended := false
	open := func(*config) (func() (pair, error), func() error, error) {
		n := 0.0
		return func() (pair, error) { n++; return pair{n, 4}, nil }, func() error { ended = true; return nil }, nil
	}
	parts := []part{
		{name: "one", unit: "s", target: atLeast(2), open: open},
		{name: "other", target: atMost(1), open: open},
		{name: "absent", target: atMost(1), open: func(*config) (func() (pair, error), func() error, error) {
			return nil, nil, errAbsent
		}},
	}
	var b bytes.Buffer
	c := config{rounds: 3, only: regexp.MustCompile("one|absent")}
	require.NoError(t, c.measure(parts, &b))
	lines := strings.Split(b.String(), "\n")
	require.Regexp(t, `^one +2\.00 \(1\.33 – 4\.00\) +≥ 2 +met +2 s +4 s$`, lines[1])
	require.Regexp(t, `^absent +not measured`, lines[2])
	require.True(t, ended)
}

// The parts measure what they say, and end everything that they begin.
func TestParts(t *testing.T) {
	for _, p := range all() {
		switch {
		case strings.Contains(p.name, "memory"):
			continue // runs this program once more
		case strings.Contains(p.name, "64 clients"), strings.Contains(p.name, "16 MiB"), strings.Contains(p.name, "100000000"), strings.Contains(p.name, "1024"):
			continue // takes long, and is what its neighbour is
		}
		t.Run(p.name, func(t *testing.T) {
			c := config{rounds: 1, keys: 1000, mib: 1, python: "python3"}
			pairs, err := c.pairs(p)
			if errors.Is(err, errAbsent) {
				t.Skip(err)
			}
			require.NoError(t, err)
			require.Len(t, pairs, 1)
			require.Positive(t, pairs[0].ours)
			require.Positive(t, pairs[0].yardstick)
		})
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, run([]string{"hold", "20000"}, &b, io.Discard))
	var resident int64
	require.NoError(t, json.Unmarshal(b.Bytes(), &resident))
	require.Greater(t, resident, int64(20000*72))
}

func TestKeysAreDistinct(t *testing.T) {
	t.Parallel()
	keys := randomKeys(rand.New(rand.NewPCG(1, 2)), 1000)
	seen := map[uint64]bool{}
	for _, k := range keys {
		require.False(t, seen[k])
		seen[k] = true
	}
	require.Len(t, keys, 1000)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	require.Error(t, run([]string{"-rounds", "0"}, io.Discard, io.Discard))
	require.Error(t, run([]string{"-only", "("}, io.Discard, io.Discard))
	require.Error(t, run([]string{"more"}, io.Discard, io.Discard))
	require.NoError(t, run([]string{"-only", "none such"}, io.Discard, io.Discard))
}
