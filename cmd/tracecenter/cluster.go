package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
)

func newFailures(o *options) *cobra.Command {
	var window, namespace, nodes, reason string
	cmd := &cobra.Command{
		Use:   "failures",
		Short: "Why were deliveries late? The misses, grouped by reason",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.Failures
			query := url.Values{"window": {window}, "namespace": {namespace}, "nodes": {nodes}, "reason": {reason}}
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/failures?"+query.Encode(), &answer)
			if err != nil {
				return err
			}
			for _, g := range answer.Groups {
				if printed {
					break
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%5d  %-9s %-24s %-6s  newest %s/%s", g.N, g.Act, plain(g.Reason), plain(g.Class),
					plain(g.Newest.Namespace), plain(g.Newest.Name))
				for i, node := range g.Nodes {
					if i == 0 {
						fmt.Fprint(cmd.OutOrStdout(), ", nodes")
					}
					fmt.Fprintf(cmd.OutOrStdout(), " %s (%d)", plain(node.Name), node.N)
				}
				fmt.Fprintln(cmd.OutOrStdout())
			}
			if answer.Total > 0 {
				return errProblems
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&window, "window", "1h", "5m, 1h, 1d or 7d")
	cmd.Flags().StringVar(&namespace, "namespace", "", "only pods of a namespace")
	cmd.Flags().StringVar(&nodes, "nodes", "", "only pods of nodes, separated by commas")
	cmd.Flags().StringVar(&reason, "reason", "", "only misses with a reason")
	return cmd
}

func newHealth(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Is the cluster healthy, and are its components online?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var state health.State
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/health", &state)
			if err != nil {
				return err
			}
			if !printed {
				if err := o.printHealth(cmd, state); err != nil {
					return err
				}
			}
			switch state.Level {
			case health.Healthy:
				return nil
			case health.Unknown:
				return errCouldNotTell
			}
			return errProblems
		},
	}
}

func (o *options) printHealth(cmd *cobra.Command, state health.State) error {
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s since %s; %d nodes, %d faulty; %d pods stay in Terminating\n", state.Level, state.Since.Format(time.RFC3339), state.Nodes,
		state.FaultyNodes, state.Leftovers)
	for _, cause := range state.Causes {
		fmt.Fprintf(w, "  %s: %s\n", cause.Level, plain(cause.Text))
	}
	var answer api.Components
	if _, err := o.ask(cmd.Context(), w, "/v1/components?window=1d", &answer); err != nil {
		return err
	}
	for _, c := range answer.Components {
		fmt.Fprintf(w, "  %-18s %-28s %-8s online in a day %s", plain(c.Component), plain(c.Instance), c.State.State, percent(c.Rate))
		if c.Why != "" {
			fmt.Fprintf(w, "  %s", plain(c.Why))
		}
		fmt.Fprintln(w)
	}
	return nil
}

func newNodes(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Which nodes fail their pods?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.Nodes
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/nodes", &answer)
			if err != nil {
				return err
			}
			if answer.Mass && !printed {
				fmt.Fprintln(cmd.OutOrStdout(), "So many nodes fail their pods that the fault is the cluster's.")
			}
			for _, f := range answer.Faults {
				if !printed {
					fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  %d of %d pods, %.2f %% on the other nodes, since %s\n", plain(f.Node), f.Kind, f.Misses,
						f.Acts, 100*f.Others, f.Since.Format(time.RFC3339))
				}
			}
			if len(answer.Faults) > 0 || answer.Mass {
				return errProblems
			}
			return nil
		},
	}
}
