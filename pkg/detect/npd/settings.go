package npd

import (
	"path"
	"time"

	"github.com/nodeagent/nodeagent/internal/setting"
)

// Settings say which files are run, and where the agent deviates from node-problem-detector.
type Settings struct {
	// Files are path patterns, for example /etc/node-problem-detector/*.json. The content of each file determines its
	// monitor.
	Files []string `yaml:"files"`
	// Directory is the base of relative paths of plugins. Unless set: the folder of the file, or the one above.
	Directory string `yaml:"directory,omitempty"`

	// ClearByState clears a condition that one of the agent's own checks can read from state, as soon as that check
	// finds no fault. Otherwise it stays until its recovery pattern, its expiry or the next boot.
	ClearByState bool `yaml:"clearByState"`
	// Expiry is how long after the last matching line a permanent problem ends, if its rule has no expiry. 0: at the
	// next boot, like a restart of node-problem-detector.
	Expiry time.Duration `yaml:"expiry"`
	// KernelOnly makes only the kernel's own records of /dev/kmsg count. node-problem-detector accepts records of
	// programs, too.
	KernelOnly bool `yaml:"kernelOnly"`
	// UnknownIsProblem reports a plugin's answer "unknown" of a temporary rule as an event, like node-problem-detector.
	UnknownIsProblem bool `yaml:"unknownIsProblem"`
	// RepeatEvents reports the problem of a temporary plugin rule at each run, not only when it begins and ends.
	RepeatEvents bool `yaml:"repeatEvents"`
	// RunHealthChecker runs the program health-checker, which restarts unhealthy components, instead of the agent's own
	// checks.
	RunHealthChecker bool `yaml:"runHealthChecker"`
	// SystemStats was removed: a configuration that sets it stays valid.
	SystemStats any `yaml:"systemStats,omitempty"`
}

// DefaultSettings returns the default settings: no file is run.
func DefaultSettings() Settings {
	return Settings{Files: []string{}, ClearByState: true}
}

// Validate returns the invalid settings.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	for _, pattern := range s.Files {
		wrong.Check("files", path.IsAbs(pattern), "must be absolute paths, which may contain * and ?")
	}
	wrong.Check("directory", s.Directory == "" || path.IsAbs(s.Directory), "must be an absolute path")
	return wrong.OrNil()
}
