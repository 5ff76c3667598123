// Package mount reads mount tables, and says what an unmount would take along.
package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mountinfo"
)

// Mount is one line of a mount table.
type Mount = mountinfo.Mount

// ParseMounts reads a whole mount table. A malformed line is an error that quotes it.
func ParseMounts(r io.Reader) ([]Mount, error) { return mountinfo.Parse(r) }

// errNoMounts is what a process sees that changed its root to a plain directory.
var errNoMounts = errors.New("empty mount table")

// Table returns the mount table of the host: that of the process which stands for init. It is read each time, but may
// be shared with others where it has not changed: it must not be modified.
func Table(h *host.Host) ([]Mount, error) { return tableOf(h, max(h.Paths.InitPID, 1), h.Mounts.Read) }

// TableOf returns the mount table that a process sees. It works without touching any of the mounts.
func TableOf(h *host.Host, pid int) ([]Mount, error) { return tableOf(h, pid, mountinfo.Parse) }

func tableOf(h *host.Host, pid int, parse func(io.Reader) ([]Mount, error)) ([]Mount, error) {
	name := fmt.Sprintf("/proc/%d/mountinfo", pid)
	file, err := os.Open(h.Files.Path(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: host.MaxFile + 1}
	mounts, err := parse(limited)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("read %s: larger than %d bytes", name, host.MaxFile)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case len(mounts) == 0:
		// Even an empty container has a root: a table without any mount proves nothing.
		return nil, fmt.Errorf("read %s: %w", name, errNoMounts)
	}
	return mounts, nil
}

// Below reports whether name is dir or lies below it, by whole path components. Neither is looked up.
func Below(name, dir string) bool {
	name, dir = path.Clean(name), path.Clean(dir)
	return name == dir || dir == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, dir+"/")
}
