// Package csiregistration finds CSI drivers that did not register with kubelet, or do not answer.
package csiregistration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// csi-registration looks at each CSI driver that ought to be on this node the way kubelet does: the sockets in
// <kubelet root>/plugins_registry, GetInfo on each (pluginregistration v1), Probe on the driver's own socket (CSI
// Identity) and the node's CSINode object, where kubelet writes the drivers that it has accepted:
//
//	spec: {drivers: [{name: ebs.csi.aws.com, nodeID: i-0123, topologyKeys: [...]}]}
//
// https://github.com/kubernetes-csi/node-driver-registrar,
// https://github.com/container-storage-interface/spec/blob/master/spec.md,
// https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/csi-node-v1/.
//
// A driver ought to be here when its pod runs here (pods.go), when a volume of a pod here is its, when it was in this
// node's CSINode before, when it has a registration socket, or when the configuration lists it. A driver of the
// configuration, one whose volumes pods here use, and one that runs as system-node-critical is fatal to lack; any
// other is a warning.
//
// What it costs. Sockets are connected to at each look; drivers are asked GetInfo (which registrars log) once a
// minute, or when their socket is another one, or when something was wrong. CSINode is read when what is seen locally
// has changed and once more 45 s later, with growing distance (15 s to 5 min) while a driver that looks well is not
// in it, and else every 10 to 15 min.
//
// Known false alarms: a driver that is being updated (held for 30 s, and a pod that has just started has a minute); a
// driver that was removed for good is forgotten after a day, if no pod uses it; DRA and device plugins use the same
// folder.

// Settings are the knobs of csi-registration.
type Settings struct {
	Drivers    []string      `yaml:"drivers"`    // these drivers must be here
	Ignore     []string      `yaml:"ignore"`     // these are never spoken of
	Timeout    time.Duration `yaml:"timeout"`    // GetInfo or Probe that takes longer counts as no answer
	StartGrace time.Duration `yaml:"startGrace"` // a driver's pod may take so long to register
	Remember   time.Duration `yaml:"remember"`   // a driver that nobody uses or runs here is forgotten after this
	Reread     time.Duration `yaml:"reread"`     // longest distance of reads of CSINode while something is wrong
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings {
	return Settings{
		Timeout: 4 * time.Second, StartGrace: time.Minute, Remember: 24 * time.Hour, Reread: 5 * time.Minute,
	}
}

// New finds CSI drivers that ought to serve this node and do not. Memory may be nil: then drivers that were
// here before are remembered only as long as the agent runs.
func New(s Settings, memory detect.StateStore) detect.Check {
	c := &csiCheck{settings: s, history: loadHistory(memory), answers: map[string]csiAnswer{}}
	c.csiNode.seldom = 10*time.Minute + rand.N(5*time.Minute) // #nosec G404 -- spreads load over time, no secret
	c.csiNode.longest = s.Reread
	return detect.Check{
		ID:      "csi-registration",
		Domain:  "kubernetes",
		Summary: "a CSI driver that ought to serve this node is not registered with kubelet or not ready",
		Advice: "Look at the driver's pod on this node: the log of its registrar container (node-driver-registrar) " +
			"tells why kubelet rejected it, the log of the driver why it is not ready. Deleting the pod lets both " +
			"start again.",
		Doc: detect.Doc{
			Reads: []string{"<kubelet root>/plugins_registry and its sockets (GetInfo)",
				"the driver's own socket (CSI Probe)", "kubelet's pods", "this node's CSINode object, seldom"},
			Why: "Pods with volumes of that driver wait in ContainerCreating for ever.",
			Faults: []detect.Fault{
				{Reason: "CSISocketMissing", Severity: finding.Fatal, When: "the driver ought to be here and has no " +
					"registration socket"},
				{Reason: "CSISocketStale", Severity: finding.Fatal, When: "the socket is there, but nobody listens"},
				{Reason: "CSIGetInfoFailed", Severity: finding.Fatal, When: "the registrar does not answer kubelet's " +
					"question within 4 s"},
				{Reason: "CSIDriverNotReady", Severity: finding.Fatal,
					When: "the driver's Probe fails or says not ready"},
				{Reason: "CSIRegistrationRejected", Severity: finding.Fatal,
					When: "all is well here, but kubelet did not enter the driver in CSINode"},
				{Reason: "CSIDriverPodMissing", Severity: finding.Fatal,
					When: "the driver was here before, and its pod is gone"},
			},
			FalseAlarms: "Drivers being updated: held for 30 s, and a pod that has just started has a minute. A " +
				"driver removed for good is forgotten after a day. Fatal only for drivers of the configuration, " +
				"whose volumes pods here use, or that run as system-node-critical; else a warning.",
		},
		Condition: finding.Condition{
			Type: "CSIPluginNotRegistered", ReadyType: "CSIPluginsRegistered",
			HealthyReason:  "CSIPluginsAreRegistered",
			HealthyMessage: "All CSI drivers of the node are registered and ready",
		},
		Every:    15 * time.Second,
		Deadline: 30 * time.Second,
		Wakes:    []detect.Wake{{Source: detect.WakePlugins}},
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 2, For: 30 * time.Second}},
		Run:      c.run,
	}
}

