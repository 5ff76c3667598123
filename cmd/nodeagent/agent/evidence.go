package agent

import (
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
)

// record keeps the evidence of the last pass.
func (b *Bench) record(e verdict.Evidence) { b.evidence = e }

// Bundle returns the evidence of the last pass, with the facts about the node that are needed to understand it.
func (b *Bench) Bundle() bundle.Bundle {
	h := b.clients.Host
	kernel, err := h.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = err.Error()
	}
	return bundle.Bundle{Agent: Version, Kernel: kernel, Node: h.NodeName, Paths: h.Paths, Notes: b.clients.Notes,
		Evidence: b.evidence}
}
