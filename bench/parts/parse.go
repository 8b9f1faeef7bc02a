package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"starfish/bench/bareloop"
	"starfish/internal/ctrgen"
	"starfish/reader"
)

// parsedRecords is the length of the click log that is parsed.
const parsedRecords = 100_000

func parsers() []part {
	return []part{{name: "libsvm parser, one core ÷ the bare loop's", unit: "CPU-s a million records", target: atLeast(0.5), open: parseRounds}}
}

// parseRounds reads a click log with package reader, batch by batch, and with
// the parser of the bare loop, which skips values and checks nothing.
func parseRounds(*config) (func() (pair, error), func() error, error) {
	dir, err := os.MkdirTemp("", "bench-parts-")
	if err != nil {
		return nil, nil, err
	}
	end := func() error { return os.RemoveAll(dir) }
	var text bytes.Buffer
	cfg := ctrgen.Default()
	cfg.Bits = 24
	if _, err := ctrgen.Write(context.Background(), cfg, 0, parsedRecords, "libsvm", &text, nil); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	name := filepath.Join(dir, "clicks")
	if err := os.WriteFile(name, text.Bytes(), 0o600); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	plan, err := reader.NewPlan([]string{name}, "libsvm", 4<<20)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	var b reader.Batch
	s := sides{
		of:   func(u usage) float64 { return u.cpu / parsedRecords * 1e6 },
		ours: func() error { return parseAll(plan, &b) },
		yardstick: func() error {
			if n := bareloop.Parse(text.Bytes(), 512); n != parsedRecords {
				return fmt.Errorf("%d records", n)
			}
			return nil
		},
	}
	return s.round, end, nil
}

func parseAll(plan *reader.Plan, b *reader.Batch) error {
	records := 0
	for chunk := range plan.Chunks() {
		r, err := plan.Open(context.Background(), chunk, reader.Options{Batch: 512, Bits: 24, Labels: reader.LabelBinary})
		if err != nil {
			return err
		}
		for err == nil {
			if err = r.Next(b); err == nil {
				records += b.Records()
			}
		}
		if err := r.Close(); err != nil {
			return err
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	if records != parsedRecords {
		return fmt.Errorf("%d records", records)
	}
	return nil
}
