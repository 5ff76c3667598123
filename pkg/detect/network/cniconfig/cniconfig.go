// Package cniconfig judges the CNI configuration of the node, its plugins and their binaries.
package cniconfig

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cni-config reads what the container runtime would load of the network configuration if it were to do so now:
//
//	/etc/cni/net.d/10-calico.conflist
//	    {"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
//	      {"type": "calico", "ipam": {"type": "calico-ipam"}, …}, {"type": "portmap", "capabilities": {"portMappings": true}}]}
//	/opt/cni/bin/calico, calico-ipam, portmap         what it then runs for each pod
//
// https://github.com/containernetworking/cni/blob/main/SPEC.md, https://github.com/containerd/go-cni (loadFromConfDir):
// of the files *.conf, *.conflist and *.json containerd takes the first by name, and when that is malformed it has no
// network, whatever else lies there. CRI-O passes malformed files over. Both look again whenever the directory changes.
// Plugins are found by name in the first directory that has them; none is run here.
//
// The second witness is the runtime's condition NetworkReady (CRI Status), asked only when something is wrong: while
// it says that the network is not ready, no pod can be started and the fault is fatal. While it is ready the runtime
// may go on with what it has loaded before: a warning. Of missing plugins the runtime knows nothing until it needs
// them.
//
// Known false alarms: the directory is empty on a new node until the network's DaemonSet has run (held for two minutes;
// the node is not Ready until then anyway); files that others leave there (87-podman-bridge.conflist) sort behind.

const cniConfigID = "cni-config"

// New finds a network configuration of pods that is missing or malformed, or whose plugins are missing.
func New() detect.Check {
	return detect.Check{
		ID:      cniConfigID,
		Domain:  "network",
		Summary: "the network configuration of pods is missing or broken: new pods get no network",
		Advice: "The network's DaemonSet (calico-node, cilium, kube-flannel …) writes both the configuration and the " +
			"plugins: look at its pod on this node, above all at its init containers (`kubectl get pods -A -o wide " +
			"--field-selector spec.nodeName=NODE`: not every network is in kube-system). Move a malformed file that " +
			"belongs to nobody out of the directory; the runtime notices by itself.",
		Doc:       cniConfigDoc(),
		Condition: detect.NetworkProblem(),
		Every:     time.Minute,
		Deadline:  8 * time.Second,
		Policy: finding.Policy{
			Raise: finding.Hold{Looks: 3, For: 2 * time.Minute},
		},
		Run: observeCNIConfig,
	}
}

func cniConfigDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{
			"the first *.conf, *.conflist or *.json in /etc/cni/net.d", "the plugins that it names in /opt/cni/bin " +
				"(both as containerd is told)",
			"the runtime's NetworkReady over CRI, only when something is wrong",
		},
		Why: "Without a network configuration no pod can start, and one that is malformed is found out only at the " +
			"next restart of the runtime. A missing plugin leaves every new pod in ContainerCreating, although node " +
			"and runtime say that they are ready.",
		Faults: []detect.Fault{
			{Reason: "CNIConfigMissing", Severity: finding.Fatal, When: "no configuration for two minutes (a new " +
				"node has none for about one); fatal while the runtime says that its network is not ready"},
			{Reason: "CNIConfigInvalid", Severity: finding.Fatal, When: "the file that the runtime takes is " +
				"malformed, for two minutes; fatal as above"},
			{Reason: "CNIPluginMissing", Severity: finding.Fatal, When: "a plugin or its IPAM plugin is in none of " +
				"the directories; fatal as above"},
			{Reason: "CNIPluginNotExecutable", Severity: finding.Fatal, When: "a plugin is empty, no file, or not " +
				"executable; fatal as above"},
		},
		FalseAlarms: "Files of other programs (podman's bridge) sort behind and are not looked at. Plugins that a " +
			"plugin runs by itself (flannel's bridge) are not known from the configuration and not looked for.",
	}
}

func observeCNIConfig(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	seen, err := readCNIConfig(h)
	if err != nil {
		return nil, err
	}
	if seen.reason == "" {
		return nil, nil
	}
	ready, known := networkReady(ctx, h)
	return evaluateCNIConfig(h, seen, ready, known)
}
