package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"

	"starfish/job"
	"starfish/predict"
	"starfish/reader"
	"starfish/trainer/model"
)

// predictor predicts the records of its inputs: one goroutine reads pieces of
// whole records, several parse and score them, and the caller of run writes
// them in their order. Pieces are reused, so their number bounds the memory.
type predictor struct {
	model   *predict.Model
	data    *inputs
	metrics model.Metrics // nil without labels
	log     logrus.FieldLogger

	good, bad int64
	firstBad  reader.BadRecord
	firstText []byte // the beginning of the piece with the first bad record

	// stopped: feed has not come to the end of the inputs. It is set before
	// feed closes order.
	stopped bool
}

// piece is a number of whole records on their way.
type piece struct {
	input  string
	line   int64 // of its first byte
	text   []byte
	layout *reader.Layout

	batch  reader.Batch
	flaws  []reader.Flaw
	scores []float64
	out    []byte
	err    error
	done   chan struct{}
}

// run writes one line for each record.
func (p *predictor) run(ctx context.Context, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	free := make(chan *piece, 4*workers)
	for range cap(free) {
		free <- &piece{done: make(chan struct{}, 1)}
	}
	work, order := make(chan *piece, cap(free)), make(chan *piece, cap(free))
	go func() {
		defer close(order)
		defer close(work)
		p.feed(ctx, free, work, order)
	}()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { p.score(work) })
	}
	err := p.write(ctx, to, order, free)
	if err == nil {
		group.Wait()
	}
	return err
}

// feed cuts the inputs into pieces.
func (p *predictor) feed(ctx context.Context, free chan *piece, work, order chan<- *piece) {
	next := func() *piece {
		select {
		case c := <-free:
			c.batch.Reset()
			c.err, c.flaws, c.scores, c.out = nil, c.flaws[:0], c.scores[:0], c.out[:0]
			return c
		case <-ctx.Done():
			return nil
		}
	}
	for _, in := range p.data.list {
		b, err := p.data.open(in)
		if err == nil {
			err = p.cut(in.name, b, next, free, work, order)
			b.Close()
		}
		if errors.Is(err, context.Canceled) {
			p.stopped = true
			return
		}
		if err != nil {
			c := next()
			if c == nil {
				p.stopped = true
				return
			}
			c.err = err
			c.done <- struct{}{}
			order <- c
			return
		}
	}
}

// cut cuts one input.
func (p *predictor) cut(name string, b *begun, next func() *piece, free, work, order chan<- *piece) error {
	pieces := reader.NewPieces(b, b.rest, b.layout, p.data.options)
	for line := b.lines + 1; ; {
		c := next()
		if c == nil {
			return context.Canceled
		}
		c.input, c.line, c.layout = name, line, b.layout
		text, err := pieces.Next(c.text)
		switch {
		case errors.Is(err, io.EOF):
			free <- c
			return nil
		case errors.Is(err, reader.ErrTooLong):
			c.text = c.text[:0]
			c.flaws = append(c.flaws, reader.Flaw{Reason: err.Error()})
			line++
			c.out = append(c.out, badLine...)
			c.done <- struct{}{}
			order <- c
			continue
		case err != nil:
			free <- c
			return unreadable(name, err)
		}
		c.text = text
		line += int64(lines(text))
		order <- c
		work <- c
	}
}

func lines(text []byte) int { return bytes.Count(text, []byte{'\n'}) }

// badLine stands for a record that cannot be read.
const badLine = "bad\n"

// score parses and predicts pieces until there are no more.
func (p *predictor) score(work <-chan *piece) {
	var text *reader.Text
	var layout *reader.Layout
	for c := range work {
		if text == nil || layout != c.layout {
			layout = c.layout
			text = reader.NewText(layout, p.data.options)
		}
		c.flaws, c.err = text.Parse(c.text, &c.batch, c.flaws)
		n := c.batch.Records()
		c.scores = slices.Grow(c.scores[:0], n)[:n]
		p.model.Predict(&c.batch, c.scores)
		c.format()
		c.done <- struct{}{}
	}
}

// format writes the piece's lines.
func (c *piece) format() {
	flaws := c.flaws
	for i := 0; ; i++ {
		for len(flaws) > 0 && flaws[0].Good == i {
			c.out = append(c.out, badLine...)
			flaws = flaws[1:]
		}
		if i == len(c.scores) {
			return
		}
		c.out = strconv.AppendFloat(c.out, c.scores[i], 'g', -1, 64)
		c.out = append(c.out, '\n')
	}
}

// write writes the pieces in their order. What is there is written out whenever
// nothing follows at the moment.
func (p *predictor) write(ctx context.Context, to io.Writer, order <-chan *piece, free chan<- *piece) error {
	w := bufio.NewWriterSize(to, 256<<10)
	for {
		c, ok, err := p.await(ctx, w, order)
		if err != nil {
			return err
		}
		if !ok && p.stopped {
			return context.Cause(ctx)
		}
		if !ok {
			return w.Flush()
		}
		if _, err := w.Write(c.out); err != nil {
			return err
		}
		if c.err != nil {
			return errors.Join(w.Flush(), located(c))
		}
		p.count(c)
		free <- c
	}
}

// located says in which input it was.
func located(c *piece) error {
	var exit *job.ExitError
	if errors.As(c.err, &exit) {
		return c.err
	}
	var open *reader.OpenQuoteError
	if errors.As(c.err, &open) {
		return unreadable(fmt.Sprintf("%s:%d", c.input, c.at(open.Offset)), c.err)
	}
	return unreadable(c.input, c.err)
}

// at is the line of a byte of the piece.
func (c *piece) at(offset int) int64 { return c.line + int64(lines(c.text[:min(offset, len(c.text))])) }

// await waits for the next piece, and flushes before it has to wait for input.
func (p *predictor) await(ctx context.Context, w *bufio.Writer, order <-chan *piece) (c *piece, ok bool, err error) {
	select {
	case c, ok = <-order:
	default:
		if err := w.Flush(); err != nil {
			return nil, false, err
		}
		select {
		case c, ok = <-order:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
	if ok {
		<-c.done
	}
	return c, ok, nil
}

// count adds a piece to the numbers and metrics.
func (p *predictor) count(c *piece) {
	p.good += int64(len(c.scores))
	if p.metrics != nil {
		model.AddBatch(p.metrics, &c.batch, c.scores)
	}
	for _, f := range c.flaws {
		if p.bad++; p.bad > shownBad {
			continue
		}
		b := reader.BadRecord{File: c.input, Line: c.at(f.Offset), Reason: f.Reason}
		if p.bad == 1 {
			p.firstBad, p.firstText = b, bytes.Clone(c.text[:min(len(c.text), 4<<10)])
		}
		p.log.WithField("record", b.String()).Warn("bad record")
	}
}
