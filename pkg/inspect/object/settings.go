package object

import (
	"time"
)

// DefaultSettings are the thresholds unless configured otherwise.
func DefaultSettings() Settings {
	return Settings{
		Every:       time.Minute,
		Passes:      3,
		Grace:       10 * time.Minute,
		ListSpacing: 30 * time.Second,

		RunningSpacing: 10 * time.Minute,

		KubeletUptime: 10 * time.Minute,
		RuntimeUptime: 5 * time.Minute,
		MassOrphaning: 3,
		MassPercent:   20,
	}
}

// Settings are the thresholds of an inspection.
type Settings struct {
	Every          time.Duration `yaml:"every"`          // interval between passes of the daemon
	Passes         int           `yaml:"passes"`         // a leftover must be seen in this number of passes
	Grace          time.Duration `yaml:"grace"`          // … that span at least this time
	ListSpacing    time.Duration `yaml:"listSpacing"`    // minimum time between the two LISTs without it
	RunningSpacing time.Duration `yaml:"runningSpacing"` // … where a container of its pod is running
	KubeletUptime  time.Duration `yaml:"kubeletUptime"`  // minimum uptime of kubelet
	RuntimeUptime  time.Duration `yaml:"runtimeUptime"`  // and of the runtime
	MassOrphaning  int           `yaml:"massOrphaning"`  // circuit breaker: more orphaned pods than this …
	// … and more than this share of all pods on the node stop everything
	MassPercent    int  `yaml:"massPercent"`
	HostNamespaces bool `yaml:"-"` // the agent sees the host's processes
	// OptedIn are the opt-in kinds of the configuration: a release may follow their proof.
	OptedIn []Kind `yaml:"-"`
	// OptOutPods are label selectors of pods that must not be released.
	OptOutPods []string `yaml:"-"`
}
