package agent

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
)

// defaultNamespace is the agent's namespace if no credential names one.
const defaultNamespace = "nodeagent"

// newFleet returns the claims of this node. namespace is the agent's own; taintKey is the key of the isolating taint.
func newFleet(settings fleet.Settings, client *kube.Client, namespace, taintKey string, memory store.Bucket,
	log *slog.Logger) *fleet.Fleet {
	settings.Namespace = cmp.Or(settings.Namespace, namespace+"-claims")
	return fleet.New(fleet.Config{
		Settings: settings, Log: log,
		Cluster: fleet.Cluster{Leases: client, Node: client.GetNode, Nodes: client.Nodes, Paused: client.HasConfigMap,
			Isolated: func(ctx context.Context, node string) (bool, error) { return client.Isolated(ctx, node, taintKey) }},
		Now: func() time.Duration { return host.Now().SinceBoot },
		Claiming: func() {
			if _, known := memory.Get(claimedKey); known {
				return
			}
			if err := memory.Put(claimedKey, []byte("true")); err != nil {
				log.Error("store that claims exist failed: a removal of the agent leaves them, and they end within half an hour",
					"err", err)
			}
		},
	})
}

// claimedKey is in the bucket of the fleet's budget once this agent has made a claim.
const claimedKey = "claimed"

// ownNamespace returns the namespace of the agent's pod, or the default one.
func ownNamespace(cfg config.Config) string {
	namespace, err := readCredential(cfg, "namespace")
	if err != nil {
		return defaultNamespace
	}
	return cmp.Or(strings.TrimSpace(string(namespace)), defaultNamespace)
}

// fleetCheck reports that this node ought to be isolated but the budget is full.
func (a *Agent) fleetCheck() detect.Check {
	return detect.Check{
		ID: "isolation-budget", Domain: "agent", Every: time.Minute,
		Summary: "this node should be isolated, but the isolation budget is used up",
		Advice: "Find out why so many nodes need isolation before you isolate more: the message names some of them. " +
			"fleet.isolated limits the isolated nodes of a pool.",
		Doc: detect.Doc{
			Reads: []string{"the node's own claim of the fleet budget, when it was made or renewed last"},
			Why:   "New pods may still be placed on a node that cannot serve them, where no other node has room.",
			Faults: []detect.Fault{{Reason: "IsolationBudgetSpent", Severity: finding.Warning,
				When: "a fatal fault asks for the taint, and the claims of other nodes fill the budget of the pool: the " +
					"taint is PreferNoSchedule instead of NoSchedule"}},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			why := a.fleet.Status().IsolationSpent
			if why == "" {
				return nil, nil
			}
			return warning(finding.Subject{Kind: "node", Name: "isolation"}, "IsolationBudgetSpent",
				"this node is only avoided (PreferNoSchedule), not isolated: "+why), nil
		},
	}
}
