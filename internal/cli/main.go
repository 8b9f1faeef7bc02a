package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"starfish/internal/spell"
	"starfish/job"
)

// envPrefix starts the name of every variable that stands for a flag.
const envPrefix = "STARFISH_"

// Usage marks an error as one of usage: exit code 2.
func Usage(format string, args ...any) error {
	return job.Exitf(job.ExitUsage, format, args...)
}

// Main runs the command that build makes with args, and returns the exit code of
// the process. Signals are taken care of before anything else is done, and until
// the process ends: one that comes early or late must not end it by itself. That
// a file has become too large (ulimit -f) is an error of the write.
func Main(build func() *cobra.Command, args []string, stderr io.Writer) int {
	signal.Ignore(syscall.SIGXFSZ)
	ctx, abort := withAborts(context.Background())
	ctx, _ = Signals(ctx, func() { abort(func() { os.Exit(int(job.ExitFailure)) }) })
	return Execute(ctx, build(), args, stderr)
}

// Execute is Main without signals.
func Execute(ctx context.Context, cmd *cobra.Command, args []string, stderr io.Writer) int {
	prepare(cmd)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if unknown := misspelt(cmd, args); unknown != nil {
		err = unknown // its flags mean nothing either
	}
	fmt.Fprintf(stderr, "%s: %s\n", cmd.Name(), plainError(err))
	return job.ExitCode(err)
}

// misspelt is the error of a verb that does not exist, also where one of the
// flags behind it was found first.
func misspelt(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	if err == nil && c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return noArgs(c, rest)
	}
	return nil
}

// prepare makes a command tree report errors the way Execute does.
func prepare(root *cobra.Command) {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Usage("%w%s; `%s --help` lists the flags", err, nearFlag(c.Flags(), err), c.CommandPath())
	})
	visit(root, func(c *cobra.Command) {
		c.SuggestionsMinimumDistance = 2 // edits that make a misspelt verb a known one
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

// nearFlag is a hint for a misspelt flag, as the rest of a sentence.
func nearFlag(fs *pflag.FlagSet, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return ""
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := spell.Nearest(unknown.GetSpecifiedName(), names); near != "" {
		return fmt.Sprintf(", did you mean --%s?", near)
	}
	return ""
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

// yields annotates a flag with those to which its variable yields.
const yields = "starfish-yields"

// Yield makes the variable of a flag count for nothing where another flag, one
// that excludes it, is given: a user's environment is no answer to what he asks
// for by hand.
func Yield(fs *pflag.FlagSet, name, to string) {
	if err := fs.SetAnnotation(name, yields, []string{to}); err != nil {
		panic(err) // there is no such flag
	}
}

// FromEnvironment sets each flag that was not given from its variable.
func FromEnvironment(fs *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || slices.ContainsFunc(f.Annotations[yields], func(to string) bool { return given[to] }) {
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

// Variables are the names of the environment variables that stand for flags.
func Variables(fs *pflag.FlagSet) []string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, Variable(f.Name)) })
	return names
}
