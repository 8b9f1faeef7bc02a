package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starfish/job"
)

// envPrefix starts the name of every variable that stands for a flag.
const envPrefix = "STARFISH_"

// Usage marks an error as one of usage: exit code 2.
func Usage(format string, args ...any) error {
	return job.Exitf(job.ExitUsage, format, args...)
}

// Main runs a command with args and returns the exit code of the process.
func Main(cmd *cobra.Command, args []string, stderr io.Writer) int {
	ctx, stop := Signals(context.Background(), func() { os.Exit(int(job.ExitFailure)) })
	defer stop()
	return Execute(ctx, cmd, args, stderr)
}

// Execute is Main without signals.
func Execute(ctx context.Context, cmd *cobra.Command, args []string, stderr io.Writer) int {
	prepare(cmd)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), oneLine(err))
	return job.ExitCode(err)
}

// oneLine is an error's text without line breaks, but for lists of several
// faults, which keep one line each.
func oneLine(err error) string {
	return strings.TrimRight(err.Error(), "\n")
}

// prepare makes a command tree report errors the way Execute does.
func prepare(root *cobra.Command) {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SuggestionsMinimumDistance = 2 // edits that make a misspelt verb a known one
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Usage("%w; `%s --help` lists the flags", err, c.CommandPath())
	})
	visit(root, func(c *cobra.Command) {
		if c.Args == nil {
			c.Args = noArgs
		}
		run := c.RunE
		if run == nil {
			return
		}
		c.RunE = func(c *cobra.Command, args []string) error {
			if err := FromEnvironment(c.Flags(), os.LookupEnv); err != nil {
				return err
			}
			return run(c, args)
		}
	})
}

func visit(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		visit(sub, f)
	}
}

// noArgs refuses positional arguments; in a command with verbs they are
// misspelt verbs.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasSubCommands() {
		return Usage("unexpected argument %q; `%s --help` shows the usage", args[0], c.CommandPath())
	}
	hint := ""
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(", did you mean %q?", near[0])
	}
	return Usage("unknown command %q%s; `%s --help` lists the commands", args[0], hint, c.CommandPath())
}

// FromEnvironment sets each flag that was not given from its variable.
func FromEnvironment(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := Variable(f.Name)
		text, ok := lookup(name)
		if !ok || text == "" {
			return
		}
		if err := fs.Set(f.Name, text); err != nil {
			errs = append(errs, fmt.Errorf("environment %s=%q: %w", name, text, err))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return Usage("%w", err)
	}
	return nil
}

// Variable is the name of the environment variable that stands for a flag.
func Variable(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ErrSignal is the cause of a context that a signal cancelled.
var ErrSignal = errors.New("stopped by a signal")

// Signals returns a context that the first SIGTERM or SIGINT cancels, with a
// cause that is ErrSignal; each further one calls again.
func Signals(parent context.Context, again func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case s := <-c:
				if first {
					cancel(fmt.Errorf("%w (%v)", ErrSignal, s))
				} else {
					again()
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(c)
		close(done)
		cancel(nil)
	}
}
