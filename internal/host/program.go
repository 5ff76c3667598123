package host

import (
	"errors"
	"fmt"
	"io/fs"
)

// Program finds the process of one program in the network namespace of the host, and remembers it: as long as it lives, a
// look reads one file. It is for one caller at a time.
type Program struct {
	Comm string // the name that the kernel keeps: up to 15 bytes of the program file's

	last Process
}

// Find returns the process, one of root's; where several have the name, the oldest by number. An error that wraps fs.ErrNotExist means that
// none runs; to find that out, all processes are looked through.
func (d *Program) Find(h *Host) (Process, error) {
	if h.lives(d.last) {
		return d.last, nil
	}
	d.last = Process{}
	processes, err := h.rootsNamed(d.Comm)
	if err != nil {
		return Process{}, err
	}
	network, _ := h.Files.Link(procFile(h.Paths.InitPID, "ns/net")) // unknown: all count
	for _, process := range processes {
		own, err := h.Files.Link(procFile(process.PID, "ns/net"))
		if err != nil || network == "" || own == network {
			d.last = process
			return process, nil //nolint:nilerr // what cannot be told apart counts
		}
	}
	return Process{}, fmt.Errorf("no %s runs in the host's network: %w", d.Comm, fs.ErrNotExist)
}

// rootsNamed returns the living processes of root's with a name, in whatever cgroup and namespaces: kube-proxy runs in a pod.
func (h *Host) rootsNamed(name string) ([]Process, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var processes []Process
	for _, pid := range pids {
		stat, err := h.ProcStat(pid)
		if err != nil || !alive(stat) || stat.Comm != name {
			continue // most often gone meanwhile
		}
		if _, err := h.rootUser(pid); errors.Is(err, ErrImpostor) {
			continue
		}
		p := Process{PID: pid, StartTime: stat.StartTime, Comm: stat.Comm}
		if p.Args, err = h.ProcArgs(pid); err == nil && len(p.Args) > 0 && h.lives(p) {
			processes = append(processes, p)
		}
	}
	return processes, nil
}
