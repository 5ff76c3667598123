package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
)

// processTable is one pass over /proc.
type processTable struct {
	pods    []podProcess     // those in a pod's cgroup
	nested  []podProcess     // those in a kubepods tree that is not our kubelet's
	members map[string][]int // processes by cgroup: memberKey
	pids    []int            // all
}

// podProcess is a process in a cgroup of a pod.
type podProcess struct {
	host.ProcStat
	uid, container, cgroup string
	conflict               string // set when hierarchies tell different pods
}

// memberKey names one cgroup of one hierarchy, both as in /proc/PID/cgroup.
func memberKey(hierarchy, cgroup string) string { return hierarchy + ":" + cgroup }

// gone reports whether a read in /proc failed because the process has ended.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// readProcesses makes one pass over /proc. A process is the pod's that any of its cgroups belongs to: half-done clean-ups
// leave processes in some hierarchies only. In cgroup v1 a zombie is in no cgroup and is not seen.
func readProcesses(ctx context.Context, h *host.Host) (processTable, error) {
	pids, err := h.PIDs()
	if err != nil {
		return processTable{}, err
	}
	table := processTable{pids: pids, members: make(map[string][]int)}
	pods := podLookup{paths: h.Paths, known: make(map[string]cgroupPod)}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return processTable{}, fmt.Errorf("processes: %w", err)
		}
		cgroups, err := h.ProcCgroups(pid)
		if gone(err) {
			continue
		}
		if err != nil {
			return processTable{}, err
		}
		p, ours, nested := pods.ofProcess(cgroups)
		if !ours && !nested {
			continue
		}
		if p.ProcStat, err = h.ProcStat(pid); gone(err) {
			continue
		} else if err != nil {
			return processTable{}, err
		}
		if !ours {
			table.nested = append(table.nested, p)
			continue
		}
		table.pods = append(table.pods, p)
		for hierarchy, cgroup := range cgroups {
			key := memberKey(hierarchy, cgroup)
			table.members[key] = append(table.members[key], pid)
		}
	}
	return table, nil
}

// cgroupPod is what the path of a cgroup tells.
type cgroupPod struct {
	uid, container string
	ours, nested   bool
}

// podLookup remembers what paths tell: the same few occur in every hierarchy and for every process.
type podLookup struct {
	paths host.Paths
	known map[string]cgroupPod
}

func (l *podLookup) of(cgroup string) cgroupPod {
	found, ok := l.known[cgroup]
	if !ok {
		found.uid, found.container, found.ours = l.paths.PodOfCgroup(cgroup)
		found.nested = !found.ours && strings.Contains(cgroup, "kubepods") &&
			!host.Below(cgroup, path.Join("/", l.paths.CgroupRoot, "kubepods"))
		l.known[cgroup] = found
	}
	return found
}

// ofProcess returns the pod that one of the cgroups of a process belongs to; nested is true where one is in a kubepods
// tree of another kubelet.
func (l *podLookup) ofProcess(cgroups map[string]string) (p podProcess, ours, nested bool) {
	for _, cgroup := range cgroups {
		switch pod := l.of(cgroup); {
		case pod.nested:
			nested = true
			if !ours {
				p.cgroup = max(p.cgroup, cgroup)
			}
		case !pod.ours:
		case ours && pod.uid != p.uid:
			p.conflict = fmt.Sprintf("in cgroups of two pods, %s and %s", min(p.uid, pod.uid), max(p.uid, pod.uid))
		default:
			if !ours {
				p.cgroup = ""
			}
			ours, p.uid = true, pod.uid
			p.container, p.cgroup = max(p.container, pod.container), max(p.cgroup, cgroup) // whichever order the map has
		}
	}
	return p, ours, nested
}

// listProcesses lists the processes in cgroups of pods.
func listProcesses(_ context.Context, scan *Scan) ([]Object, error) {
	table, err := scan.processes()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(table.pods)+len(table.nested))
	for _, p := range table.pods {
		o := processObject(p)
		o.Foreign = p.conflict
		objects = append(objects, o)
	}
	for _, p := range table.nested {
		o := processObject(p)
		o.Foreign = "in a kubepods tree that is not our kubelet's"
		objects = append(objects, o)
	}
	return objects, nil
}

func processObject(p podProcess) Object {
	return Object{
		Kind:        Process,
		ID:          strconv.Itoa(p.PID),
		Pod:         Pod{UID: p.uid},
		ContainerID: p.container,
		Identity:    Identity{"pid": strconv.Itoa(p.PID), "startTime": strconv.FormatUint(p.StartTime, 10)},
		Facts: facts("command", strings.ToValidUTF8(p.Comm, "�"), "state", string(p.State),
			"parent", strconv.Itoa(p.PPID), "cgroup", p.cgroup),
	}
}

// explainProcess adds what is worth reading of a suspect only: what a task in D state waits for.
func explainProcess(h *host.Host, o *Object) {
	if o.Facts["state"] != "D" {
		return
	}
	if channel, err := h.Files.Text("/proc/" + o.ID + "/wchan"); err == nil && channel != "0" {
		o.Facts["waitsIn"] = channel
	}
}
