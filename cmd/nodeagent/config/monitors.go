package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// maxMonitorFiles bounds the node-problem-detector files to run.
const maxMonitorFiles = 100

// Monitors are the node-problem-detector files of a configuration, as read.
type Monitors struct {
	Files  []npd.File
	Broken []error  // why a file is not run: file:line:column: message
	Digest [32]byte // of all names and contents
}

// ReadMonitors reads the node-problem-detector files. A broken one disables only itself.
func ReadMonitors(s npd.Settings) Monitors {
	var m Monitors
	sum := sha256.New()
	names, problems := monitorFiles(s.Files)
	m.Broken = problems
	for _, name := range names {
		data, err := readMonitor(name)
		doubt := errors.Is(err, owned.ErrOthers)
		fmt.Fprintf(sum, "%d %s %d %s %v\n", len(name), name, len(data), data, err)
		if err != nil && !doubt {
			m.Broken = append(m.Broken, fmt.Errorf("%s: %w", name, bare(err)))
			continue
		}
		file, broken := npd.Decode(name, data)
		if !doubt {
			err = broken
		}
		if err != nil {
			m.Broken = append(m.Broken, &npd.DoubtError{File: file, Err: err})
			continue
		}
		m.Files = append(m.Files, file)
	}
	fmt.Fprintln(sum, problems)
	sum.Sum(m.Digest[:0])
	return m
}

// Ignored returns the files that are not run, and why. They are no mistakes: node-problem-detector's package has such a file.
func (m Monitors) Ignored() (ignored []string) {
	for _, f := range m.Files {
		if f.Kind == npd.StatsMonitor {
			ignored = append(ignored, f.Name+" is not run: node_exporter serves the metrics of system stats monitors")
		}
	}
	return ignored
}

// readMonitor reads a file of node-problem-detector. If users other than root can change it, it comes with an
// owned.ErrOthers that has its mode. Its folder does not count: kubelet lets everybody write to that of a ConfigMap's
// volume, into which no other pod can see.
func readMonitor(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // waits for no FIFO
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNotRegular
	}
	data, err := readUpTo(name, file)
	switch {
	case err != nil:
		return nil, err
	case !owned.UID(stat.Uid):
		return data, fmt.Errorf("%s: owned by user %d: %w", name, stat.Uid, owned.ErrOthers)
	case stat.Mode&0o022 != 0:
		return data, fmt.Errorf("%s: mode %04o: %w", name, stat.Mode&0o7777, owned.ErrOthers)
	}
	return data, nil
}

var errNotRegular = errors.New("not a regular file")

// bare returns an error without the name of its file, if it has one.
func bare(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// monitorFiles returns the files that match patterns, sorted, each once. A name without a wildcard must exist.
func monitorFiles(patterns []string) (names []string, problems []error) {
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", pattern, err))
			continue
		}
		if len(found) == 0 && !hasWildcard(pattern) {
			found = []string{pattern} // so that a missing file is an error
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

func hasWildcard(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }
