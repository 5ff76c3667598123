package host

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// ContainerProcesses returns the processes in the cgroup of a container, or in one below it, by its complete ID,
// ascending. It reads /proc/PID/cgroup of all processes. An error means that one of them could not be read: it may be
// the container's.
func (h *Host) ContainerProcesses(id string) ([]proc.Stat, error) {
	if !IsContainerID(id) {
		return nil, fmt.Errorf("%.100q is no ID of a container", id)
	}
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var found []proc.Stat
	for _, pid := range pids {
		cgroups, err := h.ProcCgroups(pid)
		if proc.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		inside := false
		for _, name := range cgroups {
			inside = inside || strings.Contains(name, id)
		}
		if !inside {
			continue
		}
		stat, err := h.ProcStat(pid)
		if proc.UnlessGone(err) != nil {
			return nil, err
		}
		if err == nil {
			found = append(found, stat)
		}
	}
	return found, nil
}

// MainProcess returns the process that the container was started with: the oldest of those whose parent, such as the
// runtime's shim, is outside. Processes run later in the container (exec) are children of the shim too.
func MainProcess(processes []proc.Stat) (main proc.Stat, ok bool) {
	for _, p := range processes {
		inside := slices.ContainsFunc(processes, func(other proc.Stat) bool { return other.PID == p.PPID })
		if !inside && (!ok || p.StartTime < main.StartTime) {
			main, ok = p, true
		}
	}
	return main, ok
}

// ContainerIDOf returns the ID in kubelet's status of a container: "containerd://<64 digits>". Empty if it has none.
func ContainerIDOf(status *corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	if !IsContainerID(id) {
		return ""
	}
	return id
}
