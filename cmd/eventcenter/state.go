package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func newNodes(o *options) *cobra.Command {
	filter := map[string]*[]string{}
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes, with their faults and their agents",
		Long: `List the nodes, with their faults and their agents. STATE is "blind" if the agent is silent, and "lost" if
kubelet does not renew its Lease.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.NodeList
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/nodes?"+query(filter).Encode(), &answer)
			if err == nil && !printed {
				err = printNodes(cmd.OutOrStdout(), answer)
			}
			if err != nil {
				return err
			}
			for _, n := range answer.Nodes {
				if n.Fatal+n.Warning > 0 || n.Silence != nil {
					return errProblems
				}
			}
			if len(answer.SilentClusters) > 0 {
				return errProblems
			}
			return nil
		},
	}
	flags := cmd.Flags()
	for name, usage := range map[string]string{"cluster": "of this cluster only",
		"state":   "only nodes in this state: seen, blind or lost; may be repeated",
		"pool":    "only of this pool; may be repeated",
		"zone":    "only of this zone; may be repeated",
		"blind":   "only nodes on which this check cannot tell; may be repeated",
		"agent":   "only nodes whose agent stands out: other-version (than most of its cluster), blind-checks or wrong-clock; may be repeated",
		"version": "only with an agent of this version; may be repeated", "notversion": "only with an agent of none of " +
			"these versions"} {
		filter[name] = flags.StringArray(name, nil, usage)
	}
	return cmd
}

// printNodes prints the nodes, after the clusters as a whole.
func printNodes(w io.Writer, answer api.NodeList) error {
	for _, c := range answer.SilentClusters {
		if _, err := fmt.Fprintf(w, "CLUSTER %s: %s\n", event.Plain(c.Cluster), event.Plain(c.Silence.Message)); err != nil {
			return err
		}
	}
	return table(w, nodeRows(answer.Nodes))
}

func nodeRows(nodes []model.Summary) [][]string {
	rows := [][]string{{"CLUSTER", "NODE", "STATE", "FATAL", "WARNING", "INFO", "LEFTOVERS", "HEARD", "AGENT", "BLIND"}}
	for _, n := range nodes {
		state := "seen"
		if n.Silence != nil {
			state = fmt.Sprintf("%s (%s)", n.Silence.State, n.Silence.Reason)
		}
		if n.ClockAhead != 0 {
			state += fmt.Sprintf(", clock %+d s", int(n.ClockAhead))
		}
		rows = append(rows, []string{n.Cluster, n.Node, state, strconv.Itoa(n.Fatal), strconv.Itoa(n.Warning),
			strconv.Itoa(n.Info), strconv.Itoa(n.Leftovers), ago(n.LastSeen), n.Version, finding.JoinFirst(n.Blind, 3)})
	}
	return rows
}

func newFaults(o *options) *cobra.Command {
	filter := map[string]*[]string{}
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "List what is wrong now, the most severe first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.FaultList
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/faults?"+query(filter).Encode(), &answer)
			if err != nil {
				return err
			}
			if !printed {
				if err := table(cmd.OutOrStdout(), faultRows(answer.Faults)); err != nil {
					return err
				}
				if more := answer.Total - len(answer.Faults); more > 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "and %d more\n", more)
				}
			}
			if answer.Total > 0 {
				return errProblems
			}
			return nil
		},
	}
	addFilter(cmd, filter, "cluster", "node", "severity", "check", "reason")
	return cmd
}

// addFilter adds a flag for each field; each can be repeated.
func addFilter(cmd *cobra.Command, filter map[string]*[]string, names ...string) {
	for _, name := range names {
		filter[name] = cmd.Flags().StringArray(name, nil, "only with this "+name+"; may be repeated")
	}
}

func query(filter map[string]*[]string) url.Values {
	values := url.Values{}
	for name, wanted := range filter {
		if len(*wanted) > 0 {
			values[name] = *wanted
		}
	}
	return values
}

func faultRows(faults []model.NodeFault) [][]string {
	rows := [][]string{{"SEVERITY", "CLUSTER", "NODE", "REASON", "SUBJECT", "DETECTOR", "SINCE", "MESSAGE"}}
	for _, f := range faults {
		rows = append(rows, []string{string(f.Severity), f.Cluster, f.Node, f.Reason, f.Subject.String(), cmp.Or(f.Detector, "agent"),
			ago(f.RaisedAt), f.Message})
	}
	return rows
}

func newNode(o *options) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Show what is wrong with a node, and what happened on it, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := o.clusterOf(cmd, cluster, args[0])
			if err != nil {
				return err
			}
			var answer api.NodeAnswer
			printed, err := o.ask(cmd.Context(), cmd.OutOrStdout(),
				"/v1/nodes/"+url.PathEscape(cluster)+"/"+url.PathEscape(args[0]), &answer)
			if err == nil && !printed {
				err = printNode(cmd, answer)
			}
			if err == nil && (answer.Node.Fatal+answer.Node.Warning > 0 || answer.Node.Silence != nil) {
				err = errProblems
			}
			return err
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "its cluster (default: the only one that has a node of this name)")
	return cmd
}

// clusterOf returns the cluster of a node: the named one, or the only one with this node.
func (o *options) clusterOf(cmd *cobra.Command, cluster, node string) (string, error) {
	if cluster != "" {
		return cluster, nil
	}
	var all api.NodeList
	quiet := *o
	quiet.output = "text"
	if _, err := quiet.ask(cmd.Context(), cmd.OutOrStdout(), "/v1/nodes", &all); err != nil {
		return "", err
	}
	var clusters []string
	for _, n := range all.Nodes {
		if n.Node == node {
			clusters = append(clusters, n.Cluster)
		}
	}
	switch len(clusters) {
	case 0:
		return "", fmt.Errorf("the center has never received an event of a node %q", node)
	case 1:
		return clusters[0], nil
	}
	return "", fmt.Errorf("node %q is in the clusters %s: name one with --cluster", node, strings.Join(clusters, ", "))
}

func printNode(cmd *cobra.Command, answer api.NodeAnswer) error {
	w := cmd.OutOrStdout()
	if err := table(w, nodeRows([]model.Summary{answer.Node.Summary})); err != nil {
		return err
	}
	if len(answer.Node.Faults) > 0 {
		fmt.Fprintln(w)
		if err := table(w, faultRows(answer.Node.Faults)); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	rows := [][]string{eventHead()}
	for _, e := range answer.Events {
		rows = append(rows, eventRow(api.LineOf(e), 0))
	}
	return table(w, rows)
}
