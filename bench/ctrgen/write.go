package ctrgen

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"runtime"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"
)

// block is how many rows are made at a time by one goroutine.
const block = 8192

// Summary describes the rows of a range.
type Summary struct {
	Rows         uint64  `json:"rows"`
	First        uint64  `json:"first"`
	Positives    uint64  `json:"positives"`
	KeysPerRow   float64 `json:"keys_per_row"`
	BayesLoss    float64 `json:"bayes_logloss"`    // of the true logit: no model can be better
	LinearLoss   float64 `json:"linear_logloss"`   // of the logit's true linear part
	ConstantLoss float64 `json:"constant_logloss"` // of the base rate
}

// appenders of the formats by name.
func appenders() map[string]func(*Row, []byte) []byte {
	return map[string]func(*Row, []byte) []byte{
		"libsvm": (*Row).AppendLibsvm,
		"vw":     (*Row).AppendVW,
		"vwns":   (*Row).AppendVWNamespaces,
		"ffm":    (*Row).AppendFFM,
		"tsv":    (*Row).AppendTSV,
		"truth":  (*Row).AppendTruth,
	}
}

// Formats lists the names of the formats.
func Formats() []string {
	var names []string
	for name := range appenders() {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// made is one block of rows.
type made struct {
	text      map[string][]byte
	positives uint64
	keys      int
	bayes     float64
	linear    float64
}

// Write writes rows first … first+rows-1 to a writer for each format.
func Write(c Config, first, rows uint64, to map[string]io.Writer) (Summary, error) {
	all := appenders()
	for format := range to {
		if all[format] == nil {
			return Summary{}, fmt.Errorf("ctrgen: format %q is none of %s", format, strings.Join(Formats(), ", "))
		}
	}
	if err := c.Validate(); err != nil {
		return Summary{}, err
	}
	blocks := (rows + block - 1) / block
	results := make(chan chan made, 4*runtime.GOMAXPROCS(0)) // blocks in order; bounds those not yet written
	var g errgroup.Group
	g.Go(func() error {
		defer close(results)
		return makeBlocks(c, first, rows, blocks, to, results)
	})
	s := Summary{Rows: rows, First: first}
	var sums made
	writers := map[string]*bufio.Writer{}
	for format, w := range to {
		writers[format] = bufio.NewWriterSize(w, 1<<20)
	}
	var failed error
	for r := range results {
		b := <-r
		for format, w := range writers {
			if _, err := w.Write(b.text[format]); err != nil && failed == nil {
				failed = err
			}
		}
		sums.add(b)
	}
	if err := g.Wait(); err != nil {
		return s, err
	}
	for _, w := range writers {
		if err := w.Flush(); err != nil && failed == nil {
			failed = err
		}
	}
	sums.describe(&s)
	return s, failed
}

// makeBlocks makes the blocks in parallel and hands them on in order.
func makeBlocks(c Config, first, rows, blocks uint64, to map[string]io.Writer, results chan<- chan made) error {
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
	for i := range blocks {
		r := make(chan made, 1)
		results <- r
		m := <-makers
		g.Go(func() error {
			r <- m.makeBlock(first+i*block, min(block, rows-i*block), to)
			makers <- m
			return nil
		})
	}
	return g.Wait()
}

func (m *Maker) makeBlock(first, rows uint64, to map[string]io.Writer) made {
	all := appenders()
	b := made{text: map[string][]byte{}}
	var r Row
	for i := range rows {
		m.Make(first+i, &r)
		b.positives += uint64(r.Label)
		b.keys += r.Keys()
		b.bayes += LogLoss(r.Label, r.Logit)
		b.linear += LogLoss(r.Label, r.Linear)
		for format := range to {
			b.text[format] = all[format](&r, b.text[format])
		}
	}
	return b
}

func (b *made) add(o made) {
	b.positives += o.positives
	b.keys += o.keys
	b.bayes += o.bayes
	b.linear += o.linear
}

func (b *made) describe(s *Summary) {
	if s.Rows == 0 {
		return
	}
	n := float64(s.Rows)
	s.Positives = b.positives
	s.KeysPerRow = float64(b.keys) / n
	s.BayesLoss = b.bayes / n
	s.LinearLoss = b.linear / n
	if p := float64(b.positives) / n; p > 0 && p < 1 {
		s.ConstantLoss = -(p*math.Log(p) + (1-p)*math.Log1p(-p))
	}
}
