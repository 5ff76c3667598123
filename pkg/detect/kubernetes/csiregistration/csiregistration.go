// Package csiregistration finds CSI drivers that did not register with kubelet, or do not answer.
package csiregistration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// csi-registration checks each CSI driver that should be on this node as kubelet does: the sockets in
// <kubelet root>/plugins_registry, GetInfo on each (pluginregistration v1), Probe on the driver's own socket (CSI
// Identity) and the node's CSINode object, where kubelet writes the drivers that it has accepted:
//
//	spec: {drivers: [{name: ebs.csi.aws.com, nodeID: i-0123, topologyKeys: [...]}]}
//
// https://github.com/kubernetes-csi/node-driver-registrar,
// https://github.com/container-storage-interface/spec/blob/master/spec.md,
// https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/csi-node-v1/.
//
// A driver should be here if its pod runs here (pods.go), if a pod here uses a volume of it, if it was in this node's
// CSINode before, if it has a registration socket, or if the configuration lists it. DRA and device plugins use the
// same folder.
//
// Cost. Each run connects to the sockets; GetInfo (which registrars log) is called once a minute, or when a socket has
// changed, or after a fault. CSINode is read after a change of the local state and once more 45 s later, at growing
// intervals (15 s to 5 min) while a locally healthy driver is not in it, and otherwise every 10 to 15 min, once in 40
// while no pod of the node changes.

// Settings are the knobs of csi-registration.
type Settings struct {
	Drivers    []string      `yaml:"drivers"`    // these drivers must be registered
	Ignore     []string      `yaml:"ignore"`     // these are never reported
	Timeout    time.Duration `yaml:"timeout"`    // GetInfo or Probe that takes longer counts as no answer
	StartGrace time.Duration `yaml:"startGrace"` // time for a driver's pod to register
	Remember   time.Duration `yaml:"remember"`   // a driver without pods and users here is forgotten after this
	Reread     time.Duration `yaml:"reread"`     // longest interval of reads of CSINode during a fault
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings {
	return Settings{
		Timeout: 4 * time.Second, StartGrace: time.Minute, Remember: 24 * time.Hour, Reread: 5 * time.Minute,
	}
}

// New finds CSI drivers that should serve this node and do not. The store may be nil: then the check knows earlier
// drivers only as long as the agent runs.
func New(s Settings, store detect.StateStore) detect.Check {
	c := &csiCheck{settings: s, history: loadHistory(store), answers: map[string]csiAnswer{}}
	c.csiNode.seldom = 10*time.Minute + rand.N(5*time.Minute) // #nosec G404 -- spreads load over time, no secret
	c.csiNode.longest = s.Reread
	return detect.Check{
		ID:      "csi-registration",
		Domain:  "kubernetes",
		Summary: "a CSI driver that should serve this node is not registered with kubelet or not ready",
		Advice: "Check the driver's pod on this node: the log of its registrar container (node-driver-registrar) " +
			"shows why kubelet rejected it, the log of the driver why it is not ready. Delete the pod to restart both.",
		Doc: detect.Doc{
			Reads: []string{"<kubelet root>/plugins_registry and its sockets (GetInfo)",
				"the driver's own socket (CSI Probe)", "kubelet's pods", "this node's CSINode object, rarely"},
			Why: "Pods with volumes of that driver stay in ContainerCreating forever.",
			Faults: []detect.Fault{
				{Reason: "CSISocketMissing", Severity: finding.Fatal,
					When: "the driver should be here and has no registration socket"},
				{Reason: "CSISocketStale", Severity: finding.Fatal, When: "the socket exists, but no process listens"},
				{Reason: "CSIGetInfoFailed", Severity: finding.Fatal, When: "the registrar does not answer kubelet's " +
					"GetInfo within 4 s"},
				{Reason: "CSIDriverNotReady", Severity: finding.Fatal,
					When: "the driver's Probe fails or reports not ready"},
				{Reason: "CSIRegistrationRejected", Severity: finding.Fatal,
					When: "everything on the node is healthy, but kubelet did not enter the driver in CSINode"},
				{Reason: "CSIDriverPodMissing", Severity: finding.Fatal,
					When: "the driver was here before, and its pod is gone"},
				{Reason: "CSIDriverUnknown", Severity: finding.Warning,
					When: "a pod uses a volume of a driver that was never here"},
			},
			FalseAlarms: "Updates of drivers are not reported before 30 s, and a pod that has just started has a " +
				"minute. A driver that was removed permanently is forgotten after a day, if no pod has a volume of it. Fatal " +
				"only for drivers that the configuration lists, that were registered here and whose volumes pods " +
				"use, or whose pod in kube-system is system-node-critical; else a warning, since whoever may create " +
				"pods can name any driver.",
		},
		Uses: []host.Setting{host.KubeletRoot},
		Condition: finding.Condition{
			Type: "CSIPluginNotRegistered", ReadyType: "CSIPluginsRegistered",
			HealthyReason:  "CSIPluginsAreRegistered",
			HealthyMessage: "All CSI drivers of the node are registered and ready",
		},
		Every:    20 * time.Second,
		Deadline: 30 * time.Second,
		Wakes:    []detect.Wake{{Source: detect.WakePlugins}},
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2, For: 30 * time.Second}},
		Run:      c.run,
	}
}

