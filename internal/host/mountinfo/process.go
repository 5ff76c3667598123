package mountinfo

import (
	"errors"
	"fmt"

	"github.com/nodeagent/nodeagent/internal/host/files"
)

// ErrNoMounts is the error for a process that changed its root to a plain directory.
var ErrNoMounts = errors.New("empty mount table")

// NameOf is the file with the mount table that a process sees.
func NameOf(pid int) string { return fmt.Sprintf("/proc/%d/mountinfo", pid) }

// OfProcess returns the mount table that a process sees, as read by ReadFile or ReadOther of a Reader. It works without
// touching any of the mounts.
func OfProcess(tree files.Tree, pid int, read func(*File, int64) ([]Mount, error)) ([]Mount, error) {
	name := NameOf(pid)
	file, err := Open(tree.Path(name))
	if err != nil {
		return nil, err
	}
	mounts, err := read(file, files.Max)
	if err != nil {
		return nil, err
	}
	if len(mounts) == 0 {
		// Even an empty container has a root: a table without any mount proves nothing.
		return nil, fmt.Errorf("read %s: %w", name, ErrNoMounts)
	}
	return mounts, nil
}
