package ctrgen

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(t *testing.T, first, n uint64) []byte {
	t.Helper()
	m, err := New(Default())
	require.NoError(t, err)
	var r Row
	var b []byte
	for i := first; i < first+n; i++ {
		m.Make(i, &r)
		b = r.AppendTSV(r.AppendFFM(r.AppendVWNamespaces(r.AppendVW(r.AppendLibsvm(b)))))
	}
	return b
}

// A row depends on its number only, so ranges can be made anywhere.
func TestRangesAndGoldenRows(t *testing.T) {
	t.Parallel()
	all := text(t, 0, 300)
	require.Equal(t, all, append(text(t, 0, 100), text(t, 100, 200)...), "rows depend on the range they are made in")
	sum := sha256.Sum256(all)
	require.Equal(t, "c2fb29f4265de701", hex.EncodeToString(sum[:])[:16], "the rows changed: every published figure is void")
}

func TestLogLoss(t *testing.T) {
	t.Parallel()
	require.InDelta(t, math.Ln2, LogLoss(1, 0), 1e-12)
	require.InDelta(t, math.Log1p(math.Exp(3)), LogLoss(0, 3), 1e-12)
	require.InDelta(t, 800, LogLoss(1, -800), 1e-9)
}

// Write makes blocks in parallel and must write what a single maker makes.
func TestWriteEqualsOneMaker(t *testing.T) {
	t.Parallel()
	const rows = 2*block + 17
	var got, truth bytes.Buffer
	s, err := Write(Default(), 5, rows, map[string]io.Writer{"libsvm": &got, "truth": &truth})
	require.NoError(t, err)

	m, err := New(Default())
	require.NoError(t, err)
	var want []byte
	var r Row
	var positives uint64
	for i := range uint64(rows) {
		m.Make(5+i, &r)
		want = r.AppendLibsvm(want)
		positives += uint64(r.Label)
	}
	require.True(t, bytes.Equal(want, got.Bytes()))
	require.Equal(t, 12*rows, truth.Len())
	require.Equal(t, positives, s.Positives)
	require.InDelta(t, 38.9, s.KeysPerRow, 0.2)
	require.Less(t, s.BayesLoss, s.LinearLoss)
	require.Less(t, s.LinearLoss, s.ConstantLoss)
}

func TestWriteNothing(t *testing.T) {
	t.Parallel()
	s, err := Write(Default(), 0, 0, nil)
	require.NoError(t, err)
	require.Equal(t, Summary{}, s)
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	_, err := Write(Default(), 0, 1, map[string]io.Writer{"xml": io.Discard})
	require.ErrorContains(t, err, "xml")
	bad := Default()
	bad.Bits = 40
	_, err = Write(bad, 0, 1, nil)
	require.ErrorContains(t, err, "40 bits")
	bad = Default()
	bad.Zipf = 1
	require.Error(t, bad.Validate())
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteReportsTheDisk(t *testing.T) {
	t.Parallel()
	_, err := Write(Default(), 0, 3*block, map[string]io.Writer{"tsv": full{}})
	require.ErrorIs(t, err, errFull)
}
