package main

import (
	"io"
	"net/http"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

// newVerbs returns the verbs that query a running tracecenter.
func newVerbs(o *options) []*cobra.Command {
	return []*cobra.Command{
		verb[api.Pod]{use: "pod NAMESPACE/NAME|UID", short: "What happened to a pod, and whose fault was it?", pathOf: podPath, name: "pod",
			problem: func(p *api.Pod) error {
				return problemIf(slices.ContainsFunc(p.Acts, func(a api.Act) bool { return a.Outcome == verdict.Missed }))
			}}.command(o),
		verb[api.SLIs]{use: "slis", short: "How many deliveries are in time?", path: "/v1/slis", name: "slis", window: "5m",
			filters: []string{"namespace", "nodes"}}.command(o),
		verb[api.Failures]{use: "failures", short: "Why were deliveries late? The misses, grouped by reason", path: "/v1/failures", name: "failures",
			window: "1h", filters: []string{"namespace", "nodes", "reason"},
			problem: func(f *api.Failures) error { return problemIf(f.Total > 0) }}.command(o),
		verb[[]follow.Terminating]{use: "terminating", short: "Which pods are Terminating for more than 10 minutes and their grace period?",
			path: "/v1/terminating", name: "terminating",
			problem: func(found *[]follow.Terminating) error { return problemIf(len(*found) > 0) }}.command(o),
		newHealth(o),
		verb[api.Nodes]{use: "nodes", short: "Which nodes fail their pods, and how well does each deliver?", path: "/v1/nodes", name: "nodes",
			problem: func(n *api.Nodes) error { return problemIf(len(n.Mass)+len(n.Faults) > 0) }}.command(o),
		verb[api.Tenants]{use: "tenants", short: "Whose requests were throttled, and whose pods took the last capacity?", path: "/v1/tenants",
			name: "tenants", window: "1d", filters: []string{"namespace"}}.command(o),
		newReport(o),
	}
}

func newHealth(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Is the cluster healthy, and are its components online?",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var state health.State
			if err := o.ask(cmd, "/v1/health", "health", &state); err != nil {
				return err
			}
			if o.output != "json" {
				if err := o.ask(cmd, "/v1/components?window=1d", "components", &api.Components{}); err != nil {
					return err
				}
			}
			if state.Level == health.Unknown {
				return errCouldNotTell
			}
			return problemIf(state.Level != health.Healthy)
		},
	}
}

func newReport(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "report", Short: "How was the week?", Args: cobra.NoArgs}
	weekly := verb[report.Report]{use: "weekly", short: "How was the week?",
		long: `How was the week? The last 7 days, or with --week a calendar week. -o html prints a document for an email. The exit code
is 1 if the budget of errors is spent, and 2 if it has too few samples.`,
		path: "/v1/report", name: "report", filters: []string{"week", "namespace"},
		problem: func(r *report.Report) error {
			if r.Budget.Left == nil {
				return errCouldNotTell
			}
			return problemIf(*r.Budget.Left < 0)
		}}.command(o)
	asText := weekly.RunE
	weekly.RunE = func(cmd *cobra.Command, args []string) error {
		if o.output != "html" {
			return asText(cmd, args)
		}
		response, err := o.remote().Send(cmd.Context(), http.MethodGet, "/v1/report?format=html&"+parameters(cmd), nil, nil)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(cmd.OutOrStdout(), io.LimitReader(response.Body, remote.MaxAnswer))
		return err
	}
	cmd.AddCommand(weekly)
	return cmd
}
