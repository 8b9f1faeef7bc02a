package ctrgen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// block is how many records are made at a time by one goroutine.
const block = 8192

// Summary describes the records of a range.
type Summary struct {
	Records       uint64
	First         uint64
	Positives     uint64
	KeysPerRecord float64
	// Mean losses of the range, natural logarithm: of the true logit, which no
	// model beats but by chance; of the logit's true linear part; of the base
	// rate.
	BayesLoss, LinearLoss, ConstantLoss float64
}

// appender appends a record's text.
type appender func(*Record, []byte) []byte

// appenders of the formats by name.
func appenders() map[string]appender {
	return map[string]appender{
		"libsvm": (*Record).AppendLibsvm,
		"vw":     (*Record).AppendVW,
		"vwns":   (*Record).AppendVWNamespaces,
		"ffm":    (*Record).AppendFFM,
		"tsv":    (*Record).AppendTSV,
	}
}

// Formats lists the names of the formats.
func Formats() []string {
	var names []string
	for name := range appenders() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Write writes records first … first+records-1 to w and describes them. After
// each block of them it calls progress, unless that is nil, with how many are
// written.
func Write(ctx context.Context, c Config, first, records uint64, format string, w io.Writer, progress func(written uint64)) (Summary, error) {
	s := Summary{Records: records, First: first}
	appendTo := appenders()[format]
	if appendTo == nil {
		return s, fmt.Errorf("ctrgen: format %q is none of %s", format, strings.Join(Formats(), ", "))
	}
	if records > math.MaxUint64-first {
		return s, fmt.Errorf("ctrgen: %d records from %d on go beyond number 2^64-1", records, first)
	}
	if err := c.Validate(); err != nil {
		return s, err
	}
	results := make(chan chan made, 4*runtime.GOMAXPROCS(0)) // blocks in order; bounds those not yet written
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(results)
		return makeBlocks(ctx, c, first, records, appendTo, results)
	})
	var sums made
	g.Go(func() error {
		out := bufio.NewWriterSize(w, 1<<20)
		for r := range results {
			b := <-r
			if _, err := out.Write(b.text); err != nil {
				return err
			}
			sums.add(b)
			if progress != nil {
				progress(sums.records)
			}
		}
		return out.Flush()
	})
	if err := g.Wait(); err != nil {
		return s, err
	}
	sums.describe(&s)
	return s, nil
}

// makeBlocks makes the blocks in parallel and hands them on in order.
func makeBlocks(ctx context.Context, c Config, first, records uint64, appendTo appender, results chan<- chan made) error {
	workers := runtime.GOMAXPROCS(0)
	makers := make(chan *Maker, workers)
	for range workers {
		m, err := New(c)
		if err != nil {
			return err
		}
		makers <- m
	}
	var g errgroup.Group
	for done := uint64(0); done < records; done += min(block, records-done) {
		r := make(chan made, 1)
		select {
		case results <- r:
		case <-ctx.Done():
			_ = g.Wait() // none of them fails
			return context.Cause(ctx)
		}
		m := <-makers
		g.Go(func() error {
			r <- m.makeBlock(first+done, min(block, records-done), appendTo)
			makers <- m
			return nil
		})
	}
	return g.Wait()
}

// made is one block of records.
type made struct {
	text      []byte
	records   uint64
	positives uint64
	keys      int
	bayes     float64
	linear    float64
}

func (m *Maker) makeBlock(first, records uint64, appendTo appender) made {
	b := made{records: records}
	var r Record
	for i := range records {
		m.Make(first+i, &r)
		b.positives += uint64(r.Label)
		b.keys += r.Keys()
		b.bayes += LogLoss(r.Label, r.Logit)
		b.linear += LogLoss(r.Label, r.Linear)
		b.text = appendTo(&r, b.text)
	}
	return b
}

func (b *made) add(o made) {
	b.records += o.records
	b.positives += o.positives
	b.keys += o.keys
	b.bayes += o.bayes
	b.linear += o.linear
}

func (b *made) describe(s *Summary) {
	if b.records == 0 {
		return
	}
	n := float64(b.records)
	s.Positives = b.positives
	s.KeysPerRecord = float64(b.keys) / n
	s.BayesLoss = b.bayes / n
	s.LinearLoss = b.linear / n
	if p := float64(b.positives) / n; p > 0 && p < 1 {
		s.ConstantLoss = -(p*math.Log(p) + (1-p)*math.Log1p(-p))
	}
}
