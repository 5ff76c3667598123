package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
)

func newVersion(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.answer(cmd.OutOrStdout(), map[string]string{"version": agent.Version, "go": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH}, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "nodeagent %s (%s, %s/%s)\n", agent.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return err
			}, nil)
		},
	}
}
