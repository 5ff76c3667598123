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

// ErrUnsureKubelet says that a process may be this node's kubelet, which could not be told.
var ErrUnsureKubelet = errors.New("whether it is this node's kubelet cannot be told")

// KubeletFinder returns the door to the process of the kubelet whose root directory is paths.KubeletRoot. The process is
// remembered, so that a look at a living kubelet reads one file; only where it is gone all processes are looked through.
func KubeletFinder(files Files, paths Paths) func() (Process, error) {
	h := &Host{Files: files, Paths: paths}
	var mu sync.Mutex // guards last
	var last Process
	return func() (Process, error) {
		mu.Lock()
		defer mu.Unlock()
		if h.lives(last) {
			return last, nil
		}
		var err error
		last, err = findKubelet(h, paths.KubeletRoot)
		return last, err
	}
}

// findKubelet returns the believed kubelet that runs with the root directory, of any where root is empty. An error that wraps
// fs.ErrNotExist means that none runs, whatever has its name; one that wraps ErrUnsureKubelet that a process of root's may be it.
func findKubelet(h *Host, root string) (Process, error) {
	all, err := h.candidates(isKubelet)
	if err != nil {
		return Process{}, err
	}
	kubelets, unsure := believed(all)
	var found []Process
	for _, process := range kubelets {
		own := parseFlags(process.Args)["root-dir"]
		if own == "" {
			own = DefaultPaths().KubeletRoot
		}
		own = h.absoluteIn(own, process.PID)
		if root != "" && !h.samePath(own, root) {
			continue
		}
		if _, err := h.Files.CheckOwned(own); err != nil && !errors.Is(err, fs.ErrNotExist) && h.unlessUnprivileged(err) != nil {
			unsure = errors.Join(unsure, fmt.Errorf("process %d (%s): its root directory: %w", process.PID, process.Comm, err))
			continue
		}
		found = append(found, process)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Process{}, fmt.Errorf("processes %d and %d: %w", found[0].PID, found[1].PID, ErrSeveralKubelets)
	case unsure != nil:
		return Process{}, fmt.Errorf("%w: %w", ErrUnsureKubelet, unsure)
	case root != "":
		return Process{}, fmt.Errorf("no kubelet runs with root directory %s: %w", root, fs.ErrNotExist)
	}
	return Process{}, fmt.Errorf("no kubelet runs: %w", fs.ErrNotExist)
}

// absoluteIn resolves a path relative to the working directory of a process; it stays where that is not known.
func (h *Host) absoluteIn(path string, pid int) string {
	if filepath.IsAbs(path) {
		return path
	}
	dir, err := h.Files.Link(procFile(pid, "cwd"))
	if err != nil {
		return path
	}
	return filepath.Join(dir, path)
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

// embeddedKubelet names the program of root's that a kubelet is part of, without a process of its own.
func (d *discoverer) embeddedKubelet() (string, error) {
	all, err := d.host.candidates(func(comm string, _ []string) bool { return embedsKubelet(comm) })
	if err != nil {
		return "", err
	}
	processes, unsure := believed(all)
	if unsure != nil {
		d.note("%v", unsure)
	}
	if len(processes) == 0 {
		return "", nil
	}
	return processes[0].Comm, nil
}

func embedsKubelet(comm string) bool {
	return comm == "k3s" || comm == "k3s-server" || comm == "k3s-agent" || comm == "kubelite" || comm == "k0s"
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
