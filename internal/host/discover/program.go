package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// Program finds the process of one program in the network namespace of the host, and remembers it: while it lives,
// finding it reads one file, unless it is doubtful. It is for one caller at a time.
type Program struct {
	Comm string // the kernel's name: up to 15 bytes of the program file's
	// Doubtful processes only count if there is no other one; nil: none is.
	Doubtful func(host.Process) bool

	last     host.Process
	doubtful bool // last is
}

// Find returns the process of root; if several have the name, the one with the lowest PID. An error that wraps
// fs.ErrNotExist means that none runs; to find that out, it scans all processes.
func (d *Program) Find(h *host.Host) (host.Process, error) {
	if lives(h, d.last) && !d.doubtful {
		return d.last, nil
	}
	d.last = host.Process{}
	processes, err := rootsNamed(h, d.Comm)
	if err != nil {
		return host.Process{}, err
	}
	network, _ := h.Files.Link(proc.File(h.Paths.InitPID, "ns/net")) // unknown: all count
	processes = slices.DeleteFunc(processes, func(p host.Process) bool {
		own, err := h.Files.Link(proc.File(p.PID, "ns/net"))
		return err == nil && network != "" && own != network // what cannot be distinguished counts
	})
	if len(processes) > 0 {
		i := slices.IndexFunc(processes, func(p host.Process) bool { return d.Doubtful == nil || !d.Doubtful(p) })
		d.last, d.doubtful = processes[max(i, 0)], i < 0
		return d.last, nil
	}
	return host.Process{}, fmt.Errorf("no %s runs in the host's network: %w", d.Comm, fs.ErrNotExist)
}

// rootsNamed returns the living processes of root with a name, in any cgroup and namespace: kube-proxy runs in a pod.
func rootsNamed(h *host.Host, name string) ([]host.Process, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var processes []host.Process
	for _, pid := range pids {
		stat, err := h.ProcStat(pid)
		if err != nil || !runs(stat) || stat.Comm != name {
			continue // most often gone meanwhile
		}
		if _, err := rootUser(h, pid); errors.Is(err, ErrImpostor) {
			continue
		}
		p := processOf(stat)
		if p.Args, err = h.ProcArgs(pid); err == nil && len(p.Args) > 0 && lives(h, p) {
			processes = append(processes, p)
		}
	}
	return processes, nil
}
