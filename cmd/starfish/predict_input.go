package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"starfish/internal/cli"
	"starfish/job"
	"starfish/reader"
)

// inputs are the data to predict.
type inputs struct {
	format  string
	columns *reader.Columns // of formats that have some
	options reader.Options
	// labelled: all inputs have labels, and they are read.
	labelled bool
	// lacks are columns of weight and group that are not in all inputs.
	lacks []string
	// whole: line breaks in quotes are allowed in all files.
	whole bool
	list  []input
}

// input is one file, or stdin.
type input struct {
	name string
	// size is what the file had when it was looked at.
	size int64
	// begun is stdin, of which the beginning has been read.
	begun *begun
}

// begun is an input that is being read, behind its header.
type begun struct {
	io.ReadCloser
	layout *reader.Layout
	rest   []byte // what has been read already
	lines  int64  // how many lines were passed over
}

// standard makes stdin the only input. It waits for the header, if there is one.
func (d *inputs) standard(ctx context.Context, stdin io.Reader) error {
	var b *begun
	read := make(chan error, 1)
	go func() {
		var err error
		b, err = d.begin("stdin", io.NopCloser(stdin), false)
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			return err
		}
	case <-ctx.Done(): // and nobody knows when the read ends
		return context.Cause(ctx)
	}
	d.list = []input{{name: "stdin", begun: b}}
	return nil
}

// files looks at the beginning of every file, so that one that lacks columns is
// known before anything is written.
func (d *inputs) files(names []string) error {
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return cli.Usage("%w", err)
		}
		if info.Size() == 0 {
			continue
		}
		in := input{name: name, size: info.Size()}
		b, err := d.open(in)
		if err != nil {
			return err
		}
		b.Close()
		d.list = append(d.list, in)
	}
	if len(d.list) == 0 {
		return cli.Usage("every file is empty")
	}
	return nil
}

// open begins to read an input.
func (d *inputs) open(in input) (*begun, error) {
	if in.begun != nil {
		return in.begun, nil
	}
	f, err := os.Open(in.name)
	if err != nil {
		return nil, job.Exit(job.ExitData, err)
	}
	content := reader.Content(in.name, f, in.size)
	b, err := d.begin(in.name, content, reader.Compressed(in.name))
	if err != nil {
		content.Close()
		f.Close()
		return nil, err
	}
	b.ReadCloser = fileContent{content, f}
	return b, nil
}

// fileContent closes the file too.
type fileContent struct {
	io.ReadCloser
	f *os.File
}

func (c fileContent) Close() error { return errors.Join(c.ReadCloser.Close(), c.f.Close()) }

// header bounds how far into an input its first line may reach.
const header = 1 << 20

// begin reads the header, if the format has one.
func (d *inputs) begin(name string, r io.ReadCloser, multiline bool) (*begun, error) {
	b := &begun{ReadCloser: r}
	if d.columns == nil {
		return b, nil
	}
	multiline = multiline || d.whole
	for piece := make([]byte, 64<<10); ; {
		n, err := r.Read(piece)
		b.rest = append(b.rest, piece[:n]...)
		final := errors.Is(err, io.EOF)
		if err != nil && !final {
			return nil, unreadable(name, err)
		}
		l, start, ok, err := reader.NewLayout(d.format, *d.columns, b.rest, final, multiline)
		switch {
		case err != nil:
			return nil, cli.Usage("%s: %w%s", name, err, d.looks(b.rest))
		case ok && final && len(bytes.TrimSpace(b.rest)) == 0:
			return nil, cli.Usage("%s is empty: there is not even a line that names the columns", name)
		case ok:
			start = min(start, len(b.rest)) // the last line need not end
			d.labelled = d.labelled && (l.Labelled() || len(b.rest) == start && final)
			for _, name := range l.Lacks() {
				if !slices.Contains(d.lacks, name) {
					d.lacks = append(d.lacks, name)
				}
			}
			b.lines = int64(lines(b.rest[:start]))
			b.layout, b.rest = l, b.rest[start:]
			return b, nil
		case len(b.rest) > header:
			return nil, cli.Usage("%s: the first line does not end within %d bytes: is it %s?%s", name, header, d.format, d.looks(b.rest))
		}
	}
}

// looks is advice, as the rest of a sentence, about an input that cannot be
// read and begins like this.
func (d *inputs) looks(head []byte) string {
	what := reader.LooksLike(d.format, d.columns, head)
	if what == "" {
		return ""
	}
	return "; the input " + what
}

// unreadable explains an error of reading.
func unreadable(name string, err error) error {
	if errors.Is(err, reader.ErrBadData) {
		return job.Exit(job.ExitFailure, fmt.Errorf("%s: %w", name, err))
	}
	return job.Exit(job.ExitData, fmt.Errorf("%s: %w", name, err))
}
