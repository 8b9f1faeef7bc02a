package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/job"
)

// The forms in which a command answers.
const (
	formText = "text"
	formJSON = "json"
)

// question are the flags of a command that asks about a job or changes one: by
// which it finds the job, and in which form it answers.
type question struct {
	target
	form string
}

func (q *question) register(c *cobra.Command) {
	q.target.register(c.Flags())
	registerForm(c, &q.form)
	_ = c.RegisterFlagCompletionFunc("job", q.completeJobs)
}

// registerForm adds the flag of the form alone.
func registerForm(c *cobra.Command, form *string) {
	c.Flags().StringVarP(form, "output", "o", formText, "form of the output: text or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{formText, formJSON}, cobra.ShellCompDirectiveNoFileComp))
}

func checkForm(form string) error {
	if form != formText && form != formJSON {
		return cli.Usage("-o %q is neither text nor json", form)
	}
	return nil
}

// answer is what a command has found: JSON by its tags, and a text for people.
type answer interface {
	text(b *strings.Builder)
}

// ask finds the job, and says what find finds about it.
func (q *question) ask(ctx context.Context, s streams, find func(ctx context.Context, f *found) (answer, error)) error {
	return q.open(ctx, s, func(ctx context.Context, f *found) error {
		a, err := find(ctx, f)
		if err != nil {
			return err
		}
		return say(s.out, q.form, a)
	})
}

// open finds the job and has do do something with it.
func (q *question) open(ctx context.Context, s streams, do func(ctx context.Context, f *found) error) error {
	if err := checkForm(q.form); err != nil {
		return err
	}
	log, err := q.Logger(s.err)
	if err != nil {
		return err
	}
	f, err := q.target.open(ctx, log)
	if err != nil {
		return err
	}
	defer f.close()
	return do(ctx, f)
}

// say writes an answer.
func say(w io.Writer, form string, a answer) error {
	if form == formJSON {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(a)
	}
	var b strings.Builder
	a.text(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// answerVersion is the version of the JSON forms of all answers.
const answerVersion = 1

// about begins every answer about one job.
type about struct {
	V    int    `json:"v"`
	Job  string `json:"job"`
	UUID string `json:"uuid"`
}

func aboutJob(j job.Job) about {
	return about{V: answerVersion, Job: j.Spec.Job, UUID: j.UUID.String()}
}

// table writes rows of cells that are parted by tabs.
func table(b *strings.Builder, rows func(row func(cells ...string))) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	rows(func(cells ...string) {
		_, _ = io.WriteString(t, strings.TrimRight(strings.Join(cells, "\t"), "\t")+"\n")
	})
	_ = t.Flush() // a strings.Builder takes everything
}

// completionTimeout bounds what a shell's completion asks.
const completionTimeout = time.Second
