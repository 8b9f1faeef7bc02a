// Command gen writes a range of ctrgen's synthetic click log.
//
//	go run ./bench/gen -rows 1000000 -seed 1 -formats libsvm,truth -out ctr/train
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"starfish/bench/ctrgen"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(2)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("gen", flag.ContinueOnError)
	fs.SetOutput(stderr)
	cfg := ctrgen.Default()
	rows := fs.Uint64("rows", 1000000, "rows")
	first := fs.Uint64("first", 0, "number of the first row")
	fs.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "seed of the model and of the rows")
	fs.IntVar(&cfg.Bits, "bits", cfg.Bits, "feature ids lie in [1, 2^bits)")
	fs.Float64Var(&cfg.Zipf, "zipf", cfg.Zipf, "Zipf exponent of the categories")
	fs.Float64Var(&cfg.LinSD, "lin", cfg.LinSD, "standard deviation of the linear part of the logit")
	fs.Float64Var(&cfg.PairSD, "pair", cfg.PairSD, "standard deviation of the pairwise part")
	fs.Float64Var(&cfg.Bias, "bias", cfg.Bias, "bias of the logit")
	out := fs.String("out", "ctr", "path prefix of the files written")
	formats := fs.String("formats", "libsvm,truth", "formats written: "+strings.Join(ctrgen.Formats(), ","))
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return write(cfg, *first, *rows, strings.Split(*formats, ","), *out, stdout)
}

func write(cfg ctrgen.Config, first, rows uint64, formats []string, out string, stdout io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	to := map[string]io.Writer{}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, format := range formats {
		f, err := os.Create(out + "." + format)
		if err != nil {
			return err
		}
		files = append(files, f)
		to[format] = f
	}
	s, err := ctrgen.Write(cfg, first, rows, to)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			return err
		}
	}
	enc := json.NewEncoder(stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}
