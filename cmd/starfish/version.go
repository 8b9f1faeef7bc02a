package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
)

func versionCommand(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(s.out, "starfish %s %s %s/%s\n", cli.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
