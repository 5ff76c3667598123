package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// maxMonitorFiles bounds how many files of node-problem-detector are run.
const maxMonitorFiles = 100

// Monitors are the files of node-problem-detector that a configuration names, as they are now.
type Monitors struct {
	Files  []npd.File
	Broken []error  // why a file is not run: file:line:column: what
	Digest [32]byte // of all names and contents
}

// ReadMonitors reads the files of node-problem-detector. One that is broken costs only itself.
func ReadMonitors(s npd.Settings) Monitors {
	var m Monitors
	sum := sha256.New()
	names, problems := monitorFiles(s.Files)
	m.Broken = problems
	for _, name := range names {
		data, err := readBounded(name)
		fmt.Fprintf(sum, "%d %s %d %s %v\n", len(name), name, len(data), data, err)
		if err != nil {
			m.Broken = append(m.Broken, fmt.Errorf("%s: %w", name, bare(err)))
			continue
		}
		file, err := npd.Decode(name, data)
		if err != nil {
			m.Broken = append(m.Broken, err)
			continue
		}
		m.Files = append(m.Files, file)
	}
	fmt.Fprintln(sum, problems)
	sum.Sum(m.Digest[:0])
	return m
}

// bare is an error without the name of its file, where it is about one.
func bare(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// monitorFiles returns the files that patterns name, sorted, each once. A name without a wildcard is that of a file
// which must exist.
func monitorFiles(patterns []string) (names []string, problems []error) {
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", pattern, err))
			continue
		}
		if len(found) == 0 && !hasWildcard(pattern) {
			found = []string{pattern} // so that its absence is an error
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxMonitorFiles {
		problems = append(problems, fmt.Errorf("%s: the %d files after this one are not run: %d are possible",
			names[maxMonitorFiles-1], len(names)-maxMonitorFiles, maxMonitorFiles))
		names = names[:maxMonitorFiles]
	}
	return names, problems
}

func hasWildcard(pattern string) bool {
	for i := range len(pattern) {
		switch pattern[i] {
		case '*', '?', '[', '\\':
			return true
		}
	}
	return false
}
