package npd

import (
	"path"
	"time"
)

// Settings say which files are run, and where the agent deviates from node-problem-detector.
type Settings struct {
	// Files are patterns of paths, such as /etc/node-problem-detector/*.json. Each file's content says which monitor
	// it is for.
	Files []string `yaml:"files"`
	// Directory is where relative paths of plugins begin. Unless set: the folder of the file, or the one above.
	Directory string `yaml:"directory,omitempty"`

	// ClearByState clears a condition that one of the agent's own checks can read from state, as soon as that check
	// finds no fault. Otherwise it stays until its recovery pattern, its expiry or the next boot.
	ClearByState bool `yaml:"clearByState"`
	// Expiry is how long after the last matching line a permanent problem is over, where its rule has no expiry of
	// its own. 0: with the next boot, as it would be with node-problem-detector's restart.
	Expiry time.Duration `yaml:"expiry"`
	// KernelOnly makes only the kernel's own records of /dev/kmsg count. node-problem-detector accepts those of
	// programs, too.
	KernelOnly bool `yaml:"kernelOnly"`
	// UnknownIsProblem reports a plugin's answer "unknown" of a temporary rule as an event, as node-problem-detector
	// does.
	UnknownIsProblem bool `yaml:"unknownIsProblem"`
	// RepeatEvents reports the problem of a temporary plugin rule again at each run, not only when it begins and ends.
	RepeatEvents bool `yaml:"repeatEvents"`
	// RunHealthChecker runs the program health-checker, which restarts what it finds unhealthy, instead of using the
	// agent's own checks.
	RunHealthChecker bool `yaml:"runHealthChecker"`
	// SystemStats serves the metrics of system stats monitors.
	SystemStats bool `yaml:"systemStats"`
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise: no file is run.
func DefaultSettings() Settings {
	return Settings{Files: []string{}, ClearByState: true, SystemStats: true}
}

// Problems returns what is wrong with s.
func (s Settings) Problems() map[string]string {
	problems := map[string]string{}
	for _, pattern := range s.Files {
		if !path.IsAbs(pattern) {
			problems["files"] = "must be absolute paths, which may contain * and ?"
		}
	}
	if s.Directory != "" && !path.IsAbs(s.Directory) {
		problems["directory"] = "must be an absolute path"
	}
	return problems
}
