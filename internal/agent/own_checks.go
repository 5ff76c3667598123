package agent

import (
	"github.com/nodeagent/nodeagent/internal/store"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// OwnChecks are the checks that only the daemon has, for people to read about: they are not to be run.
func OwnChecks() []detect.Check {
	checks := []detect.Check{stateCheck(&store.Store{}), (&leftovers{}).check()}
	for _, source := range []struct {
		name detect.WakeSource
		tell string
	}{
		{detect.WakeKernelLog, "the kernel's log (/dev/kmsg)"},
		{detect.WakeMounts, "changes of the mount table (poll of /proc/PID/mountinfo)"},
		{detect.WakePlugins, "changes of kubelet's plugin directory (inotify)"},
		{detect.WakeLinks, "changes of the network links (netlink)"},
		{detect.WakeSystemd, "what systemd tells of services that fail (the system's message bus)"},
	} {
		checks = append(checks, sourceCheck(source.name, source.tell))
	}
	return checks
}

// sourceCheck is what the engine tells of a source of wakes.
func sourceCheck(name detect.WakeSource, tells string) detect.Check {
	return detect.Check{
		ID: "source-" + string(name), Domain: "agent",
		Summary: "the agent does not hear what tells it to look at once",
		Advice: "The message names what could not be opened or read. The agent tries again every 10 s; until then " +
			"faults are found at the checks' intervals.",
		Doc: detect.Doc{
			Reads: []string{tells},
			Why:   "A fault is found within a minute instead of a second.",
			Faults: []detect.Fault{{Reason: "SourceLost", Severity: finding.Warning,
				When: "the source ended or could not be opened"}},
		},
	}
}
