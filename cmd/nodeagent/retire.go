package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
)

func newRetire(o *options) *cobra.Command {
	var (
		timeout time.Duration
		patch   bool
	)
	cmd := &cobra.Command{
		Use:   "retire",
		Short: "Remove all that this agent wrote about the Node, before you uninstall the agent",
		Long: `Remove all that this agent wrote about its Node: conditions, taint, ConfigMap and claims of the fleet
budget. After the agent is uninstalled they would be outdated. The command does not touch objects of others. Stop
the agent first. The removal of the package runs this command by itself.

--patch removes nothing: it prints a patch that removes the conditions from any Node whose agent has this
configuration, with "kubectl patch node NAME --subresource=status --patch-file=FILE". Use it to remove a
DaemonSet.

Exit codes: 0 nothing that this agent wrote is left; 2 something may be left: the agent's state could not be read, or
the apiserver did not answer.`,
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
			for _, line := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long the apiserver may take")
	cmd.Flags().BoolVar(&patch, "patch", false, "only print the patch that removes the conditions")
	return cmd
}
