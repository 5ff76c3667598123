package agent

import (
	"slices"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// openMonitors opens the monitors configured in node-problem-detector's files.
func (a *Agent) openMonitors(own []detect.Check) *npd.Monitors {
	return npd.New(a.files.Files, a.files.Broken, a.cfg.NodeProblemDetector, npd.Deps{
		Host: a.clients.Host, Log: a.log, Memory: a.deps.State, Own: own, Believed: a.believed,
		Happened: func(reason string, n int) { a.meter.Happened(reason, n) }, // it is opened later
	})
}

// Checks returns all checks that can run without an agent: built-in checks, those of node-problem-detector's files, and
// the user's plugins.
func Checks(cfg config.Config, h *host.Host, deps checks.Deps) []detect.Check {
	own := checks.Checks(cfg.Checks, deps)
	files := config.ReadMonitors(cfg.NodeProblemDetector)
	monitors := npd.New(files.Files, files.Broken, cfg.NodeProblemDetector, npd.Deps{Host: h, Own: own})
	monitors.Once()
	return slices.Concat(own, monitors.Checks(), plugin.Checks(cfg.Plugins))
}

// believed returns the believed state of a check.
func (a *Agent) believed(check string) (finding.CheckState, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.tracker.Of(check)
	if c == nil {
		return finding.CheckState{}, false
	}
	return *c, true
}
