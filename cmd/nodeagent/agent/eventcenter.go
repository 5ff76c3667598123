package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/podevidence"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/metrics"
)

// openEventCenter opens the reporter to the event center, if one is configured.
func (a *Agent) openEventCenter(m *metrics.Metrics) {
	settings := a.cfg.Report.EventCenter
	if !settings.Enabled() {
		return
	}
	node := a.clients.Host.NodeName
	if node == "" { // without Kubernetes
		node, _ = os.Hostname()
	}
	var checks []string
	for _, c := range a.checks {
		checks = append(checks, c.ID)
	}
	r := eventcenter.New(eventcenter.Config{
		Settings: settings, Node: cmp.Or(node, "unknown"), Boot: a.started.Boot,
		Version: Version, Configuration: a.configuration(), Checks: checks, Leftovers: a.leftovers.activity.found(),
		PodsEnded: a.leftovers.podsEnded.Load,
		Store:     a.store.Bucket("eventcenter"), ReadFile: a.readCredential, Observer: a.sinks, Log: a.log,
	})
	m.EventCenter(func() (quarantined, bytes int) {
		stats := r.Stats()
		return stats.Quarantined, stats.Bytes
	})
	a.reporters = append(a.reporters, r)
	if a.clients.Client != nil {
		a.evidence = podevidence.New(a.clients.Host, a.clients.Client, r.Evidence)
	}
}

// readCredential reads a file named in the settings. A bare name is relative to the directory of the pod's service
// account token.
func (a *Agent) readCredential(name string) ([]byte, error) { return readCredential(a.cfg, name) }

func readCredential(cfg config.Config, name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(cmp.Or(cfg.ServiceAccountDir, kube.DefaultServiceAccountDir), name)
	}
	return config.ReadFile(name)
}

// configuration returns an identifier of the configuration in force.
func (a *Agent) configuration() string {
	text, err := a.cfg.YAML()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// found returns the leftovers that earlier runs reported and did not see disappear.
func (a *activities) found() []finding.Activity {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := make([]finding.Activity, 0, len(a.reported.Leftovers))
	for _, l := range a.reported.Leftovers {
		found = append(found, l.Found)
	}
	return found
}

// undelivered is how long events may wait before the agent reports a finding; a restart of the center takes less.
const undelivered = 5 * time.Minute

// eventCenterCheck reports that events do not reach the event center.
func (a *Agent) eventCenterCheck() detect.Check {
	return detect.Check{
		ID: "event-center", Domain: "agent", Every: time.Minute,
		Summary: "events do not reach the event center",
		Advice: "The message is the answer of the event center or the network: is the endpoint reachable from the " +
			"node's network, and is the agent's token or certificate accepted? The agent keeps events for 7 days meanwhile.",
		Doc: detect.Doc{
			Reads: []string{"the answers to the agent's requests to `report.eventCenter.endpoints`"},
			Why:   "The event center shows an old state of this node, and may report it as silent.",
			Faults: []detect.Fault{{Reason: "EventsNotDelivered", Severity: finding.Warning,
				When: "no event was accepted for 5 min"}},
		},
		Run: func(context.Context, *host.Host) ([]finding.Finding, error) {
			since, why := a.sinks.failing("eventcenter")
			if since.IsZero() || time.Since(since) < undelivered {
				return nil, nil
			}
			return warning(finding.Subject{Kind: "agent", Name: "event-center"}, "EventsNotDelivered",
				"events do not reach the event center: "+why), nil
		},
	}
}
