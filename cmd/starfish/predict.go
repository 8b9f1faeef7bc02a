package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/job"
	"starfish/predict"
	"starfish/reader"
	"starfish/trainer/model"
)

// predictOptions are the flags of `starfish predict`.
type predictOptions struct {
	cli.Logging

	model    string
	inputs   []string
	output   string
	format   string
	label    string
	noLabels bool
	metrics  string
}

func predictCommand(s streams) *cobra.Command {
	var o predictOptions
	c := &cobra.Command{
		Use:   "predict -m MODEL -i DATA",
		Short: "Predict the records of files or of stdin with an exported model",
		Long: "Writes one line for each record, in their order: the prediction in full precision, or `bad` for a\n" +
			"record that cannot be read. If the data have labels it ends with the metrics, on stderr.",
		Example: "  starfish predict -m model.npz -i new.csv -o predictions.txt\n" +
			"  tail -f log.csv | starfish predict -m model.npz -i - --no-labels",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := o.Logger(s.err)
			if err != nil {
				return err
			}
			return o.run(c.Context(), s, c.InOrStdin(), log)
		},
	}
	fs := c.Flags()
	fs.StringVarP(&o.model, "model", "m", "", "file of the model, as export wrote it (required)")
	fs.StringArrayVarP(&o.inputs, "input", "i", nil, "file, directory or glob with records, .gz and .zst too; - is stdin (required; may be repeated)")
	fs.StringVarP(&o.output, "output", "o", "", "file for the predictions (default: stdout)")
	fs.StringVar(&o.format, "format", "", "csv, tsv or libsvm (default: that of the model's spec)")
	fs.StringVar(&o.label, "label", "", "column with the label (default: that of the model's spec)")
	fs.BoolVar(&o.noLabels, "no-labels", false, "read no labels: libsvm lines begin with a key; columns of label, weight and group are passed over")
	fs.StringVar(&o.metrics, "metrics", "", "also write the metrics as JSON to this `file`, in the form of test in a result")
	o.Logging.Register(fs)
	return c
}

func (o *predictOptions) validate() error {
	switch {
	case o.model == "":
		return cli.Usage("-m is missing: name the file of the model")
	case len(o.inputs) == 0:
		return cli.Usage("-i is missing: name the data, - for stdin")
	case len(o.inputs) > 1 && strings.Contains("\x00"+strings.Join(o.inputs, "\x00")+"\x00", "\x00-\x00"):
		return cli.Usage("-i -: stdin cannot be read together with files")
	case o.metrics == "-":
		return cli.Usage("--metrics goes to a file, not to -")
	case o.metrics != "" && o.noLabels:
		return cli.Usage("--metrics needs labels, and --no-labels reads none")
	case o.label != "" && o.noLabels:
		return cli.Usage("--label and --no-labels exclude each other")
	}
	return errors.Join(checkWritable("-o", o.output), checkWritable("--metrics", o.metrics))
}

// run predicts everything.
func (o *predictOptions) run(ctx context.Context, s streams, stdin io.Reader, log logrus.FieldLogger) error {
	if err := o.validate(); err != nil {
		return err
	}
	m, err := predict.Load(o.model)
	switch {
	case errors.Is(err, model.ErrUnknown):
		return cli.Usage("%w; a model of your own is predicted with the Go package starfish/predict, LoadWith", err)
	case err != nil:
		return cli.Usage("%w", err)
	}
	d, err := o.data(ctx, m, stdin)
	if err != nil {
		return err
	}
	if o.label != "" && !d.labelled {
		return cli.Usage("--label: not all of the data have a column %q", o.label)
	}
	if o.metrics != "" && !d.labelled {
		return cli.Usage("--metrics needs labels, and the data have no column %q; --label names another", d.columns.Label)
	}
	p := &predictor{model: m, data: d, log: log}
	if d.labelled {
		p.metrics = m.NewMetrics()
	}
	if o.output == "" || o.output == "-" {
		err = p.run(ctx, s.out)
	} else {
		err = writeWhole(o.output, func(f *os.File) error { return p.run(ctx, f) })
	}
	if err != nil {
		return err
	}
	return o.finish(s, p)
}

// data finds the inputs and what is in them.
func (o *predictOptions) data(ctx context.Context, m *predict.Model, stdin io.Reader) (*inputs, error) {
	d := &inputs{format: o.format, options: m.Options(), labelled: !o.noLabels, whole: m.Spec().Data.Chunk == job.WholeFile}
	if d.format == "" {
		d.format = m.Spec().Data.Format
	}
	switch d.format {
	case reader.Libsvm:
		if o.label != "" {
			return nil, cli.Usage("--label: libsvm text has no columns")
		}
		if o.noLabels {
			d.options.Labels = reader.LabelNone
		}
	case reader.CSV, reader.TSV:
		c, err := m.Columns(d.format, !o.noLabels)
		if err != nil {
			return nil, cli.Usage("%w", err)
		}
		if o.label != "" {
			c.Label = o.label
		}
		d.columns = &c
	default:
		return nil, cli.Usage("--format %s: it is csv, tsv or libsvm", d.format)
	}
	if len(o.inputs) == 1 && o.inputs[0] == "-" {
		return d, d.standard(ctx, stdin)
	}
	files, _, err := reader.Expand(o.inputs)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	return d, d.files(files)
}

// shownBad is how many bad records are named.
const shownBad = 10

// finish says what was done.
func (o *predictOptions) finish(s streams, p *predictor) error {
	if p.good == 0 && p.bad > 0 {
		hint := p.data.looks(p.firstText)
		if hint == "" && p.data.format == reader.Libsvm && !o.noLabels {
			hint = "; if the lines begin without a label, give --no-labels"
		}
		return job.Exitf(job.ExitFailure, "all %s records are bad, the first: %s%s", thousands(p.bad), p.firstBad, hint)
	}
	text := "predicted " + plural(p.good, "record", "records")
	if p.bad > 0 {
		text += fmt.Sprintf(", %s bad", thousands(p.bad))
	}
	if p.metrics != nil {
		if len(p.data.lacks) > 0 {
			text += fmt.Sprintf(" without the column %s", strings.Join(p.data.lacks, " and "))
		}
		r := model.TestResult(p.good, p.metrics)
		text += ": " + metrics(r)
		if err := o.writeMetrics(r); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(s.err, text)
	return err
}

func (o *predictOptions) writeMetrics(r *job.TestResult) error {
	if o.metrics == "" {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeWhole(o.metrics, func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}
