package agent

import (
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// ownChecks returns the checks of the agent itself, as far as its configuration has their subject.
func (a *Agent) ownChecks() []detect.Check {
	checks := []detect.Check{a.leftovers.check(), stateCheck(a.store), accessCheck(a.state), a.repairsCheck()}
	if a.cfg.Report.EventCenter.Enabled() {
		checks = append(checks, a.eventCenterCheck())
	}
	if a.fleet != nil && a.cfg.Report.Taint.Mode == taint.On { // this node may be isolated
		checks = append(checks, a.fleetCheck())
	}
	return checks
}

// warning returns the one finding of a check of the agent itself.
func warning(subject finding.Subject, reason, message string) []finding.Finding {
	return []finding.Finding{{Subject: subject, Severity: finding.Warning, Reason: reason, Message: message}}
}

// OwnChecks returns the checks that only the daemon has, for documentation: they must not run.
func OwnChecks() []detect.Check {
	checks := []detect.Check{stateCheck(&store.Store{}), accessCheck(nil), (&leftovers{}).check(),
		(&Agent{}).eventCenterCheck(), (&Agent{}).fleetCheck(), (&Agent{}).repairsCheck()}
	for _, source := range []struct {
		name  detect.WakeSource
		reads string
	}{
		{detect.WakeKernelLog, "the kernel log (/dev/kmsg)"},
		{detect.WakeMounts, "changes of the mount table (poll of /proc/PID/mountinfo)"},
		{detect.WakePlugins, "changes of kubelet's plugin directory (inotify)"},
		{detect.WakeLinks, "changes of the network links (netlink)"},
		{detect.WakeSystemd, "systemd's messages about services that fail (the system bus)"},
	} {
		checks = append(checks, sourceCheck(source.name, source.reads))
	}
	return checks
}

// sourceCheck documents the findings that the engine reports about a wake source.
func sourceCheck(name detect.WakeSource, reads string) detect.Check {
	return detect.Check{
		ID: "source-" + string(name), Domain: "agent",
		Summary: "the agent has lost a source that makes checks run at once",
		Advice: "The message names the source that could not be opened or read. The agent retries every 10 s; until " +
			"then it finds faults at the checks' intervals.",
		Doc: detect.Doc{
			Reads: []string{reads},
			Why:   "A fault is found within a minute instead of a second.",
			Faults: []detect.Fault{{Reason: "SourceLost", Severity: finding.Warning,
				When: "the source ended or could not be opened"}},
		},
	}
}
