package tasks

import (
	"strconv"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Own returns the agent's own processes, by PID: this one, and the probes that it has started, which hang if a
// filesystem does. They are no load of the node: one run of all checks keeps each processor busy for a moment, and
// reads its program from a disk that may be slow. Another agent's processes count.
func Own(h *host.Host, table []proc.Stat) map[int]bool {
	own := make(map[int]bool)
	link, err := h.Files.Link("/proc/self")
	if err != nil {
		return own
	}
	self, err := strconv.Atoi(link)
	if err != nil {
		return own
	}
	own[self] = true
	for _, p := range table {
		if p.PPID == self && p.Comm == probe.ChildName {
			own[p.PID] = true
		}
	}
	return own
}
