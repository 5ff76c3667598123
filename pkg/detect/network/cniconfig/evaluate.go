package cniconfig

import (
	"context"
	"fmt"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

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
