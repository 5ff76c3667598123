package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/agent"
)

func newRetire(o *options) *cobra.Command {
	var (
		timeout time.Duration
		patch   bool
	)
	cmd := &cobra.Command{
		Use:   "retire",
		Short: "Take the conditions that this agent wrote off the Node, before it is removed for good",
		Long: `Take the conditions that this agent wrote off the Node: once the agent is removed nobody keeps them true. Conditions of others are
not touched. The agent must not run. The removal of the package does this by itself.

With --patch nothing is done: what is printed takes the conditions off any Node whose agent has this configuration, by
"kubectl patch node NAME --subresource=status --patch-file=FILE". That is for the removal of a DaemonSet.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				return err
			}
			if patch {
				data, err := agent.RetirePatch(cfg, quiet())
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), string(data))
				}
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			removed, err := agent.Retire(ctx, cfg, quiet())
			if err != nil {
				return err
			}
			for _, name := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), "condition removed:", name)
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long the apiserver may take")
	cmd.Flags().BoolVar(&patch, "patch", false, "print the patch that does it instead")
	return cmd
}
