package agent

import (
	"context"
	"log/slog"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/inspect/podfacts"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

// ExplainPod answers why one pod is stuck. The name must be valid. After the discovery of the node's layout it takes at
// most 11 s; calls that hang are left behind.
func ExplainPod(ctx context.Context, cfg config.Config, namespace, name string) (podstage.Answer, error) {
	clients, err := OpenHost(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return podstage.Answer{}, err
	}
	var lookups podfacts.Lookups
	if c := clients.Client; c != nil {
		lookups = podfacts.Lookups{Exists: c.Exists, Events: c.PodEvents, Claim: c.Claim, Volume: c.Volume,
			Attachment: c.Attachment}
	}
	return podstage.Evaluate(podfacts.Gather(ctx, clients.Host, lookups, namespace, name)), clients.Close()
}