// csiCheck is what the check remembers between looks.
type csiCheck struct {
	settings Settings
	history  csiHistory
	answers  map[string]csiAnswer // by socket path
	pods     csiPods
	csiNode  csiNodeCache
	faulty   bool // the last look found something or could not tell
}

func (c *csiCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.NodeName == "" || h.Paths.PluginRegistry == "" {
		return nil, finding.NotApplicable("this host is no Kubernetes node as far as is known")
	}
	if h.Plugins.GetInfo == nil {
		return nil, fmt.Errorf("plugins of kubelet: %w", hosterr.ErrNotConfigured)
	}
	now := h.Clock()
	sockets, err := socket.PluginSockets(h)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	podsErr := c.pods.refresh(ctx, h, now, c.faulty)
	c.ask(ctx, h, sockets, now)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	drivers := c.expect(h, sockets, now)
	registered, csiNodeErr := c.csiNode.refresh(ctx, h, now, drivers)
	if csiNodeErr == nil {
		c.history.registered(registered, drivers)
		// A first read may tell of drivers that nothing here tells of.
		drivers = c.expect(h, sockets, now)
		c.history.forget(registered, drivers, c.settings.Remember, now.SinceBoot)
	}
	if err := errors.Join(podsErr, csiNodeErr); len(drivers) == 0 {
		if err != nil {
			return nil, fmt.Errorf("which CSI drivers ought to be here: %w", err)
		}
		return nil, finding.NotApplicable("no CSI driver ought to be on this node")
	}

	var found []finding.Finding
	unknown := map[finding.Subject]error{}
	for i := range drivers {
		d := &drivers[i]
		d.NodeID, d.RegistrationErr = registered[d.Name], csiNodeErr
		c.explain(ctx, h, d)
		f, err := evaluateCSIDriver(*d, c.settings)
		if err != nil {
			unknown[d.subject()] = err
		} else if f != nil {
			found = append(found, *f)
		}
	}
	c.faulty = len(found)+len(unknown) > 0
	if podsErr != nil {
		// Without kubelet's pods nobody knows which drivers ought to be here.
		return found, checkkit.Inconclusive(podsErr, unknown)
	}
	return found, finding.Partial(unknown)
}

// explain asks a driver that kubelet seems to have rejected what kubelet asks it before it accepts it.
func (c *csiCheck) explain(ctx context.Context, h *host.Host, d *csiDriver) {
	if d.RegistrationErr != nil || d.NodeID != "" || d.Socket == "" || d.InfoErr != nil || h.Plugins.NodeID == nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	d.OwnNodeID, d.OwnNodeIDErr = h.Plugins.NodeID(call, d.Endpoint)
}
