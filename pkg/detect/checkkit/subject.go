package checkkit

import (
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// NodeSubject is the machine as a whole.
func NodeSubject(h *host.Host) finding.Subject {
	return finding.Subject{Kind: "node", Name: NodeName(h)}
}

// NodeName returns the name of the Node, else the host name.
func NodeName(h *host.Host) string {
	if h.NodeName != "" {
		return h.NodeName
	}
	name, err := h.Files.Text("/proc/sys/kernel/hostname")
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}
