package main

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"starfish/internal/cli"
	"starfish/internal/spell"
)

// completionCommand prints the script that makes a shell complete commands,
// flags and names of jobs. It stands for cobra's own, whose mistakes have other
// codes and more lines.
func completionCommand(s streams) *cobra.Command {
	scripts := map[string]func(root *cobra.Command, w io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"zsh":        (*cobra.Command).GenZshCompletion,
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
	}
	var shells []string
	for shell := range scripts {
		shells = append(shells, shell)
	}
	sort.Strings(shells)
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script of a shell: " + strings.Join(shells, ", "),
		Long: "Prints the script with which a shell completes commands, flags and, once --dir or --etcd-endpoints\n" +
			"stands in the line, names of jobs.",
		Example: "  source <(starfish completion bash)\n" +
			"  starfish completion zsh > \"${fpath[1]}/_starfish\"\n" +
			"  starfish completion fish > ~/.config/fish/completions/starfish.fish",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usage("name one shell: %s", strings.Join(shells, ", "))
			}
			write, ok := scripts[args[0]]
			if !ok {
				hint := ""
				if near := spell.Nearest(args[0], shells); near != "" {
					hint = fmt.Sprintf(", did you mean %q?", near)
				}
				return cli.Usage("unknown shell %q%s; there are %s", args[0], hint, strings.Join(shells, ", "))
			}
			return write(c.Root(), s.out)
		},
	}
}

// completeJobs completes the name of a job, if its etcd answers soon.
func (t *target) completeJobs(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), completionTimeout)
	defer cancel()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	at := *t
	at.Timeout = completionTimeout
	p, err := at.reach(ctx, quiet)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer p.close()
	names, _ := jobNames(ctx, p.store)
	return names, cobra.ShellCompDirectiveNoFileComp
}
