package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/clock"
	"starfish/internal/ctrgen"
)

func generateCommand(s streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "generate",
		Short: "Make data to try things with",
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(generateCTRCommand(s))
	return c
}

// generation are the flags of `starfish generate ctr`.
type generation struct {
	ctrgen.Config
	records uint64
	first   uint64
	format  string
	out     string
}

func generateCTRCommand(s streams) *cobra.Command {
	g := generation{Config: ctrgen.Default()}
	c := &cobra.Command{
		Use:   "ctr --rows N -o FILE",
		Short: "Make a click log whose best possible loss is known",
		Long: "Makes a synthetic log of shown advertisements: 13 counts and 26 categories a record, as skewed as in\n" +
			"practice, and a click drawn from a hidden model. Record i depends only on --seed and i, so that parts made\n" +
			"one after the other, or on several machines, are parts of one log; test data are a part that nobody trains on.",
		Example: "  starfish generate ctr --rows 1000000 -o train.libsvm\n" +
			"  starfish generate ctr --rows 200000 --first 100000000 -o test.libsvm\n" +
			"  starfish generate ctr --rows 1000 --format tsv -o - | head",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.validate(c.Flags().Changed("rows")); err != nil {
				return err
			}
			return g.run(c.Context(), s, clock.System)
		},
	}
	f := c.Flags()
	f.Uint64Var(&g.records, "rows", 0, "how many records to make (required)")
	f.Uint64Var(&g.first, "first", 0, "number of the first record")
	f.Uint64Var(&g.Seed, "seed", g.Seed, "seed of the hidden model and of the records")
	f.IntVar(&g.Bits, "bits", g.Bits, "keys are below 2^bits; 4 to 32")
	f.StringVar(&g.format, "format", "libsvm", "form of the text: "+strings.Join(ctrgen.Formats(), ", "))
	f.StringVarP(&g.out, "output", "o", "", "file to write (required), compressed if it ends in .gz or .zst; - is stdout")
	return c
}

// validate checks what can be checked without I/O.
func (g *generation) validate(counted bool) error {
	if !counted {
		return cli.Usage("--rows is missing: say how many records to make")
	}
	if g.out == "" {
		return cli.Usage("-o is missing: name the file to write, or - for stdout")
	}
	if !slices.Contains(ctrgen.Formats(), g.format) {
		return cli.Usage("--format %q is none of %s", g.format, strings.Join(ctrgen.Formats(), ", "))
	}
	if g.Bits < 4 || g.Bits > 32 {
		return cli.Usage("--bits %d is not between 4 and 32", g.Bits)
	}
	if g.records > 1<<63 || g.first > 1<<63 {
		return cli.Usage("--rows and --first are at most 2^63")
	}
	return nil
}

// run makes the file. What was made is said on stdout, or on stderr if the
// records go to stdout.
func (g *generation) run(ctx context.Context, s streams, clk clock.Clock) error {
	if g.out == "-" {
		made, err := g.write(ctx, s.out, s.err, clk)
		if err != nil {
			return err
		}
		return g.describe(s.err, made)
	}
	if err := checkWritable("-o", g.out); err != nil {
		return err
	}
	var made ctrgen.Summary
	err := writeWhole(g.out, func(f *os.File) (err error) {
		made, err = g.write(ctx, f, s.err, clk)
		return err
	})
	if err != nil {
		return err
	}
	return g.describe(s.out, made)
}

// write writes the records, compressed as the name says, and shows how far it
// is.
func (g *generation) write(ctx context.Context, to io.Writer, progress *os.File, clk clock.Clock) (made ctrgen.Summary, err error) {
	w, err := compressor(g.out, to)
	if err != nil {
		return made, err
	}
	defer func() {
		if closing := w.Close(); err == nil {
			err = closing
		}
	}()
	scr := newScreen(progress)
	defer scr.show("")
	begun := clk.Now()
	said := begun
	return ctrgen.Write(ctx, g.Config, g.first, g.records, g.format, w, func(n uint64) {
		now := clk.Now()
		line := fmt.Sprintf("%3.0f%%  %s records", 100*float64(n)/float64(g.records), thousands(int64(n)))
		if took := now.Sub(begun); took > time.Second {
			left := time.Duration(float64(took) * float64(g.records-n) / float64(n))
			line += "  ETA " + left.Round(time.Second).String()
		}
		scr.show(line)
		if !scr.live && now.Sub(said) >= logEvery {
			said = now
			fmt.Fprintln(progress, line)
		}
	})
}

// compressor compresses what a file of that name should hold.
func compressor(file string, to io.Writer) (io.WriteCloser, error) {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".gz":
		return gzip.NewWriter(to), nil
	case ".zst":
		return zstd.NewWriter(to)
	}
	return plain{to}, nil
}

// plain leaves closing to whoever opened it.
type plain struct{ io.Writer }

// Close does nothing.
func (plain) Close() error { return nil }

// describe says what was made, and what can be learnt from it.
func (g *generation) describe(w io.Writer, made ctrgen.Summary) error {
	if made.Records == 0 {
		_, err := fmt.Fprintln(w, "no records made")
		return err
	}
	_, err := fmt.Fprintf(w, "records   %s, from %s on, with %s clicks (%.1f %%) and %.1f keys each\n"+
		"log-loss  %.5f at best; %.5f of the true model without its interactions; %.5f of the click rate alone\n",
		thousands(int64(made.Records)), thousands(int64(made.First)), thousands(int64(made.Positives)),
		100*float64(made.Positives)/float64(made.Records), made.KeysPerRecord, made.BayesLoss, made.LinearLoss, made.ConstantLoss)
	return err
}
