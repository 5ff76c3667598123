package main

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent"
)

func newRun(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			return agent.Run(cmd.Context(), cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
}
