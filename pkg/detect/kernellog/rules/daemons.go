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
		countedRules(), spaceRules(), processRules(), // exhausted resources: causes before their effects
		stuckRules(),
		sharedRules(),
		runtimeRules(),
		kubeletRules(),
		kubeletPodRules(),
		systemdRules(),
		journalRules(),
		deviceDaemonRules(),
		hostDaemonRules(),
		auditRules(),
	)
}

const (
	// logrus is the start of warnings and errors of containerd, CRI-O and dockerd.
	logrus = `^level=(?:error|fatal|panic|warning) msg="`
	// quoted is the start of klog's structured messages, and of the older unstructured ones.
	quoted = `^"?`
	// hour is the expiry of most rules: checks read the state.
	hour = time.Hour
)
