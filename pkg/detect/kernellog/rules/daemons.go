package rules

import (
	"slices"
	"time"
)

// Daemons returns the rules for logs of daemons. They are for saved logs (nodeagent replay): in the live agent the
// checks named by ConfirmedBy read the state itself. A rule applies only to lines of its emitters; a pod cannot write
// them. Lines that repeat text of a pod's author (names, commands, images) are never more than a warning.
func Daemons() []Rule {
	return slices.Concat(
		// exhausted resources: causes before their effects
		emittedBy([]Emitter{Kubelet, Runtime, Systemd}, countedRules(), spaceRules(), processRules()),
		stuckRules(),
		emittedBy([]Emitter{Kubelet, Runtime}, sharedRules()),
		emittedBy([]Emitter{Runtime}, runtimeRules()),
		emittedBy([]Emitter{Kubelet}, kubeletRules(), kubeletPodRules()),
		emittedBy([]Emitter{Systemd}, systemdRules()),
		journalRules(),
		deviceDaemonRules(),
		hostDaemonRules(),
		auditRules(),
	)
}

// emittedBy sets the emitters of the rules that name none.
func emittedBy(emitters []Emitter, families ...[]Rule) []Rule {
	all := slices.Concat(families...)
	for i := range all {
		if len(all[i].Emitters) == 0 {
			all[i].Emitters = emitters
		}
	}
	return all
}

const (
	// logrus is the start of warnings and errors of containerd, CRI-O and dockerd.
	logrus = `^level=(?:error|fatal|panic|warning) msg="`
	// quoted is the start of klog's structured messages, and of the older unstructured ones.
	quoted = `^"?`
	// hour is the expiry of most rules: checks read the state.
	hour = time.Hour
)