// csiCheck is the check with its state between runs.
type csiCheck struct {
	settings Settings
	history  csiHistory
	answers  map[string]csiAnswer // by socket path
	pods     csiPods
	csiNode  csiNodeCache
	faulty   bool // the last run had a finding or an error
}

func (c *csiCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.NodeName == "" || h.Paths.PluginRegistry == "" {
		return nil, finding.NotApplicable("this host is not known to be a Kubernetes node")
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
		// A first read may name drivers of which the node itself has no trace.
		drivers = c.expect(h, sockets, now)
		c.history.forget(registered, drivers, c.settings.Remember, now.SinceBoot)
	}
	if err := errors.Join(podsErr, csiNodeErr); len(drivers) == 0 {
		if err != nil {
			return nil, fmt.Errorf("which CSI drivers should be here: %w", err)
		}
		return nil, finding.NotApplicable("no CSI driver should be on this node")
	}

	var results checkkit.Results
	for i := range drivers {
		d := &drivers[i]
		d.NodeID, d.RegistrationErr = registered[d.Name], csiNodeErr
		c.explain(ctx, h, d)
		f, err := evaluateCSIDriver(*d, c.settings)
		results.Take(d.subject(), f, err)
	}
	c.faulty = !results.Empty()
	if podsErr != nil {
		// Without kubelet's pods it is not known which drivers should be here.
		return results.Inconclusive(podsErr)
	}
	return results.Done()
}

// explain makes the calls that kubelet makes before it accepts a driver, for one that kubelet seems to have rejected.
func (c *csiCheck) explain(ctx context.Context, h *host.Host, d *csiDriver) {
	if d.RegistrationErr != nil || d.NodeID != "" || d.Socket == "" || d.InfoErr != nil || h.Plugins.NodeID == nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	d.OwnNodeID, d.OwnNodeIDErr = h.Plugins.NodeID(call, d.Endpoint)
}

const (
	csiAskEvery = time.Minute // GetInfo of a healthy plugin: registrars write a log line for each
	maxParallel = 4           // plugins called at a time
)

// csiAnswer holds the answers of a plugin on its sockets.
type csiAnswer struct {
	Socket   kubelet.PluginSocket
	Asked    finding.Timestamp // of the last GetInfo
	Info     kubelet.PluginInfo
	InfoErr  error
	Ready    bool
	ProbeErr error
}

// healthy reports whether none of the answers is a fault.
func (a csiAnswer) healthy() bool {
	return a.InfoErr == nil && a.ProbeErr == nil && (a.Ready || !a.csi())
}

// csi reports whether the plugin is a CSI driver by its answer.
func (a csiAnswer) csi() bool { return a.InfoErr == nil && a.Info.Type == registration.CSIPlugin }

// ask calls all plugins, several at a time, so that a silent one costs its own time only.
func (c *csiCheck) ask(ctx context.Context, h *host.Host, sockets []kubelet.PluginSocket, now finding.Timestamp) {
	answers := make([]csiAnswer, len(sockets))
	var asking errgroup.Group
	asking.SetLimit(maxParallel)
	for i, socket := range sockets {
		asking.Go(func() error {
			answers[i] = c.askOne(ctx, h, socket, c.answers[socket.Path], now)
			return nil
		})
	}
	_ = asking.Wait() // an answer has its own error
	clear(c.answers)
	for i, socket := range sockets {
		c.answers[socket.Path] = answers[i]
	}
}

// askOne calls one plugin, given its last answer.
func (c *csiCheck) askOne(ctx context.Context, h *host.Host, socket kubelet.PluginSocket, last csiAnswer,
	now finding.Timestamp) csiAnswer {
	ctx, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	answer := last
	if last.Socket != socket || !last.healthy() || now.Since(last.Asked) >= csiAskEvery {
		answer = csiAnswer{Socket: socket, Asked: now}
		answer.Info, answer.InfoErr = h.Plugins.GetInfo(ctx, socket.Path)
	} else {
		answer.InfoErr = h.Plugins.Connect(ctx, socket.Path)
	}
	if !answer.csi() {
		return answer
	}
	answer.Ready, answer.ProbeErr = h.Plugins.Probe(ctx, answer.Info.Endpoint)
	return answer
}
