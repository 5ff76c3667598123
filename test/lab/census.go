package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// census finds every living process of the lab in dir, by independent marks: it is in the session of a recorded
// process, it is below the lab's cgroup, or it is a program of the lab that was started to work in dir. The caller and
// its ancestors are never included, whatever marks they have.
func census(dir string) []process {
	recorded := recordedProcesses(dir)
	sessions := map[int]bool{}
	for _, p := range recorded {
		// While a session's number is in use the kernel gives it to no new process: either its leader is ours or it has
		// ended.
		s, err := readStat(p.PID)
		sessions[p.PID] = p.Boot == bootID() && (err != nil || s.Start == p.Start)
	}
	spared := ancestors(os.Getpid())
	var found []process
	for _, pid := range allPIDs() {
		s, err := readStat(pid)
		if err != nil || s.dead() || spared[pid] {
			continue
		}
		if sessions[s.Session] || inLabCgroup(pid, dir) || worksIn(arguments(pid), dir) {
			found = append(found, process{PID: pid, Start: s.Start, Boot: bootID()})
		}
	}
	return found
}

func recordedProcesses(dir string) []process {
	files, _ := filepath.Glob(pidFile(dir, "*")) // the pattern is well-formed
	var all []process
	for _, file := range files {
		if p, err := readPIDFile(file); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func allPIDs() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func ancestors(pid int) map[int]bool {
	found := map[int]bool{1: true}
	for pid > 1 && !found[pid] {
		found[pid] = true
		s, err := readStat(pid)
		if err != nil {
			break
		}
		pid = s.Parent
	}
	return found
}

func inLabCgroup(pid int, dir string) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && within(parts[2], cgroupRoot(dir)) {
			return true
		}
	}
	return false
}

func arguments(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// worksIn reports whether a command line is that of one of the lab's programs, with an argument that is in dir. The
// records of a lab may be gone while its processes live on, and a shim of its containerd is never recorded.
func worksIn(argv []string, dir string) bool {
	if len(argv) == 0 || !slices.Contains(programs[:], filepath.Base(argv[0])) {
		return false
	}
	for _, arg := range argv {
		_, value, _ := strings.Cut(arg, "=")
		if within(arg, dir) || within(value, dir) {
			return true
		}
	}
	return false
}

// programs are the names of the lab's programs. A shim has its containerd's socket among its arguments.
var programs = [...]string{
	"etcd", "containerd", "containerd-shim-runc-v2", "crio", "conmon", "nodeproxy",
	"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet",
}
