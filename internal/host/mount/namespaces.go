package mount

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// maxMountNamespaces bounds the namespaces to read: each container has one.
const maxMountNamespaces = 1 << 13

// OtherMountNamespaces returns the mount table of each mount namespace except this process's own, as one of its
// processes sees it. It does not find namespaces without a process. It is an error if one could not be read.
func OtherMountNamespaces(h *host.Host) ([]MountNamespace, error) {
	own, err := h.Files.Link("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	here, err := TableOf(h, os.Getpid())
	if err != nil {
		return nil, err
	}
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{own: true}
	var all []MountNamespace
	for _, pid := range pids {
		name, err := h.Files.Link(proc.File(pid, "ns/mnt"))
		if err != nil {
			name = strconv.Itoa(pid) // ended, or its namespaces cannot be read
		}
		if seen[name] {
			continue
		}
		mounts, err := TableOf(h, pid)
		switch {
		case errors.Is(err, errNoMounts), errors.Is(err, syscall.EINVAL), err != nil && ended(h, pid):
			continue // another process may see more; EINVAL: it is exiting, and has left its namespaces
		case err != nil:
			return nil, fmt.Errorf("mount namespace of process %d: %w", pid, err)
		case len(all) == maxMountNamespaces:
			return nil, fmt.Errorf("more than %d mount namespaces", maxMountNamespaces)
		}
		seen[name] = true
		// IDs are unique among all namespaces.
		if !slices.ContainsFunc(here, func(m Mount) bool { return m.ID == mounts[0].ID }) {
			all = append(all, MountNamespace{PID: pid, Mounts: mounts})
		}
	}
	return all, nil
}

// ended reports whether a process is gone, or is a zombie, which has no mounts any more.
func ended(h *host.Host, pid int) bool {
	stat, err := h.ProcStat(pid)
	return proc.Gone(err) || err == nil && !proc.Alive(stat)
}
