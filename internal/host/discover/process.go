package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// ErrSeveralKubelets means that more than one running kubelet could be this node's.
var ErrSeveralKubelets = errors.New("several kubelets run here: set paths.kubeletRoot to that of this node")

// ErrUnsureKubelet means that it is unknown whether a process is this node's kubelet.
var ErrUnsureKubelet = errors.New("it is not known whether it is this node's kubelet")

// KubeletFinder returns a function that finds the process of the kubelet with the root directory paths.KubeletRoot. It
// remembers the process, so that checking a living kubelet reads one file; it scans all processes only if that one is
// gone.
func KubeletFinder(files host.Files, paths host.Paths) func() (host.Process, error) {
	h := &host.Host{Files: files, Paths: paths}
	var mu sync.Mutex // guards last
	var last host.Process
	return func() (host.Process, error) {
		mu.Lock()
		defer mu.Unlock()
		if lives(h, last) {
			return last, nil
		}
		var err error
		last, err = findKubelet(h, paths.KubeletRoot)
		return last, err
	}
}

// findKubelet returns the trusted running kubelet with the root directory, or with any if root is empty. An error that
// wraps fs.ErrNotExist means that none runs, whatever has its name; one that wraps ErrUnsureKubelet, that a process of
// root's may be it.
func findKubelet(h *host.Host, root string) (host.Process, error) {
	all, err := candidates(h, isKubelet)
	if err != nil {
		return host.Process{}, err
	}
	kubelets, unsure := believed(all)
	var found []host.Process
	d := &discoverer{host: h}
	for _, process := range kubelets {
		if of, embedded := distro.Embedding(process.Comm); embedded && d.installRunning(of, process).none() {
			continue // it runs the control plane only
		}
		flags, err := d.flagsOf(process)
		if err != nil {
			unsure = errors.Join(unsure, fmt.Errorf("process %d (%s): its root directory: %w", process.PID,
				process.Comm, err))
			continue
		}
		own := absoluteIn(h, cmp.Or(flags["root-dir"], DefaultPaths().KubeletRoot), process.PID)
		if root != "" && !samePath(h, own, root) {
			continue
		}
		if _, err := h.Files.CheckOwned(own); err != nil && !errors.Is(err, fs.ErrNotExist) &&
			unlessUnprivileged(err) != nil {
			unsure = errors.Join(unsure, fmt.Errorf("process %d (%s): its root directory: %w", process.PID,
				process.Comm, err))
			continue
		}
		found = append(found, process)
	}
	found = withoutChildren(h, found)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return host.Process{}, fmt.Errorf("processes %d and %d: %w", found[0].PID, found[1].PID, ErrSeveralKubelets)
	case unsure != nil:
		return host.Process{}, fmt.Errorf("%w: %w", ErrUnsureKubelet, unsure)
	case root != "":
		return host.Process{}, fmt.Errorf("no kubelet runs with root directory %s: %w", root, fs.ErrNotExist)
	}
	return host.Process{}, fmt.Errorf("no kubelet runs: %w", fs.ErrNotExist)
}

// withoutChildren leaves out children of others: a child has its parent's name until it executes its program.
func withoutChildren(h *host.Host, processes []host.Process) []host.Process {
	if len(processes) < 2 {
		return processes
	}
	return slices.DeleteFunc(slices.Clone(processes), func(p host.Process) bool {
		stat, err := h.ProcStat(p.PID)
		return err == nil && slices.ContainsFunc(processes, func(of host.Process) bool {
			return of.PID == stat.PPID && of.Comm == p.Comm
		})
	})
}

// absoluteIn resolves a path relative to the working directory of a process; unchanged if that directory is unknown.
func absoluteIn(h *host.Host, path string, pid int) string {
	if filepath.IsAbs(path) {
		return path
	}
	dir, err := h.Files.Link(proc.File(pid, "cwd"))
	if err != nil {
		return path
	}
	return filepath.Join(dir, path)
}

// lives reports whether an earlier process still runs, and still the same program.
func lives(h *host.Host, p host.Process) bool {
	if p.PID == 0 {
		return false
	}
	stat, err := h.ProcStat(p.PID)
	return err == nil && stat.StartTime == p.StartTime && stat.Comm == p.Comm && runs(stat)
}

// runs reports whether a daemon runs. Without its main thread it is ending, although a hung thread may be left.
func runs(stat proc.Stat) bool { return proc.Alive(stat) && stat.State != 'Z' }

// isKubelet recognizes kubelet by its name, also with a version ("kubelet-1.36.3"), behind a loader, as "hyperkube
// kubelet", or as part of a distribution's program. The kernel's name is that of the program file, so the arguments of
// programs with other names are not read.
func isKubelet(comm string, args []string) bool {
	if of, embeds := distro.Embedding(comm); embeds {
		return args == nil || runsNode(of, comm, args)
	}
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

// runsNode excludes other commands of a program of many: "k3s kubectl" beside "k3s server". A program that has
// overwritten its arguments has them in one.
func runsNode(of distro.Distribution, comm string, args []string) bool {
	if comm != of.Launcher || len(of.Programs) == 1 {
		return true
	}
	words := strings.Fields(strings.Join(args, " "))
	return slices.ContainsFunc(of.Programs, func(program string) bool {
		command, ok := strings.CutPrefix(program, of.Launcher+"-")
		return ok && slices.Contains(words, command)
	})
}

// Nested reports whether a process lives in its own PID namespace below the node's: in a container, which may be a node
// itself (kind, k3d). If the kernel does not say, it counts as the node's.
func Nested(h *host.Host, pid int) bool {
	its, own := pidDepth(h, pid), pidDepth(h, cmp.Or(h.Paths.InitPID, 1))
	return its != 0 && own != 0 && its != own
}

// pidDepth returns in how many PID namespaces below that of our /proc a process lives, itself included; 0 if the kernel
// does not say (NSpid in proc_pid_status(5)).
func pidDepth(h *host.Host, pid int) int {
	pids, _ := statusFields(h, pid, "NSpid")
	return len(pids)
}

// statusFields returns a line of /proc/PID/status.
func statusFields(h *host.Host, pid int, key string) ([]string, error) {
	name := proc.File(pid, "status")
	data, err := h.Files.Read(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Fields(value), nil
		}
	}
	return nil, fmt.Errorf("%s: no %s", name, key)
}

// samePath compares two paths after following symbolic links.
func samePath(h *host.Host, a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	realA, errA := filepath.EvalSymlinks(h.Files.Path(a))
	realB, errB := filepath.EvalSymlinks(h.Files.Path(b))
	return errA == nil && errB == nil && realA == realB
}
