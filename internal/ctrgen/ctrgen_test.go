package ctrgen

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func text(t *testing.T, first, n uint64) []byte {
	t.Helper()
	m, err := New(Default())
	require.NoError(t, err)
	var r Record
	var b []byte
	for i := first; i < first+n; i++ {
		m.Make(i, &r)
		b = r.AppendTSV(r.AppendFFM(r.AppendVWNamespaces(r.AppendVW(r.AppendLibsvm(b)))))
	}
	return b
}

// A record depends on its number only, so ranges can be made anywhere.
func TestRangesAndGoldenRecords(t *testing.T) {
	t.Parallel()
	all := text(t, 0, 300)
	require.Equal(t, all, append(text(t, 0, 100), text(t, 100, 200)...), "records depend on the range they are made in")
	sum := sha256.Sum256(all)
	require.Equal(t, "c2fb29f4265de701", hex.EncodeToString(sum[:])[:16], "the records changed: every published figure is void")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogLoss(t *testing.T) {
	t.Parallel()
	require.InDelta(t, math.Ln2, LogLoss(1, 0), 1e-12)
	require.InDelta(t, math.Log1p(math.Exp(3)), LogLoss(0, 3), 1e-12)
	require.InDelta(t, 800, LogLoss(1, -800), 1e-9)
}

// A range is byte for byte what the generator of the published figures makes.
func TestGoldenRanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, records uint64
		format, sum    string
		positives      uint64
		bayes          float64
	}{
		{0, 20000, "libsvm", "331a9f20a97fee7774a858b3c1bbd68a824b63ddbb162e5d0c51f2133c3e43ab", 4934, 0.41223547366404173},
		{0, 20000, "tsv", "8a4ebc27e639e2f3ac4975d543ba45a3dd0d0d5c09cee9a75d96c51651053ee7", 4934, 0.41223547366404173},
		{0, 20000, "vw", "048bd5f5a0f5dbdd64b469a3a04337f6f268d5b150d3eb57f745ea9622407a3a", 4934, 0.41223547366404173},
		{100000000, 5000, "libsvm", "cf1a52a80dd3985fdf8774873a80e8ef01cecfd9047c5beeb8f037c1a8f82b21", 1327, 0.43079558897965436},
	} {
		h := sha256.New()
		s, err := Write(t.Context(), Default(), c.first, c.records, c.format, h, nil)
		require.NoError(t, err)
		require.Equal(t, c.sum, hex.EncodeToString(h.Sum(nil)), "the records changed: every published figure is void")
		require.Equal(t, c.positives, s.Positives)
		require.InDelta(t, c.bayes, s.BayesLoss, 1e-12)
	}
}

// Write makes blocks in parallel and must write what a single maker makes.
func TestWriteEqualsOneMaker(t *testing.T) {
	t.Parallel()
	const records = 2*block + 17
	var got bytes.Buffer
	var progress []uint64
	s, err := Write(t.Context(), Default(), 5, records, "libsvm", &got, func(n uint64) { progress = append(progress, n) })
	require.NoError(t, err)
	require.Equal(t, []uint64{block, 2 * block, records}, progress)

	m, err := New(Default())
	require.NoError(t, err)
	var want []byte
	var r Record
	var positives uint64
	for i := range uint64(records) {
		m.Make(5+i, &r)
		want = r.AppendLibsvm(want)
		positives += uint64(r.Label)
	}
	require.True(t, bytes.Equal(want, got.Bytes()))
	require.Equal(t, positives, s.Positives)
	require.InDelta(t, 38.9, s.KeysPerRecord, 0.2)
	require.Less(t, s.BayesLoss, s.LinearLoss)
	require.Less(t, s.LinearLoss, s.ConstantLoss)
}

func TestWriteNothing(t *testing.T) {
	t.Parallel()
	s, err := Write(t.Context(), Default(), 0, 0, "tsv", io.Discard, nil)
	require.NoError(t, err)
	require.Equal(t, Summary{}, s)
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	_, err := Write(t.Context(), Default(), 0, 1, "xml", io.Discard, nil)
	require.ErrorContains(t, err, `"xml" is none of ffm, libsvm, tsv, vw, vwns`)
	_, err = Write(t.Context(), Default(), math.MaxUint64, 2, "vw", io.Discard, nil)
	require.ErrorContains(t, err, "2^64")
	bad := Default()
	bad.Bits = 40
	_, err = Write(t.Context(), bad, 0, 1, "vw", io.Discard, nil)
	require.ErrorContains(t, err, "40 bits")
	bad = Default()
	bad.Zipf = 1
	require.Error(t, bad.Validate())
}

// Somebody who stops it need not wait for the rest.
func TestWriteStops(t *testing.T) {
	t.Parallel()
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var written uint64
	_, err := Write(ctx, Default(), 0, 1<<40, "ffm", io.Discard, func(n uint64) { written = n; cancel(stop) })
	require.ErrorIs(t, err, stop)
	require.Less(t, written, uint64(100*block))
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteReportsTheDisk(t *testing.T) {
	t.Parallel()
	_, err := Write(t.Context(), Default(), 0, 1<<40, "tsv", full{}, nil)
	require.ErrorIs(t, err, errFull)
}
