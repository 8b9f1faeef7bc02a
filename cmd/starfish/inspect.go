package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/job"
	"starfish/reader"
)

func inspectCommand(s streams) *cobra.Command {
	var o reader.InspectOptions
	var p proposal
	var form, header, delimiter string
	c := &cobra.Command{
		Use:   "inspect-data FILE",
		Args:  cobra.ArbitraryArgs,
		Short: "Say what a data file holds and propose a spec",
		Long: "Reads a file of csv, tsv or libsvm text and prints a spec for it: the types of its columns, their ranges and\n" +
			"what they might be scaled by, and how the labels are spread. It is a proposal: look through it.",
		Example: "  starfish inspect-data people.csv > people.yaml\n  starfish inspect-data --label income -o json people.csv.gz",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("name one file to inspect")
			}
			if form != "yaml" && form != "json" {
				return cli.Usage("-o %q is neither yaml nor json", form)
			}
			switch o.Format {
			case "", job.FormatCSV, job.FormatTSV, job.FormatLibsvm:
			default:
				return cli.Usage("--format %q is not one of csv, tsv, libsvm", o.Format)
			}
			switch header {
			case "auto":
			case "true", "false":
				known := header == "true"
				o.Header = &known
			default:
				return cli.Usage("--header %q is not one of auto, true, false", header)
			}
			if len(delimiter) > 1 || o.Records < 0 {
				return cli.Usage("--delimiter must be one character, and --records not below 0")
			}
			if delimiter != "" {
				o.Delimiter = delimiter[0]
			}
			profile, err := reader.Inspect(c.Context(), args[0], o)
			if errors.Is(err, reader.ErrNoData) || errors.Is(err, reader.ErrColumns) || errors.Is(err, reader.ErrFormat) {
				return job.Exit(job.ExitUsage, err)
			}
			if err != nil {
				return err
			}
			p.profile = profile
			text, err := p.yaml()
			if err != nil {
				return err
			}
			if form == "json" {
				out, err := json.MarshalIndent(profile, "", " ")
				if err != nil {
					return err
				}
				text = string(out) + "\n"
			}
			_, err = fmt.Fprint(s.out, text)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&p.label, "label", "", "the column with the label (default: guessed)")
	f.StringVar(&p.weight, "weight", "", "the column with the weight of a record (default: none)")
	f.StringVar(&p.group, "group", "", "the column that says which records belong together (default: none)")
	f.StringVar(&o.Format, "format", "", "csv, tsv or libsvm (default: by the name and the first line)")
	f.StringVar(&header, "header", "auto", "does the first line name the columns? auto, true or false")
	f.StringVar(&delimiter, "delimiter", "", "what parts fields (default: by the first line)")
	f.StringVar(&o.Comment, "comment", "", "lines that begin with it are passed over")
	f.Int64Var(&o.Records, "records", 1_000_000, "how many records to look at; 0: all")
	f.StringVarP(&form, "output", "o", "yaml", "yaml, a spec; or json, what was found")
	return c
}
