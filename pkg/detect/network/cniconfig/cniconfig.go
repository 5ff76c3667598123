// Package cniconfig checks the CNI configuration of the node, its plugins and their binaries.
package cniconfig

import (
	"context"
	"fmt"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cni-config reads the network configuration that the container runtime would load now:
//
//	/etc/cni/net.d/10-calico.conflist
//	    {"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": [
//	      {"type": "calico", "ipam": {"type": "calico-ipam"}, …}, {"type": "portmap", "capabilities": {"portMappings": true}}]}
//	/opt/cni/bin/calico, calico-ipam, portmap         its programs for each pod
//
// https://github.com/containernetworking/cni/blob/main/SPEC.md, https://github.com/containerd/go-cni (loadFromConfDir):
// of the files *.conf, *.conflist and *.json containerd takes the first by name; if this one is malformed it has no
// network, whatever other files there are. CRI-O skips malformed files. Both reload when the directory changes. They
// find plugins by name in the first directory that has them; this check runs none.
//
// The runtime's condition NetworkReady (CRI Status) is the second source, read only if there is a fault: while the
// network is not ready no pod can start, and the fault is fatal. While it is ready the runtime may continue with its
// loaded configuration: a warning. The runtime does not notice missing plugins until it needs them.

// New finds a missing or malformed pod network configuration, and missing plugins.
func New() detect.Check {
	return detect.Check{
		ID:      "cni-config",
		Domain:  "network",
		Summary: "the pod network configuration is missing or invalid: new pods get no network",
		Advice: "The network's DaemonSet (calico-node, cilium, kube-flannel …) writes both the configuration and " +
			"the plugins: check its pod on this node, above all its init containers (`kubectl get pods -A -o wide " +
			"--field-selector spec.nodeName=NODE`: not every network is in kube-system). Move a malformed file that " +
			"no network plugin owns out of the directory; the runtime reloads by itself.",
		Doc:       cniConfigDoc(),
		Uses:      []host.Setting{host.CNIConfDir, host.CNIBinDirs, host.CRISocket},
		Condition: detect.NetworkProblem(),
		Every:     time.Minute,
		Deadline:  8 * time.Second,
		Policy: finding.Policy{
			Raise: finding.Hold{Runs: 3, For: 2 * time.Minute},
		},
		Run: observeCNIConfig,
	}
}

func cniConfigDoc() detect.Doc {
	return detect.Doc{
		Reads: []string{
			"the first *.conf, *.conflist or *.json in /etc/cni/net.d", "the plugins that it names in /opt/cni/bin " +
				"(both paths as containerd is configured)",
			"the runtime's NetworkReady over CRI, only when something is wrong",
		},
		Why: "Without a network configuration no pod can start, and a malformed one shows only at the next restart " +
			"of the runtime. A missing plugin leaves every new pod in ContainerCreating, although node and runtime " +
			"report that they are ready.",
		Faults: []detect.Fault{
			{Reason: "CNIConfigMissing", Severity: finding.Fatal, When: "no configuration for two minutes (a new " +
				"node has none for about one); fatal while the runtime reports that its network is not ready"},
			{Reason: "CNIConfigInvalid", Severity: finding.Fatal, When: "the file that the runtime takes is " +
				"malformed, for two minutes; fatal as above"},
			{Reason: "CNIPluginMissing", Severity: finding.Fatal, When: "a plugin or its IPAM plugin is in none of " +
				"the directories; fatal as above"},
			{Reason: "CNIPluginNotExecutable", Severity: finding.Fatal, When: "a plugin is empty, not a file, or not " +
				"executable; fatal as above"},
		},
		FalseAlarms: "Files of other programs (podman's bridge) sort later and are not read. Plugins that a plugin " +
			"itself runs (flannel's bridge) are not in the configuration and not checked.",
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

// networkReady asks the runtime whether it has a network. The answer may be unknown: runtime-health checks the runtime.
func networkReady(ctx context.Context, h *host.Host) (ready, known bool) {
	if h.Runtime.Status == nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, err := h.Runtime.Status(ctx)
	if err != nil {
		return false, false
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.GetType() == cri.NetworkReady {
			return c.GetStatus(), true
		}
	}
	return false, false
}

// evaluateCNIConfig evaluates the configuration together with the runtime's condition.
func evaluateCNIConfig(h *host.Host, seen cniConfig, ready, known bool) ([]finding.Finding, error) {
	name := seen.file
	if name == "" {
		name = h.Paths.CNIConfDir
		if known && ready {
			return nil, fmt.Errorf("%s, but the runtime reports that its network is ready: it uses another "+
				"directory: set paths.cniConfDir", seen.problem)
		}
	}
	if !known && !checkkit.KubeletInstalled(h) { // another program's network, as Podman's
		return nil, finding.NotApplicable("%s, and no kubelet is installed on this host", seen.problem)
	}
	f := finding.Finding{
		Subject: finding.Subject{Kind: "cni-config", Name: name}, Severity: finding.Warning,
		Reason: seen.reason, Message: seen.problem, Facts: map[string]string{},
	}
	switch {
	case known && !ready:
		f.Severity = finding.Fatal
		f.Message += "; the runtime reports that the pod network is not ready: no pod can start"
		f.Facts["networkReady"] = "false"
	case known:
		f.Message += "; the runtime continues with the configuration that it has loaded, but new pods may fail now " +
			"or after its restart"
		f.Facts["networkReady"] = "true"
	}
	if seen.network != "" {
		f.Facts["network"] = seen.network
	}
	if len(seen.plugins) > 0 {
		f.Facts["plugins"] = checkkit.Sanitize(strings.Join(seen.plugins, ","), 500)
	}
	return []finding.Finding{f}, nil
}
