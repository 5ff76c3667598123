package rules

import (
	"slices"
	"time"
)

// Daemons returns the table of what daemons say. It is for logs that are read afterwards (nodeagent replay): in the
// live agent the checks named by ConfirmedBy look at the state itself, and need no words. A rule believes its
// speakers only: what a pod writes does not come from them. Where their words repeat what a pod's author chose
// (names, commands, images), a line is never more than a warning.
func Daemons() []Rule {
	return slices.Concat(
		sharedRules(), // the cause before what fails because of it
		runtimeRules(),
		kubeletRules(),
		kubeletPodRules(),
		systemdRules(),
		journalRules(),
		deviceDaemonRules(),
		hostDaemonRules(),
	)
}

const (
	// logrus is how lines of containerd, CRI-O and dockerd begin that tell of something wrong.
	logrus = `^level=(?:error|fatal|panic|warning) msg="`
	// quoted is the beginning of klog's structured messages, and of those from before they were.
	quoted = `^"?`
	// hour is how long most words of daemons are worth telling: their state is looked at by checks.
	hour = time.Hour
)
