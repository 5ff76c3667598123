package discover

import (
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Kubelets that are part of another program have no arguments in /proc. Their settings are in files:
//
//	K3s 1.32 and later   *.conf in kubelet's --config-dir, which K3s writes when it starts: 00-k3s-defaults.conf,
//	                     --kubelet-arg=config in 10-cli-config.conf and 20-cli-config-dir, and what people add
//	RKE2                 the same; its kubelet is its own process, whose arguments name the directory while it runs
//	MicroK8s             flags, one a line, with variables of the snap
//
// https://docs.k3s.io/installation/configuration, https://microk8s.io/docs/configuring-services. K3s before 1.32
// tells it nowhere: the servers give it to the agents.
const microk8sFlags = "/var/snap/microk8s/current/args/kubelet"

// embeddedFlags returns the settings of a kubelet that is part of another program, as flags; none where no file has
// them.
func embeddedFlags(h *host.Host) map[string]string {
	for _, product := range []string{"k3s", "rke2"} {
		dir := "/var/lib/rancher/" + product + "/agent/etc/kubelet.conf.d"
		if names, err := h.Files.List(dir); err == nil && len(names) > 0 {
			return map[string]string{"config-dir": dir}
		}
	}
	if data, err := h.Files.ReadOwned(microk8sFlags); err == nil {
		return parseFlagLines(string(data))
	}
	return map[string]string{}
}

// parseFlagLines reads flags one a line, as MicroK8s keeps them.
func parseFlagLines(text string) map[string]string {
	places := strings.NewReplacer("${SNAP_DATA}", "/var/snap/microk8s/current", "${SNAP_COMMON}",
		"/var/snap/microk8s/common", "${SNAP}", "/snap/microk8s/current",
		`"`, "", "'", "")
	var args []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "--") {
			args = append(args, places.Replace(line))
		}
	}
	return parseFlags(args)
}
