package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

func newNodes(o *options) *cobra.Command {
	return command.Verb[api.NodeList]{Use: "nodes", Short: "List the nodes, with their faults and their agents",
		Long: `List the nodes, with their faults and their agents. STATE is "blind" if the agent is silent, and "lost" if
kubelet does not renew its Lease.`,
		Flags: func(flags *pflag.FlagSet) {
			for name, usage := range map[string]string{"cluster": "of this cluster only",
				"state":   "only nodes in this state: seen, blind or lost; may be repeated",
				"pool":    "only of this pool; may be repeated",
				"zone":    "only of this zone; may be repeated",
				"blind":   "only nodes on which this check cannot tell; may be repeated",
				"agent":   "only nodes whose agent stands out: other-version (than most of its cluster), blind-checks or wrong-clock; may be repeated",
				"version": "only with an agent of this version; may be repeated", "notversion": "only with an agent of none of " +
					"these versions"} {
				flags.StringArray(name, nil, usage)
			}
		},
		Problem: func(answer *api.NodeList) bool {
			return len(answer.SilentClusters) > 0 || slices.ContainsFunc(answer.Nodes, isBad)
		}}.Command(&o.Asker)
}

func isBad(n model.Summary) bool {
	return n.Fatal+n.Warning > 0 || n.Silence != nil || n.State == string(model.Blind)
}

func newFaults(o *options) *cobra.Command {
	return command.Verb[api.FaultList]{Use: "faults", Short: "List what is wrong now, the most severe first",
		Flags: func(flags *pflag.FlagSet) {
			addFilter(flags, "cluster", "node", "severity", "check", "reason")
		},
		Problem: func(answer *api.FaultList) bool { return answer.Total > 0 }}.Command(&o.Asker)
}

// addFilter adds a flag for each field; each can be repeated.
func addFilter(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.StringArray(name, nil, "only with this "+name+"; may be repeated")
	}
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
			path := "/v1/nodes/" + url.PathEscape(cluster) + "/" + url.PathEscape(args[0])
			return show(o, cmd, path, "node", func(answer api.NodeAnswer) bool { return isBad(answer.Node.Summary) })
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
	if _, err := o.Ask(cmd, http.MethodGet, "/v1/nodes", nil, &all); err != nil {
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
