package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
)

// ErrSeveralKubelets says that more than one running kubelet could be this node's.
var ErrSeveralKubelets = errors.New("several kubelets run here: set kubeletRoot to tell which is meant")

// KubeletFinder returns the door to the process of the kubelet whose root directory is paths.KubeletRoot. The process is
// remembered, so that a look at a living kubelet reads one file; only where it is gone all processes are looked through.
func KubeletFinder(files Files, paths Paths) func() (Process, error) {
	h := &Host{Files: files}
	var mu sync.Mutex // guards last
	var last Process
	return func() (Process, error) {
		mu.Lock()
		defer mu.Unlock()
		if h.lives(last) {
			return last, nil
		}
		var err error
		last, err = findKubelet(h, paths.KubeletRoot, paths.InitPID)
		return last, err
	}
}

// findKubelet returns the kubelet that runs with the root directory, of any where root is empty. Kubelets in nested PID
// namespaces (kind nodes) are other machines'. An error that wraps fs.ErrNotExist means that none runs.
func findKubelet(h *Host, root string, initPID int) (Process, error) {
	processes, err := h.processesNamed(isKubelet)
	if err != nil {
		return Process{}, err
	}
	var found []Process
	for _, process := range processes {
		own := parseFlags(process.Args)["root-dir"]
		if own == "" {
			own = DefaultPaths().KubeletRoot
		}
		if (root == "" || h.samePath(own, root)) && !h.nested(process.PID, initPID) {
			found = append(found, process)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Process{}, fmt.Errorf("processes %d and %d: %w", found[0].PID, found[1].PID, ErrSeveralKubelets)
	case root != "":
		return Process{}, fmt.Errorf("no kubelet runs with root directory %s: %w", root, fs.ErrNotExist)
	}
	return Process{}, fmt.Errorf("no kubelet runs: %w", fs.ErrNotExist)
}

// processesNamed returns the living processes for which wanted is true. It is asked by the kernel's name first, because
// reading arguments may block; only those that it accepts so (args nil) are read and asked again.
func (h *Host) processesNamed(wanted func(comm string, args []string) bool) ([]Process, error) {
	pids, err := h.PIDs()
	if err != nil {
		return nil, err
	}
	var processes []Process
	for _, pid := range pids {
		stat, err := h.ProcStat(pid)
		if err != nil || !alive(stat) || !wanted(stat.Comm, nil) {
			continue // most often gone meanwhile
		}
		args, err := h.ProcArgs(pid)
		if err != nil || len(args) == 0 || !wanted(stat.Comm, args) {
			continue
		}
		processes = append(processes, Process{PID: pid, StartTime: stat.StartTime, Comm: stat.Comm, Args: args})
	}
	return processes, nil
}

// lives reports whether a process that was found earlier still runs, and still the same program.
func (h *Host) lives(p Process) bool {
	if p.PID == 0 {
		return false
	}
	stat, err := h.ProcStat(p.PID)
	return err == nil && stat.StartTime == p.StartTime && stat.Comm == p.Comm && alive(stat)
}

func alive(stat ProcStat) bool { return stat.State != 'Z' && stat.State != 'X' && stat.State != 'x' }

// isKubelet knows kubelet by its name, also with a version ("kubelet-1.36.3"), behind a loader or as "hyperkube kubelet".
// The name that the kernel keeps is that of the program file, so a program called otherwise is not asked for its
// arguments.
func isKubelet(comm string, args []string) bool {
	suffix, named := strings.CutPrefix(comm, "kubelet")
	version := strings.TrimLeft(suffix, "-_.v")
	named = named && (suffix == "" || (version != "" && version[0] >= '0' && version[0] <= '9'))
	if !named && comm != "hyperkube" && !strings.HasPrefix(comm, "ld-linux") {
		return false
	}
	if args == nil {
		return true
	}
	for _, arg := range args[:min(3, len(args))] {
		if base := filepath.Base(arg); base == "kubelet" || (named && strings.HasPrefix(base, comm)) {
			return true
		}
	}
	return false
}

// embeddedKubelet names the program that a kubelet is part of, without a process of its own.
func (d *discoverer) embeddedKubelet() (string, error) {
	processes, err := d.host.processesNamed(func(comm string, _ []string) bool {
		return comm == "k3s" || comm == "k3s-server" || comm == "k3s-agent" || comm == "kubelite" || comm == "k0s"
	})
	if err != nil || len(processes) == 0 {
		return "", err
	}
	return processes[0].Comm, nil
}

// Nested tells whether a process lives in a PID namespace of its own below the node's: in a container, which may be a node itself
// (kind, k3d). Where the kernel does not say it is taken for one of the node's.
func (h *Host) Nested(pid int) bool { return h.nested(pid, cmp.Or(h.Paths.InitPID, 1)) }

func (h *Host) nested(pid, initPID int) bool {
	its, own := h.pidDepth(pid), h.pidDepth(initPID)
	return its != 0 && own != 0 && its != own
}

// pidDepth returns in how many PID namespaces below that of our /proc a process lives, itself included; 0 where the
// kernel does not say (NSpid in proc_pid_status(5)).
func (h *Host) pidDepth(pid int) int {
	data, err := h.Files.Read(procFile(pid, "status"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(pids))
		}
	}
	return 0
}

// samePath compares two paths by what they are, symbolic links followed.
func (h *Host) samePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	realA, errA := filepath.EvalSymlinks(h.Files.Path(a))
	realB, errB := filepath.EvalSymlinks(h.Files.Path(b))
	return errA == nil && errB == nil && realA == realB
}
