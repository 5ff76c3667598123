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
		exhaustionRules(), // the cause before what fails because of it
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
	// logrus is how lines of containerd, CRI-O and dockerd with a warning or an error begin.
	logrus = `^level=(?:error|fatal|panic|warning) msg="`
	// quoted is the beginning of klog's structured messages, and of those from before they were.
	quoted = `^"?`
	// hour is the expiry of most rules: checks read the state.
	hour = time.Hour
)
