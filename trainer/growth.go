package trainer

import (
	"fmt"
	"math"
)

// growth tells from the losses of one trainer's batches that training diverges.
// It is a cumulative sum (E. S. Page, Continuous inspection schemes, Biometrika
// 41, 1954) of ln(ratio / limit), kept from falling below zero; the ratio is that
// of a sample's loss to the loss of predicting nothing. So a loss that explodes is
// found within a few samples, one that stays a little above the limit after many,
// and one that is above it for a while, at the start or by chance, is not found.
// A sample is a batch, or several that have sampleRecords together.
type growth struct {
	limit float64 // 0: nothing is ever found

	sum           float64
	loss, nothing float64 // of the sample under way
	records       int
	// What predicting nothing costs, over all records so far: a sample may have
	// no label that is not 0, by chance.
	allNothing, allRecords float64

	// Of the samples since the sum was 0: the worst loss, per record, and the
	// number of records.
	worst, ratio float64
	over         int
}

const (
	// sampleRecords is how many records a sample has at least.
	sampleRecords = 64
	// mostOfOne bounds what one sample adds: a single one, however absurd, does
	// not say that training diverges.
	mostOfOne = 25
	// enough is the sum that does.
	enough = 100
)

// add takes a batch; nothing is the loss of predicting nothing, a sum like loss.
// It tells whether training diverges. A loss that is not finite counts as the
// worst.
func (g *growth) add(loss, nothing float64, records int) bool {
	if g.limit == 0 {
		return false
	}
	g.loss += loss
	g.nothing += nothing
	g.records += records
	if g.records < sampleRecords {
		return false
	}
	n := float64(g.records)
	g.allNothing += g.nothing
	g.allRecords += n
	if expected := max(g.nothing, g.allNothing/g.allRecords*n); expected > 0 {
		g.sample(g.loss/n, g.loss/expected, g.records)
	}
	g.loss, g.nothing, g.records = 0, 0, 0
	return g.sum >= enough
}

func (g *growth) sample(loss, ratio float64, records int) {
	if g.sum = max(0, g.sum+evidence(ratio/g.limit)); g.sum == 0 {
		g.worst, g.ratio, g.over = 0, 0, 0
		return
	}
	g.over += records
	if !(ratio <= g.ratio) { // it is larger, or NaN
		g.worst, g.ratio = loss, ratio
	}
}

// evidence is the logarithm, within bounds.
func evidence(x float64) float64 {
	if math.IsNaN(x) {
		return mostOfOne
	}
	return min(max(math.Log(x), -mostOfOne), mostOfOne)
}

// ends tells at the end of the data whether training was diverging: more than
// one sample can say so then, as no later ones will.
func (g *growth) ends() bool { return g.limit > 0 && g.sum > mostOfOne }

// why is the reason for which it fails the job.
func (g *growth) why() string {
	if math.IsNaN(g.ratio) || math.IsInf(g.ratio, 0) {
		return fmt.Sprintf("the loss was not finite, or more than %g times that of predicting nothing (train.max_loss_growth), over %d records",
			g.limit, g.over)
	}
	return fmt.Sprintf("the loss rose to %.3g a record, %.3g times that of predicting nothing, and stayed above %g times (train.max_loss_growth) over %d records",
		g.worst, g.ratio, g.limit, g.over)
}

// skips counts the batches of one trainer that are skipped because their loss
// or gradient is not finite.
type skips struct {
	share            float64 // of the batches that may be
	batches, skipped int64
}

// mayBeSkipped is how many batches may be skipped however few there were, unless
// none may.
const mayBeSkipped = 10

// add takes a batch, and tells whether too many are skipped.
func (s *skips) add(skipped bool) bool {
	s.batches++
	if !skipped {
		return false
	}
	s.skipped++
	return s.share == 0 || float64(s.skipped) > max(mayBeSkipped, s.share*float64(s.batches))
}

func (s *skips) why() string {
	return fmt.Sprintf("loss or gradient was not finite in %d of %d batches, more than may be skipped (train.max_skipped: %g)",
		s.skipped, s.batches, s.share)
}
