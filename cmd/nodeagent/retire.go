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
		Short: "Remove the conditions of this agent from the Node, before the agent is uninstalled",
		Long: `Remove the conditions that this agent wrote from the Node: once it is uninstalled nothing keeps
them up to date. Conditions of other writers are not touched. The agent must not run. Removing the
package does this by itself.

With --patch nothing is removed: it prints a patch that removes the conditions from any Node whose agent has
this configuration, by "kubectl patch node NAME --subresource=status --patch-file=FILE". That is for the removal
of a DaemonSet.`,
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
	cmd.Flags().BoolVar(&patch, "patch", false, "print the patch that removes them instead")
	return cmd
}
