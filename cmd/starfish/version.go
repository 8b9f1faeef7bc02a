package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"starfish/internal/cli"
)

// versionAnswer is the answer of `starfish version`.
type versionAnswer struct {
	V        int    `json:"v"`
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"` // system/processor
}

func (a versionAnswer) text(b *strings.Builder) {
	fmt.Fprintf(b, "starfish %s %s %s\n", a.Version, a.Go, a.Platform)
}

func versionCommand(s streams) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  starfish version -o json",
		RunE: func(*cobra.Command, []string) error {
			if err := checkForm(form); err != nil {
				return err
			}
			return say(s.out, form, versionAnswer{answerVersion, cli.Version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
		},
	}
	registerForm(c, &form)
	return c
}
