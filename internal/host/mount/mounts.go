// Package mount reads mount tables, and predicts the effects of an unmount.
package mount

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

// Mount is one line of a mount table.
type Mount = mountinfo.Mount

// errNoMounts is the error for a process that changed its root to a plain directory.
var errNoMounts = errors.New("empty mount table")

// recentFor is the maximum age of a table returned by Recent. Changes that the kernel does not report are seen after
// this time.
const recentFor = 5 * time.Minute

// Table returns the mount table of the host: that of the process that stands for init. It is read each time, but may be
// shared with other callers if it has not changed: it must not be modified.
func Table(h *host.Host) ([]Mount, error) { return tableOf(h, initPID(h), h.Mounts) }

// Recent is Table for callers interested in the mount points: the table is read again after a mount or an unmount, and
// every five minutes. The kernel does not report that a filesystem became read-only: use Filesystems for that, and
// Table before a change. Reading costs the kernel some 5 microseconds for each mount.
func Recent(h *host.Host) ([]Mount, error) {
	if mounts, ok := h.Mounts.Recent(h.Files.Path(tableName(initPID(h))), recentFor); ok {
		return mounts, nil
	}
	return Table(h)
}

// Filesystems is Recent that also notices if a filesystem with a wanted mount became read-only.
func Filesystems(h *host.Host, wanted func(Mount) bool) ([]Mount, error) {
	if mounts, ok := h.Mounts.RecentWith(h.Files.Path(tableName(initPID(h))), recentFor, wanted); ok {
		return mounts, nil
	}
	return Table(h)
}

func initPID(h *host.Host) int { return max(h.Paths.InitPID, 1) }

// TableOf returns the mount table of a process. It does not touch any of the mounts.
func TableOf(h *host.Host, pid int) ([]Mount, error) { return tableOf(h, pid, nil) }

func tableName(pid int) string { return fmt.Sprintf("/proc/%d/mountinfo", pid) }

func tableOf(h *host.Host, pid int, reader *mountinfo.Reader) ([]Mount, error) {
	name := tableName(pid)
	file, err := mountinfo.Open(h.Files.Path(name))
	if err != nil {
		return nil, err
	}
	mounts, err := reader.ReadFile(file, host.MaxFile)
	if err != nil {
		return nil, err
	}
	if len(mounts) == 0 {
		// Even an empty container has a root: a table without any mount proves nothing.
		return nil, fmt.Errorf("read %s: %w", name, errNoMounts)
	}
	return mounts, nil
}

// Below reports whether name is dir or lies below it, by complete path components. It looks up neither.
func Below(name, dir string) bool {
	name, dir = path.Clean(name), path.Clean(dir)
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}
