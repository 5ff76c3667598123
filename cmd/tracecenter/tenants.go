package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
)

func newTenants(o *options) *cobra.Command {
	var window, namespace string
	cmd := &cobra.Command{
		Use:   "tenants",
		Short: "Whose requests were throttled, and whose pods took the last capacity?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.Tenants
			query := url.Values{"window": {window}, "namespace": {namespace}}
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/tenants?"+query.Encode(), &answer)
			if err != nil || printed {
				return err
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "%s until %s\n", answer.Window, answer.AsOf.Format(time.RFC3339))
			if len(answer.Requests) > 0 {
				fmt.Fprintf(w, "\n%-30s %10s %10s %10s\n", "FLOWSCHEMA", "SERVED", "THROTTLED", "SHARE")
			}
			for _, q := range answer.Requests {
				fmt.Fprintf(w, "%-30s %10d %10d %10s\n", plain(q.FlowSchema), q.Served, q.Throttled, percent(q.Share))
			}
			fmt.Fprintf(w, "\n%d creations were missed because no node had room\n", answer.Exhausted)
			if len(answer.Took) > 0 {
				fmt.Fprintf(w, "Pods placed in those hours, and in the hour before:\n%-30s %7s %12s %12s\n", "NAMESPACE", "PODS", "CPU", "MEMORY GIB")
			}
			for _, p := range answer.Took {
				fmt.Fprintf(w, "%-30s %7d %12s %12s\n", plain(p.Namespace), p.Pods, p.Cores(), p.Memory())
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&window, "window", "1d", "5m, 1h, 1d or 7d")
	cmd.Flags().StringVar(&namespace, "namespace", "", "only pods of a namespace")
	return cmd
}
