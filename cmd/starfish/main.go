// Command starfish is the operator's tool: it runs a whole job on this machine,
// says how a job stands, and exports what was trained.
//
// `starfish run` starts an embedded etcd (or uses one that is there), the job's
// pservers and trainers as processes of their own, and keeps them running until
// the job is complete. It does no training itself and decides nothing: it could
// be killed at any moment, and another `starfish run` on the same directory
// would go on where the job stood.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
)

func main() {
	build := func() *cobra.Command { return command(streams{out: os.Stdout, err: os.Stderr}) }
	os.Exit(cli.Main(build, os.Args[1:], os.Stderr))
}

// streams are where a command writes: results to out, everything else to err.
type streams struct {
	out, err *os.File
}

func command(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "starfish",
		Short: "Train models with parameter servers and no master",
		Long: "starfish trains models with parameter servers and no master: etcd holds the few facts\n" +
			"that must be agreed on, and any process may die at any moment.",
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(runCommand(s), submitCommand(s), statusCommand(s), jobsCommand(s), queueCommand(s), checkpointCommand(s), deleteCommand(s), exportCommand(s), predictCommand(s), inspectCommand(s),
		generateCommand(s), completionCommand(s), versionCommand(s))
	return root
}
